"""Measure trainyard on one card of this machine: `make bench-gpu`, nine minutes at most, without downloads.

python -m tests.bench.gpu [--tiny] [SIDE ...]

It needs the machine's own torch and transformers. `make bench-packages`, run before where there is a network, puts
the small packages that such a machine may lack into .cache/bench/packages. Results are written to $OUT, or else to
.cache/bench/gpu: results.json, table.md and the sides' logs. A row whose package is missing, or whose side fails, says
so, unless tests/bench/results has the row of an earlier run on such a card: then it is this one, with its commit.
Measured sides are kept in .cache/bench/gpu/sides.jsonl: a second call measures the others, until a side's settings, the
trainer's code or the card change. Exit codes as in `make bench`, for the rows measured now.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench import harness
from tests.bench.harness import Row, Table, judged, table_lines
from tests.bench.live import ROOT, SideError
from tests.bench.sides import Bench, Figures, Side, end_sides_at_sigterm, write_corpus
from tests.parts import ledger

PLACE, PACKAGES = ROOT / ".cache/bench/gpu", ROOT / ".cache/bench/packages"
SECONDS, LEAST = 540, 45  # the whole, and what must be left of it where a side starts
LONGEST = 150  # seconds of one side
AHEAD = "ahead, "  # begins the name of a side that only compiles
LAYERS = 2  # of a model that is compiled ahead
NEEDED = {"trainer": ("accelerate",), "ours": ("tensorboard",), "probed": ("tensorboard",), "tests": ("pytest",)}
VOCABULARY = 128256


class Undisturbed:
    """Stands for the meter of processors, which a card does not need."""

    def clean(self, _start: float, _end: float) -> bool:
        return True


def write_tokenizer(directory: Path, size: int) -> None:
    """Write a tokenizer of `size` tokens, one a byte and the rest never used."""
    from training.data import tokenizer

    if directory.exists():
        return
    made = tokenizer.train(iter(["nothing"]), 258)
    known = json.loads(made.files["tokenizer.json"])
    vocabulary = known["model"]["vocab"]
    vocabulary |= {f"unused {number}": number for number in range(len(vocabulary), size)}
    made.files["tokenizer.json"] = json.dumps(known).encode()
    made.write(directory)


def measure(table: Table, bench: Bench, more: tuple[str, ...], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure each side that is not kept, once, in order, and return the results of the rows."""
    began, kept = time.monotonic(), bench.place / "sides.jsonl"
    sides = [_with(table.side(name), more) for name in table.sides]
    digests = {side.name: _digest(side) for side in sides}
    known = {one["side"]: one for one in ledger.read(kept) if digests.get(one["side"]) == one["digest"]}
    measured: dict[str, Figures] = {name: one["figures"] for name, one in known.items()}
    errors = {side.name: f"{_missing(side)} is missing" for side in sides if side.name not in known and _missing(side)}
    wanted = [side for side in sides if side.name not in known and side.name not in errors]
    compiled = {one["digest"] for one in ledger.read(kept) if one["side"].startswith(AHEAD)}
    for name in compile_ahead([one for one in wanted if one.ahead and digests[one.name] not in compiled], bench, say):
        ledger.add(kept, {"side": AHEAD + name, "digest": digests[name]})
    for side in wanted:
        left = SECONDS - (time.monotonic() - began)
        if left < LEAST:
            errors[side.name] = f"not reached in {SECONDS} s; run again to continue"
            continue
        bench.longest = min(left, LONGEST)
        errors[side.name] = _measured(bench, side, measured)
        if side.name in measured:
            ledger.add(kept, {"side": side.name, "digest": digests[side.name], "figures": measured[side.name]})
        say(f"{time.monotonic() - began:5.0f} s  {side.name}: {errors[side.name] or measured[side.name]}")
    return [judged(row, [measured], kind(), _why(row, errors), fewest=1) for row in table.rows]


