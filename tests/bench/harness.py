"""Measure trainyard beside its peers on this machine: `make bench`, `make bench-all`.

python -m tests.bench.harness [--all] [--keep] [GROUP ...]

A round starts each side of a group once, in a fresh process. Those that train take turns of a few steps, so that all
meet the same phases of the machine; the others follow one another. A round in which a side has too few steps
without CPU pressure is dropped and counted. Rounds are kept in .cache/bench, and a second call continues there; a
change of the code or the machine begins anew. The exit code is 1 if a row is below its bar, or its losses differ, and 3
if a row could not be measured. `--keep` copies the results to tests/bench/results, from which docs/generate.py writes
docs/performance.md; a row that was not measured stays there with its commit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.bench.live import ROOT, SideError
from tests.bench.pressure import LIMIT, Meter
from tests.bench.sides import Bench, Figures, Side, end_sides_at_sigterm, write_corpus
from tests.parts import ledger, venv
from training.device.cpu import fastest_format

HERE, PLACE = ROOT / "tests/bench", ROOT / ".cache/bench"
RESULTS = HERE / "results"
LOCK = HERE / "requirements.lock"
TRIES = 2  # rounds that are tried for each one wanted
FEWEST = 3  # rounds that a figure needs
QUICK, LONG = 18 * 60, 72 * 60  # seconds after which no round begins
PASS, FAIL, UNKNOWN = "PASS", "FAIL", "CANNOT TELL"
PACKAGES = ("torch", "transformers", "accelerate", "peft")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """An entry of `rows` in rows.yaml."""

    name: str
    group: str
    figure: str
    of: str
    over: str | None = None
    minus: str | None = None
    least: float | dict[str, float] | None = None
    most: float | None = None
    losses: float | None = None
    quick: bool = False
    share: bool = False

    def bar(self, kind: str) -> float | None:
        if self.most is not None:
            return self.most
        return self.least.get(kind) if isinstance(self.least, dict) else self.least

    def value(self, measured: dict[str, Figures]) -> float | None:
        """Return this row's figure in a round, None if a side has none."""
        own, other = measured.get(self.of, {}).get(self.figure), self.over or self.minus
        if own is None or other is None:
            return own
        theirs = measured.get(other, {}).get(self.figure)
        if theirs is None:
            return None
        return own / theirs if self.over else own - theirs

    def apart(self, measured: dict[str, Figures]) -> float | None:
        """Return by how much the two sides' losses differ, None if they are not compared."""
        if self.losses is None or not self.over:
            return None
        own, theirs = (measured.get(side, {}).get("loss") for side in (self.of, self.over))
        return None if own is None or theirs is None else abs(own - theirs) / theirs


@dataclass
class Table:
    """rows.yaml, or the rows of another file of its form."""

    trained: dict[str, dict[str, Any]]
    sides: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    rows: list[Row] = field(default_factory=list)
    tiny: list[str] = field(default_factory=list)

    def side(self, name: str) -> Side:
        own = {**self.sides[name]}
        trained = self.trained.get(own.get("trains", ""), {})
        lists: dict[str, Any] = {key: tuple(_flat(own.pop(key, []))) for key in ("set", "command")}
        return Side(name, of={**trained, "set": list(_flat(trained.get("set", [])))}, **lists, **own)


def _flat(items: list[Any]) -> Iterator[str]:
    for item in items:
        yield from _flat(item) if isinstance(item, list) else [item]


def read_table(path: Path) -> Table:
    found = YAML(typ="safe").load(path.read_text())
    return Table(**{**found, "rows": [Row(**row) for row in found["rows"]]})


def processor() -> tuple[str, str]:
    """Return the processor's name, and its kind: by the number format that it multiplies fastest."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    names = {name.strip(): value.strip() for name, value in values.items()}
    name = names.get("model name", platform.machine())
    return f"{name}, {len(os.sched_getaffinity(0))} processors", fastest_format()


def machine() -> dict[str, str]:
    name, kind = processor()
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    locked = (line.split("==") for line in LOCK.read_text().splitlines() if line.startswith("trl=="))
    versions |= {name: version.rstrip(" \\") for name, version in locked}
    return {"processor": name, "kind": kind, "python": platform.python_version(), **versions}


def digest(name: str, table: Table) -> str:
    """Return a digest of what a group's rounds depend on: its sides, the code, the machine."""
    code = sorted(path for top in ("training", "tests/bench", "tools/cli") for path in (ROOT / top).rglob("*.py"))
    sides = [table.sides[side] for side in table.groups[name]["sides"]]
    known = json.dumps([sides, table.trained, machine()], sort_keys=True).encode()
    return hashlib.sha256(known + b"".join(path.read_bytes() for path in code)).hexdigest()[:16]


