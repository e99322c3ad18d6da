"""One side of a row: it starts in a fresh process, and its lines become figures."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.bench.live import ROOT, Live, SideError, end_of
from training.config import apply_override

WARM_UP, ENOUGH = 4, 5  # steps that do not count, and steps without pressure that a figure needs
LONGEST = 900  # seconds of one process
_CHARACTERS = 1_000_000  # of each document of the corpus
Figures = dict[str, float]


def end_sides_at_sigterm() -> None:
    """Let SIGTERM end this process like an exception, so that a side's processes are ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Watcher(Protocol):
    """Tells whether nothing else used the processors during a time."""

    def clean(self, start: float, end: float) -> bool: ...


@dataclass(frozen=True)
class Side:
    """An entry of `sides` in rows.yaml; `of` is the entry of `trained` that it trains.

    A side with `ends` is ended after that many steps: its last step then needs no checkpoint. One with `ahead` may
    compile its code before it is measured.
    """

    name: str
    how: str
    of: dict[str, Any] = field(default_factory=dict)
    trains: str = ""
    set: tuple[str, ...] = ()
    flags: dict[str, Any] = field(default_factory=dict)
    attention: str = "eager"
    batch: int = 0
    ranks: int = 1
    nodes: int = 1
    fresh: bool = False
    empty: bool = False
    continues: str = ""
    ends: int = 0
    ahead: bool = False
    command: tuple[str, ...] = ()


