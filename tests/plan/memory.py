"""The planned memory beside the measured: the cases of memory.yaml. `make plan-error` prints the table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core import repo
from tools.plan.layout import Layout, Shape
from tools.plan.memory import GIB, INTERPRETER, Estimate, Room, of_layout
from training.config import Config, load_texts

CASES = Path(__file__).with_name("memory.yaml")
SECTIONS = {"device": "hardware", "parallel": "cell", "checkpoint": "cell"}  # all others are the model's


@dataclass(frozen=True)
class Case:
    """A run of some ranks, its measured peak, and whether the formula was corrected with it."""

    name: str
    ranks: int
    sections: dict[str, Any]
    measured: int
    per_node: int
    fake: bool
    used: bool

    @property
    def texts(self) -> dict[str, str]:
        """The three files of a configuration."""
        files: dict[str, dict[str, Any]] = {"model": {}, "hardware": {}, "cell": {}}
        for section, value in self.sections.items():
            files[SECTIONS.get(section, "model")][section] = value
        return {name: yaml.safe_dump(file) for name, file in files.items()}

    @cached_property
    def config(self) -> Config:
        return load_texts({name: (name, text) for name, text in self.texts.items()})

    @cached_property
    def estimate(self) -> Estimate:
        room = Room(self.per_node, 3 * GIB, "process")
        layout = Layout.of(self.config, self.ranks // self.per_node, self.per_node)
        if self.fake:  # as on a card: a kernel without a mask; all states are tensors of the same device
            layout = replace(layout, attention="flash2", on_cpu=False, offload=False)
        return of_layout(Shape.of(self.config), layout, room)

    @property
    def planned(self) -> int:
        """Planned bytes of tensors, without the interpreter."""
        return self.estimate.needed - INTERPRETER

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def read(path: Path = CASES) -> list[Case]:
    """Return the cases of the file."""
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_case(table["models"], group, row) for group in table["groups"] for row in group["cases"]]


def _case(models: dict[str, Any], group: dict[str, Any], row: dict[str, Any]) -> Case:
    row = {**group["shared"], **row}
    named = row["model"]
    if named in models:
        sections = dict(models[named])
    else:
        text = (repo.root() / "overlays/model" / named / "model.yaml").read_text(encoding="utf-8")
        sections = yaml.safe_load(text)
    sections["model"] = {**sections["model"], **row.get("sizes", {})}
    ranks, micro, tensor = row["ranks"], row["micro"], row.get("parallel", {}).get("tensor", 1)
    batch = ranks // tensor * micro * row.get("passes", 1)
    sections["train"] = {**sections["train"], "global_batch_size": batch, **row.get("train", {})}
    sections["sequence_length"] = row.get("length", sections["sequence_length"])
    sections["device"] = {
        "type": "cpu",
        "precision": "bf16",
        "attention": "sdpa",
        "compile": "off",
        **row.get("device", {}),
    }
    sections["parallel"] = {"micro_batch_size": micro, **row.get("parallel", {})}
    sections["checkpoint"] = {"every": 5}
    fake, used = row.get("fake", False), row.get("used", False)
    return Case(row["name"], ranks, sections, row.get("bytes", 0), row.get("per_node", ranks), fake, used)


def measure(cases: Sequence[Case]) -> Iterator[tuple[str, int]]:
    """Yield the measured bytes of cases of one kind and number of ranks, by name."""
    fake, ranks = cases[0].fake, cases[0].ranks
    wanted = [
        {"name": one.name, "texts": one.texts, "ranks": one.ranks, "per_node": one.per_node, "fake": one.fake}
        for one in cases
    ]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cases.json")
        path.write_text(json.dumps(wanted), encoding="utf-8")
        words = [sys.executable, *(() if fake else launcher), "-m", "tests.plan.peak", str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(words, env=environment, cwd=repo.root(), stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for text in running.stdout:
                if text.startswith("{"):
                    found = json.loads(text)
                    yield found["name"], found["bytes"]
    if running.returncode:
        raise RuntimeError(f"{ranks} ranks ended with {running.returncode}")


def line(case: Case) -> str:
    """Return one line of the table."""
    kind = f"{case.ranks} {'fake' if case.fake else 'gloo'}"
    sizes = f"{case.measured / 2**20:,.0f} MiB | {case.planned / 2**20:,.0f} MiB"
    return f"| {case.name} | {kind} | {sizes} | {case.error:+.1%} | {'yes' if case.used else 'no'} |"


def table(cases: Sequence[Case]) -> str:
    """Return the table of docs/planning.md and its summary."""
    head = "| run | ranks | measured | planned | error | used to correct |\n|---|---|--:|--:|--:|---|"
    sums = [summary(name, [abs(one.error) for one in cases if one.used is used]) for name, used in KINDS]
    return "\n".join([head, *map(line, cases), "", *sums])


KINDS = (("used to correct the formula", True), ("left out", False))


def summary(name: str, errors: Sequence[float]) -> str:
    if not errors:
        return f"{name}: no runs"
    return f"{name}: {len(errors)} runs, median {statistics.median(errors):.1%}, worst {max(errors):.1%}"


def main(words: Sequence[str]) -> None:
    """Measure the cases whose names contain a word, all without one, and print bytes and terms."""
    cases = [one for one in read() if not words or any(word in one.name for word in words)]
    for kind in sorted({(one.fake, one.ranks if not one.fake else 0) for one in cases}):
        some = [one for one in cases if (one.fake, one.ranks if not one.fake else 0) == kind]
        own = {one.name: one for one in some}
        for name, nbytes in measure(some):
            case = own[name]
            print(f"{name}: bytes: {nbytes} planned {case.planned / nbytes - 1:+.1%}", flush=True)
            for term in case.estimate.terms:
                print(f"    {term.nbytes / 2**20:10,.1f} {term.name}: {term.how}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
