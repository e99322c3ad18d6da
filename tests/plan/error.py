"""The planner's error: each source of tools/facts/runs.yaml predicted by constants fitted to the others.

`make plan-error` prints the tables of docs/planning.md and the constants of tools/facts/cards.yaml. Other rows, in the
form of runs.yaml, are measured with the constants of cards.yaml: `python -m tests.plan.error FILE`.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from tests.plan import memory
from tools.plan import speed
from tools.plan.layout import CARDS, FITTED, Layout, Machine, Shape

RUNS = Path(__file__).resolve().parents[2] / "tools/facts/runs.yaml"
# What is known of each constant before a run is seen, and by how much (a factor of e to this) it may be wrong.
# matmul: measured products reach 0.87 of an A100 and 0.8 of an H100 (see cards.yaml); a run reaches less.
# flash: Dao 2023 (arXiv 2307.08691) and Shah et al. 2024 (arXiv 2407.08608). The rest are first guesses.
PRIOR = {
    "matmul A100": (0.8, 0.15), "matmul H100": (0.68, 0.15), "matmul H100-500W": (0.55, 0.2),
    "flash2 A100": (0.5, 0.4), "flash2 H100": (0.35, 0.4), "flash2 H100-500W": (0.3, 0.4), "flash3 H100": (0.5, 0.3),
    "short rows": (400, 0.7), "bandwidth": (0.85, 0.1), "matmul reads": (0.7, 0.4), "eager": (1, 0.3),
    "contention": (0.15, 0.7), "latency": (1e-6, 1), "tensor": (0.8, 0.5), "async tensor": (0.3, 0.5),
    "fp8": (1.7, 0.15), "fp8-rowwise": (1.4, 0.2), "fp8-te": (1.8, 0.2),
}  # fmt: skip
EXPECTED = 0.08  # an error beyond this is an outlier and pulls less


@dataclass(frozen=True)
class Row:
    """A published run."""

    source: str
    facts: Mapping[str, Any]
    shape: Shape
    layout: Layout
    machine: Machine

    @property
    def used(self) -> set[str]:
        return speed.used(self.layout, self.machine)

    @property
    def measured(self) -> float:
        """Seconds of a step."""
        return self.layout.step_tokens / self.layout.gpus / float(self.facts["rate"])

    def log_error(self, fitted: Mapping[str, float]) -> float:
        return math.log(speed.Clock(self.shape, self.layout, self.machine, fitted).seconds() / self.measured)

    def error(self, fitted: Mapping[str, float]) -> float:
        return math.exp(self.log_error(fitted)) - 1


def read(path: Path = RUNS) -> list[Row]:
    """Return the rows of a file."""
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    shapes = {name: Shape(**row) for name, row in table["models"].items()}
    return [
        _row(name, shapes, {**part["shared"], **dict(zip(source["columns"], values, strict=True))})
        for name, source in table["sources"].items()
        for part in source["tables"]
        for values in part["rows"]
    ]


def _row(source: str, shapes: Mapping[str, Shape], facts: dict[str, Any]) -> Row:
    shape, values = shapes[facts["model"]], dict(facts)
    if rank := facts.get("lora"):
        targets = sum(inner + outer for _, inner, outer, _ in shape.linears)
        values |= {"rank": rank, "targets": targets, "trained": shape.layers * rank * targets}
    machine = Machine(CARDS[facts["card"]], facts["network"] * 1e9, "RDMA")
    return Row(source, facts, shape, _layout(values), machine)


def _layout(row: dict[str, Any]) -> Layout:
    """Return the layout of a published row: FSDP over all ranks that no other axis takes, two all-gathers."""
    fields = {key: value for key, value in row.items() if key in Layout.__dataclass_fields__}
    layout = Layout(**fields, **({} if "per_node" in fields else {"per_node": min(8, fields.get("gpus", 1))}))
    return layout if "shard" in fields else replace(layout, shard=layout.replicas * layout.context)


def fit(rows: Sequence[Row], rounds: int = 8) -> dict[str, float]:
    """Return the constants that explain the rows best, by Gauss-Newton on the logarithms of their errors.

    A source weighs as the square root of its rows. Outliers pull less (Huber), and the priors hold what the
    rows do not tell.
    """
    names = list(PRIOR)
    start, width = np.log([PRIOR[name][0] for name in names]), np.array([PRIOR[name][1] for name in names])
    counts = Counter(row.source for row in rows)
    own = np.array([counts[row.source] ** -0.5 for row in rows])
    point = start.copy()
    for _ in range(rounds):
        now = dict(zip(names, np.exp(point).tolist(), strict=True))
        errors = np.array([row.log_error(now) for row in rows])
        slopes = np.zeros((len(rows), len(names)))
        for column, name in enumerate(names):
            moved = {**now, name: now[name] * 1.01}
            for place in (place for place, row in enumerate(rows) if name in row.used or not _belongs(name)):
                slopes[place, column] = (rows[place].log_error(moved) - errors[place]) / math.log(1.01)
        weights = own * np.minimum(1, EXPECTED / np.maximum(np.abs(errors), 1e-9)) / EXPECTED**2
        system = slopes.T @ (weights[:, None] * slopes) + np.diag(width**-2)
        pull = slopes.T @ (weights * errors) + (point - start) / width**2
        point += np.clip(np.linalg.solve(system, -pull), -0.5, 0.5)
    return dict(zip(names, np.exp(point).tolist(), strict=True))


def _belongs(name: str) -> bool:
    """Say whether only some rows use a constant."""
    return (name.startswith(("matmul ", "flash", "fp8")) and name != "matmul reads") or "tensor" in name


def left_out(rows: Sequence[Row], source: str, rounds: int = 5) -> list[tuple[Row, float | None]]:
    """Return the rows of a source with their errors, predicted by the others; None if no other has its kind."""
    rest = [row for row in rows if row.source != source]
    known, fitted = set().union(*(row.used for row in rest)), fit(rest, rounds)
    return [(row, row.error(fitted) if row.used <= known else None) for row in rows if row.source == source]


def line(name: str, errors: Sequence[float | None]) -> str:
    """Return one line of the table."""
    sizes = sorted(abs(one) for one in errors if one is not None)
    if not sizes:
        return f"| {name} | 0 of {len(errors)} | | | | |"
    bias = statistics.mean(one for one in errors if one is not None)
    within = sum(one <= 0.2 for one in sizes) / len(sizes)
    counts = f"{len(sizes)} of {len(errors)}"
    return f"| {name} | {counts} | {statistics.median(sizes):.1%} | {sizes[-1]:.1%} | {bias:+.1%} | {within:.0%} |"


def main(arguments: Sequence[str]) -> None:
    print("| source | predicted | median | worst | bias | within 20 % |\n|---|--:|--:|--:|--:|--:|")
    rows = read(Path(arguments[0])) if arguments else read()
    found: list[tuple[Row, float | None]] = []
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        pairs = [(row, row.error(FITTED)) for row in own] if arguments else left_out(rows, source)
        found += pairs
        print(line(source, [error for _, error in pairs]), flush=True)
    print(line("all", [error for _, error in found]))
    sizes = sorted(abs(error) for _, error in found if error is not None)
    print(f"nine in ten within {sizes[int(0.9 * len(sizes))]:.1%}")
    for row, error in found:
        if error is None or abs(error) > 0.2:
            text = "not predicted" if error is None else f"{error:+.1%}"
            print(f"{row.source}: {text}: {', '.join(f'{key} {value}' for key, value in row.facts.items())}")
    if not arguments:
        print("fitted to all rows:")
        for name, value in fit(rows).items():
            print(f"  {name}: {value:.3g}")
        print(memory.table(memory.read()))


if __name__ == "__main__":
    main(sys.argv[1:])