@dataclass
class Bench:
    """Where a benchmark works, the interpreters of ours and of the peers, and what tells pressure.

    Without `own_code` all sides that do not measure compiling share torch's own directory of compiled code.
    """

    place: Path
    peers: Path
    meter: Watcher
    warm_up: int = WARM_UP
    enough: int = ENOUGH
    ours: Path = Path(sys.executable)
    longest: float = LONGEST
    own_code: bool = True

    def measure(self, side: Side) -> Figures:
        """Measure a side once. Figures that too few steps without pressure support are missing.

        Raises:
            SideError: it failed.
        """
        return self.measure_in_turns([side], 0)[side.name]

    def measure_in_turns(self, sides: list[Side], turn: int) -> dict[str, Figures]:
        """Measure sides in the same seconds: one trains `turn` steps while the others are stopped, then the next.

        A side alone is not stopped. Each of several first takes its steps of warm-up alone, and the step during which
        it is stopped does not count.

        Raises:
            SideError: one failed.
        """
        if sides[0].how in ("command", "tests"):
            return {side.name: self._command(side) for side in sides}
        end = time.monotonic() + self.longest * len(sides)
        live: list[Live] = []
        try:
            for side in sides:
                live.append(self._start(side))
                if len(sides) > 1:
                    live[-1].train(self.warm_up + 1, end)
                    live[-1].pause()
            while going := [one for one in live if not one.ended()]:
                for one in going:
                    one.resume()
                    one.train(turn if len(sides) > 1 else 0, end)
                    one.pause()
            return {one.side.name: self._figures(one) for one in live}
        finally:
            for one in live:
                one.end()

    def _figures(self, one: Live) -> Figures:
        lines = read_lines(one.run / "metrics.jsonl") + read_lines(one.run / "probe.jsonl")
        if one.side.ends:
            lines = [line for line in lines if line.get("step", 0) <= one.side.ends]

        def clean(start: float, end: float) -> bool:
            return self.meter.clean(start, end) and not one.paused(start, end)

        return figures(lines, clean, one.started, self.warm_up, self.enough)

    def _run_of(self, name: str) -> Path:
        return self.place / "runs" / _plain(name)

    def _compiled(self, side: Side) -> Path | None:
        """Return the directory of compiled code: kept between rounds, but for sides that measure compiling."""
        if not (self.own_code or side.fresh or side.empty or side.continues):
            return None
        path = self.place / "compiled" / _plain(side.continues or side.name)
        if side.empty:
            path = path.with_name(path.name + "-empty")
        if side.fresh or side.empty:
            shutil.rmtree(path, ignore_errors=True)
        return path

    def _command(self, side: Side) -> Figures:
        began = time.time()
        words = [sys.executable if word == "{python}" else word for word in side.command]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST)
        ended = time.time()
        if done.returncode not in ((0,) if side.how == "tests" else (0, 1)):
            raise SideError(f"{side.name}: ended with {done.returncode}: {end_of(done.stdout + done.stderr)}")
        time.sleep(0.5)  # the meter's next sample
        return {"seconds": ended - began} if self.meter.clean(began, ended) else {}

    def _start(self, side: Side) -> Live:
        run, compiled = self._run_of(side.continues or side.name), self._compiled(side)
        if not side.continues:
            shutil.rmtree(run, ignore_errors=True)
        configuration = self._configuration(side)
        run.mkdir(parents=True, exist_ok=True)
        threads = max(1, len(os.sched_getaffinity(0)) // side.ranks)
        key = self.place / "key"
        key.write_text("k" * 44)
        environment = {
            **os.environ,
            "TRAINYARD_RUN": str(run),
            "TRAINYARD_DATA": str(self.place / "data"),
            "TRAINYARD_SIGNING_KEY_FILE": str(key) if side.fresh or side.continues else "",
            **({"TORCHINDUCTOR_CACHE_DIR": str(compiled)} if compiled else {}),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "HF_HUB_OFFLINE": "1",
        }
        return Live(side, run, self._log(side), self._commands(side, configuration, run), environment)

    def _commands(self, side: Side, configuration: Path, run: Path) -> list[list[str]]:
        module = str(side.of["module"])
        if side.how in ("ours", "probed"):
            first = "tests.bench.probe" if side.how == "probed" else "tests.bench.unsaved" if side.ends else ""
            start = [str(self.ours), "-m", "torch.distributed.run", f"--nproc-per-node={side.ranks // side.nodes}"]
            ours = ["-m", *filter(None, [first]), module, "--config", str(configuration)]
            if side.nodes == 1:
                return [[*start, "--standalone", *ours]]
            port = _free_port()
            place = [f"--nnodes={side.nodes}", "--master-addr=127.0.0.1", f"--master-port={port}"]
            return [[*start, *place, f"--node-rank={node}", *ours] for node in range(side.nodes)]
        if side.how == "peak":
            return [[str(self.ours), "-m", "tests.bench.peak", str(configuration), str(run / "metrics.jsonl")]]
        settings = run / "settings.json"
        settings.write_text(
            json.dumps(
                {
                    "peer": side.how, "module": module, "config": str(configuration), "run": str(run),
                    "data": str(self.place / "data"), "out": str(run / "metrics.jsonl"), "flags": side.flags,
                    "attention": side.attention, "batch": side.batch,
                }
            )
        )  # fmt: skip
        return [[str(self.peers), str(ROOT / "tests/bench/peers.py"), str(settings)]]

    def _log(self, side: Side) -> Path:
        output = self.place / "logs" / f"{_plain(side.name)}.log"
        output.parent.mkdir(parents=True, exist_ok=True)
        return output

    def _configuration(self, side: Side) -> Path:
        """Write the three files that ours and the peers read."""
        texts = {
            layer: (f"{layer}.yaml", (ROOT / side.of[layer]).read_text()) for layer in ("model", "hardware", "cell")
        }
        words = {"corpus": self.place / "corpus", "documents": self.place / "documents.jsonl", "place": self.place}
        for one in (*side.of["set"], *side.set):
            texts = {layer: (f"{layer}.yaml", text) for layer, (_, text) in _set(texts, one, words).items()}
        directory = self.place / "configurations" / _plain(side.name)
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.values():
            (directory / name).write_text(text)
        return directory


def _set(texts: dict[str, tuple[str, str]], assignment: str, words: Mapping[str, Path]) -> dict[str, tuple[str, str]]:
    for name, path in words.items():
        assignment = assignment.replace(f"{{{name}}}", str(path))
    return apply_override(texts, assignment)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that are whole."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def figures(
    lines: list[dict[str, Any]],
    clean: Callable[[float, float], bool],
    started: float,
    warm_up: int = WARM_UP,
    enough: int = ENOUGH,
) -> Figures:
    """Return what a side's lines say. A step lasts from the end of the one before to its own end."""
    lines = [line for line in lines if line.get("time", started) >= started]
    steps = [line for line in lines if "tokens" in line]
    kept = [
        (line, line["time"] - before["time"])
        for before, line in zip(steps[warm_up:], steps[warm_up + 1 :], strict=False)
        if clean(before["time"], line["time"])
    ]
    found = {"steps_kept": float(len(kept)), "steps_dropped": float(max(0, len(steps) - warm_up - 1) - len(kept))}
    if losses := [line["loss"] for line in lines if "loss" in line]:
        found["loss"] = statistics.mean(losses)
    if steps and "step_s" in steps[0] and clean(steps[0]["time"] - steps[0]["step_s"], steps[0]["time"]):
        found["first_step_s"] = steps[0]["step_s"]
    if memory := [line["memory_gib"] for line in lines if line.get("memory_gib")]:
        found["memory_gib"] = max(memory)
    if len(kept) >= enough:
        found["step_s"] = statistics.median(seconds for _, seconds in kept)
        # Batches of documents differ in length, so tokens are added up.
        found["tokens_per_s"] = sum(line["tokens"] for line, _ in kept) / sum(seconds for _, seconds in kept)
        shares = [line["mfu"] for line, _ in kept if line.get("mfu")]
        if shares and statistics.median(shares) <= 1:  # else the machine was busy while its peak was measured
            found["mfu"] = statistics.median(shares)
        found |= _inside(lines, kept)
    return found | _evaluations(lines, clean) | _saves(lines, found.get("step_s"))