def compile_ahead(sides: list[Side], bench: Bench, say: Callable[[str], None]) -> list[str]:
    """Compile the code of several sides at once, with fewer layers: most processors are idle while one compiles.

    Returns the names of the sides whose code is compiled.
    """

    def compile_one(side: Side) -> str:
        short = (*side.set, f"model.num_hidden_layers={LAYERS}")
        return _measured(bench, dataclasses.replace(side, name=AHEAD + side.name, set=short, ends=1), {})

    done: list[str] = []
    if not sides:
        return done
    began = time.monotonic()
    bench.longest = LONGEST
    with ThreadPoolExecutor(len(sides)) as pool:
        for side, error in zip(sides, pool.map(compile_one, sides), strict=True):
            done += [] if error else [side.name]
            say(f"{time.monotonic() - began:5.0f} s  compiled ahead: {side.name}: {error or 'done'}")
    return done


def _with(side: Side, more: tuple[str, ...]) -> Side:
    return dataclasses.replace(side, set=(*side.set, *more) if side.trains else ())


def _missing(side: Side) -> str:
    return ", ".join(package for package in NEEDED[side.how] if importlib.util.find_spec(package) is None)


def _digest(side: Side) -> str:
    """Return a digest of what a side's figures depend on: its settings, the trainer, torch and the card."""
    code = b"".join(path.read_bytes() for path in sorted((ROOT / "training").rglob("*.py")))
    said = json.dumps([dataclasses.asdict(side), kind(), *versions().values()], sort_keys=True)
    return hashlib.sha256(said.encode() + code).hexdigest()[:16]


def versions() -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in ("torch", "transformers")}


def _measured(bench: Bench, side: Side, measured: dict[str, Figures]) -> str:
    try:
        measured[side.name] = bench.measure(side)
    except SideError as error:
        return " ".join(str(error).split())[-600:]
    return ""


def _why(row: Row, errors: dict[str, str]) -> str:
    known = (f"{side}: {errors[side]}" for side in (row.of, row.over) if side and errors.get(side))
    return "; ".join(known) or "too few steps"


def _name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no card"


def kind() -> str:
    """The card, as the bars name it."""
    name = _name()
    return next((known for known in ("H200", "H100") if known in name), name)


def main(arguments: list[str], place: Path = PLACE) -> int:
    import torch

    tiny = "--tiny" in arguments
    if not tiny and not torch.cuda.is_available():
        print("error: this machine has no card that torch can use", file=sys.stderr)
        return 3
    table = harness.read_table(harness.HERE / "gpu.yaml")
    more = tuple(table.tiny) if tiny else ()
    place.mkdir(parents=True, exist_ok=True)
    end_sides_at_sigterm()
    write_corpus(place, characters=200_000 if tiny else 8_000_000)
    write_tokenizer(place / "tokenizer", 512 if tiny else VOCABULARY)
    bench = Bench(place, Path(sys.executable), Undisturbed(), warm_up=2, enough=3, own_code=False)
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    names = [name for name in arguments if name != "--tiny"] or [*table.sides]
    if unknown := [name for name in names if name not in table.sides]:
        print(f"error: {', '.join(unknown)}: no such side; there are: {'; '.join(table.sides)}", file=sys.stderr)
        return 2
    table.sides = {name: side for name, side in table.sides.items() if name in names}
    results = measure(table, bench, more, say)
    now = {"commit": harness.commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    answer: dict[str, Any] = {
        "machine": {"processor": _name(), "kind": kind(), **versions()}, **now, "command": "make bench-gpu",
        "rows": harness.with_earlier(results, now, harness.RESULTS / f"{kind()}.json"),
    }  # fmt: skip
    out = Path(os.environ.get("OUT") or place)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text("\n".join(table_lines(answer["rows"])) + "\n", encoding="utf-8")
    shutil.make_archive(str(out / "logs"), "gztar", place / "logs")
    print((out / "table.md").read_text())
    return harness.exit_code(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