class Rounds:
    """The rounds measured so far."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, group: str, digest: str) -> list[dict[str, Figures]]:
        return [one["sides"] for one in ledger.read(self.path) if (one["group"], one["digest"]) == (group, digest)]

    def add(self, group: str, digest: str, sides: dict[str, Figures]) -> None:
        ledger.add(self.path, {"group": group, "digest": digest, "sides": sides})


def measure_group(name: str, table: Table, bench: Bench, rounds: Rounds, say: Say, end: float) -> str:
    """Measure rounds of a group until each of its rows has as many as wanted, or the time is `end`.

    Return the first error, or nothing.
    """
    group, own = table.groups[name], digest(name, table)
    rows = [row for row in table.rows if row.group == name]
    while True:
        done = rounds.of(name, own)
        good = min((sum(row.value(one) is not None for one in done) for row in rows), default=0)
        if good >= group["rounds"] or len(done) >= TRIES * group["rounds"] or time.monotonic() > end:
            return ""
        sides = [table.side(side) for side in group["sides"]]
        if len(done) % 2 and not group.get("ordered"):
            sides.reverse()
        measured: dict[str, Figures] = {}
        try:
            if "before" in group and not done:
                bench.measure(table.side(group["before"]))
            for together in [sides] if "turn" in group else [[side] for side in sides]:
                for side, figures in bench.measure_in_turns(together, group.get("turn", 0)).items():
                    measured[side] = figures
                    say(f"{name}, round {len(done) + 1}: {side}: {_told(figures)}")
        except SideError as error:
            return str(error)
        rounds.add(name, own, measured)


def _told(figures: Figures) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in figures.items()) or "under CPU pressure"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def judged(
    row: Row, done: list[dict[str, Figures]], kind: str, error: str = "", fewest: int = FEWEST
) -> dict[str, Any]:
    """Return a row's result: median and range over its rounds, how many were dropped, and its verdict."""
    values = [value for one in done if (value := row.value(one)) is not None]
    apart = [value for one in done if (value := row.apart(one)) is not None]
    result: dict[str, Any] = {
        "name": row.name, "bar": row.bar(kind), "at_most": row.most is not None, "rounds": len(values),
        "dropped": len(done) - len(values), "losses_differ_by": statistics.median(apart) if apart else None,
        "kind": _kind(row),
        "sides": _sides(row, done),
    }  # fmt: skip
    if len(values) < fewest:
        why = error or f"{len(values)} rounds without CPU pressure, {fewest} are needed"
        return {**result, "verdict": UNKNOWN, "why": why}
    result |= {"median": statistics.median(values), "least": min(values), "most": max(values)}
    if row.losses is not None and (result["losses_differ_by"] is None or result["losses_differ_by"] > row.losses):
        return {**result, "verdict": FAIL, "why": f"the losses differ by more than {row.losses:.0%}"}
    bar = result["bar"]
    if bar is None:
        return {**result, "verdict": "", "why": ""}
    good = result["median"] <= bar if row.most is not None else result["median"] >= bar
    return {**result, "verdict": PASS if good else FAIL, "why": ""}


def _kind(row: Row) -> str:
    """How a row's figure is written."""
    if row.share or row.figure in ("mfu", "outside"):
        return "share"
    if row.minus or (row.figure == "seconds" and not row.over):
        return "seconds"
    return "speed" if row.figure == "tokens_per_s" and not row.over else "ratio"


def _sides(row: Row, done: list[dict[str, Figures]]) -> dict[str, float]:
    """The median of each side's own figure, over the rounds that count."""
    found: dict[str, float] = {}
    for side in filter(None, (row.of, row.over, row.minus)):
        values = [one[side][row.figure] for one in done if row.value(one) is not None]
        if values:
            found[side] = statistics.median(values)
    return found