def _inside(lines: list[dict[str, Any]], kept: list[tuple[dict[str, Any], float]]) -> Figures:
    """The share of a step outside forward, backward and optimizer, if a probe has timed these."""
    inside = {line["step"]: line["inside_s"] for line in lines if "inside_s" in line}
    shares = [1 - inside[line["step"]] / seconds for line, seconds in kept if line.get("step") in inside]
    return {"outside": statistics.median(shares)} if shares else {}


def _evaluations(lines: list[dict[str, Any]], clean: Callable[[float, float], bool]) -> Figures:
    """The speed of evaluations after the first, which compiles; their loss is the side's."""
    found = [line for line in lines if "evaluated" in line]
    rates = [one["evaluated"] / one["seconds"] for one in found[1:] if clean(one["time"] - one["seconds"], one["time"])]
    if len(rates) < 3:
        return {}
    return {"evaluated_per_s": statistics.median(rates), "loss": statistics.median(one["heldout"] for one in found)}


def _saves(lines: list[dict[str, Any]], step: float | None) -> Figures:
    """How long saves block training, in seconds and in steps."""
    found = [line["saved_s"] for line in lines if "saved_s" in line]
    if len(found) < 3 or step is None:
        return {}
    return {"save_s": statistics.median(found), "save_steps": statistics.median(found) / step}


def write_corpus(place: Path, characters: int | None = None) -> None:
    """Write the text of this Python's library, or its start: documents of a million characters, and short ones."""
    from training.data.sources import STDLIB, open_source

    corpus = place / "corpus"
    if (place / "documents.jsonl").exists():
        return
    corpus.mkdir(parents=True, exist_ok=True)
    text = "\n".join(document.text for document in open_source(STDLIB).documents())[:characters]
    for number, start in enumerate(range(0, len(text), min(_CHARACTERS, len(text) // 4))):
        (corpus / f"{number:02}.txt").write_text(
            text[start : start + min(_CHARACTERS, len(text) // 4)], encoding="utf-8"
        )
    draw, at, rows = random.Random(0), 0, list[str]()
    while at < min(len(text), 6 * _CHARACTERS):
        length = int(min(900, max(50, draw.lognormvariate(5.4, 0.7))))
        rows.append(json.dumps({"text": text[at : at + length]}))
        at += length
    (place / "documents.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())