def table_lines(results: list[dict[str, Any]]) -> list[str]:
    """Return the results as a Markdown table."""
    lines = ["| row | bar | median | range | rounds, dropped | sides | verdict |", "|---|---|---|---|---|---|---|"]
    for one in results:
        write = {"share": "{:.1%}", "seconds": "{:.2f} s", "ratio": "{:.2f}", "speed": "{:,.0f}"}[one["kind"]].format
        bar = "" if one["bar"] is None else f"{'≤' if one['at_most'] else '≥'} {write(one['bar'])}"
        known = "median" in one
        spread = f"{write(one['least'])} to {write(one['most'])}" if known else ""
        sides = ", ".join(f"{name} {_short(value)}" for name, value in one["sides"].items())
        verdict = ": ".join(filter(None, (one["verdict"], one["why"].partition("\n")[0])))
        middle = write(one["median"]) if known else ""
        cells = (one["name"], bar, middle, spread, f"{one['rounds']}, {one['dropped']}", sides, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def with_earlier(results: list[dict[str, Any]], now: dict[str, str], kept: Path) -> list[dict[str, Any]]:
    """Return the rows with their commit and date. One that was not measured is the earlier one of `kept`."""
    earlier = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"rows": []}
    then = {key: earlier.get(key) for key in now}
    known = {row["name"]: {**then, **row} for row in earlier["rows"] if "median" in row}
    return [{**row, **now} if "median" in row else known.get(row["name"], row) for row in results]


def exit_code(results: list[dict[str, Any]]) -> int:
    verdicts = {one["verdict"] for one in results}
    return 1 if FAIL in verdicts else 3 if UNKNOWN in verdicts else 0


def run(table: Table, groups: list[str], bench: Bench, rounds: Rounds, kind: str, quick: bool, say: Say) -> list[dict]:
    """Measure groups, and return the results of their rows."""
    end = time.monotonic() + (QUICK if quick else LONG)
    errors = {name: measure_group(name, table, bench, rounds, say, end) for name in groups}
    for name, error in errors.items():
        if error:
            say(f"error: {name}: {error}")
    rows = [row for row in table.rows if row.group in groups and (row.quick or not quick)]
    return [judged(row, rounds.of(row.group, digest(row.group, table)), kind, errors[row.group]) for row in rows]


def _parsed(arguments: list[str], table: Table) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these: {', '.join(table.groups)}")
    parser.add_argument("--all", action="store_true", help="all rows")
    parser.add_argument("--keep", action="store_true", help="write the results into tests/bench/results")
    found = parser.parse_args(arguments)
    if unknown := [name for name in found.groups if name not in table.groups]:
        parser.error(f"{', '.join(unknown)}: no such group; there are {', '.join(table.groups)}")
    return found


def main(arguments: list[str]) -> int:
    table = read_table(HERE / "rows.yaml")
    given = _parsed(arguments, table)
    quick = not given.all and not given.groups
    groups = given.groups or [
        name for name in table.groups if given.all or any(row.quick for row in table.rows if row.group == name)
    ]
    peers = venv.python(LOCK)
    if peers is None:
        print("error: the peers' environment is missing: run `make bench`, which makes it", file=sys.stderr)
        return 3
    known = machine()
    kept = RESULTS / f"{re.sub(r'[^A-Za-z0-9]+', '-', known['processor'])}.json"
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    began = time.monotonic()
    end_sides_at_sigterm()
    write_corpus(PLACE)
    with Meter() as meter:
        bench = Bench(PLACE, peers, meter)
        results = run(table, groups, bench, Rounds(PLACE / "rounds.jsonl"), known["kind"], quick, say)
    now = {"commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    measured = {one["name"]: one for one in results}
    rows = [measured.get(row.name) or judged(row, [], known["kind"], "not measured") for row in table.rows]
    answer = {
        "machine": known, **now, "command": f"make bench{'' if quick else '-all'}",
        "seconds": round(time.monotonic() - began), "pressure": LIMIT,
        "rows": with_earlier(rows, now, kept),
    }  # fmt: skip
    written = PLACE / "results.json"
    written.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    if given.keep:
        RESULTS.mkdir(exist_ok=True)
        kept.write_text(written.read_text())
    print("\n".join(table_lines(results)))
    say(f"written to {written.relative_to(ROOT)}")
    return exit_code(results)


def commit() -> str:
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    if shutil.which("git") is None:
        return "unknown"
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
