"""Try the faults of faults.yaml on the trainer and on the control: `make faults`, `make faults-all`.

python -m tests.faults.suite [--all] [--keep] [NUMBER ...]

Each trial is kept in .cache/faults as it ends, and a second call continues there; a change of the code begins anew, and
numbers on the command line are tried again. With --all each fault is tried with all its seeds. The exit code is 1 if a
bound was not kept or a trial did not end, and 3 if this machine cannot produce a fault, a fault did not happen, or the
time was up. `--keep` writes the table for docs/recovery.md, into tests/faults/results.json.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.bench.harness import commit, processor
from tests.faults import goals
from tests.faults.bed import ROOT, Bed, Course, NoFaultError, NotTriedError, Outcome
from tests.parts import ledger

HERE, PLACE = ROOT / "tests/faults", ROOT / ".cache/faults"
RESULTS = HERE / "results.json"
QUICK, LONG = 36 * 60, 170 * 60  # seconds after which no trial begins
LIMIT = 240  # seconds of one trial, where faults.yaml says nothing else
CODE = ("training", "tests/faults", "tests/training/checkpoint", "tests/training/jobs.py")
NOT_YET = "not yet run"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Fault:
    """An entry of faults.yaml."""

    number: int
    name: str
    how: str = ""
    bound: str = ""
    run: str = ""
    """The function that tries it, MODULE:FUNCTION."""
    tests: tuple[str, ...] = ()
    """Tests that try it, instead of a function."""
    control: str = ""
    """The control's function; `run` is tried with the control by default, `none: REASON` leaves it out."""
    seeds: int = 1
    limit: int = LIMIT
    smoke: bool = False
    long: bool = False
    """Only --all tries it, or its number."""
    missing: str = ""
    """Why it is not tried."""

    def sides(self) -> list[str]:
        if self.missing:
            return []
        return ["trainyard"] if self.control.startswith("none: ") else ["trainyard", "control"]


@dataclass
class Trial:
    """One trial of one side, as it is kept."""

    fault: int
    side: str
    seed: int
    digest: str
    verdict: str
    """held, not held, no fault, or not tried."""
    outcome: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    took: float = 0.0


def read_table(path: Path = HERE / "faults.yaml") -> list[Fault]:
    rows = YAML(typ="safe").load(path.read_text())["faults"]
    return [Fault(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def digest() -> str:
    """Return a digest of the code on which trials depend."""
    places = [ROOT / name for name in CODE]
    files = sorted(path for place in places for path in ([place] if place.is_file() else place.rglob("*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


class TimeUpError(Exception):
    """A trial did not end in its time. It is not an OSError, which trials expect of a fault."""


class Trials:
    """The trials so far."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest = path, digest

    def all(self) -> list[Trial]:
        """The newest trial of each fault, side and seed with the present code."""
        found = [Trial(**one) for one in ledger.read(self.path)]
        newest = {(one.fault, one.side, one.seed): one for one in found if one.digest == self.digest}
        return list(newest.values())

    def add(self, trial: Trial) -> None:
        ledger.add(self.path, asdict(trial))


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeUpError in the block when the time is up."""

    def ring(number: int, frame: Any) -> None:
        raise TimeUpError(f"not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(fault: Fault, side: str, seed: int, calm: dict[tuple[object, ...], Course], place: Path) -> Trial:
    """Try a fault once; whatever happens becomes the trial's verdict."""
    began = time.monotonic()
    trial = Trial(fault.number, side, seed, "", "not held")
    bed = Bed(Path(tempfile.mkdtemp(prefix=f"{fault.number}-", dir=place)) / "bed", seed, side == "control", calm)
    try:
        with within(fault.limit):
            found = _function(fault, side)(bed)
        trial.verdict = "held" if found.held else "not held"
        trial.outcome = asdict(found)
    except NotTriedError as why:
        trial.verdict, trial.why = "not tried", str(why)
    except NoFaultError as why:
        trial.verdict, trial.why = "no fault", str(why)
    except (AssertionError, TimeUpError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        trial.why = f"{type(error).__name__}: {error}"
    finally:
        bed.close()
    if trial.verdict == "held":
        shutil.rmtree(bed.place.parent, ignore_errors=True)
    trial.took = round(time.monotonic() - began, 1)
    return trial


def _function(fault: Fault, side: str) -> Callable[[Bed], Outcome]:
    if fault.tests and side == "trainyard":
        return lambda bed: tested(fault.tests)
    name = fault.control if fault.control and side == "control" else fault.run
    module, _, function = name.partition(":")
    found: Callable[[Bed], Outcome] = getattr(importlib.import_module(f"tests.faults.{module}"), function)
    return found


def tested(ids: tuple[str, ...]) -> Outcome:
    """Run tests that try a fault; each asserts that the fault happened."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rs", *ids]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    count = (done.stdout.strip().splitlines() or [""])[-1]
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", count)
    if found is None or not int(found[1]) + int(found[2]):
        raise NoFaultError(f"no test ran: {count} {done.stderr.strip()[-200:]}")
    if int(found[3]) and not int(found[2]):
        reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.+)$", done.stdout, re.MULTILINE)
        raise NotTriedError(f"tests were skipped: {count}: {'; '.join(sorted(set(reasons)))}")
    return Outcome(done.returncode == 0, "each test asserts its fault", count, points=int(found[1]))


def run(faults: list[Fault], *, seeds: int | None, again: bool, trials: Trials, say: Say, end: float) -> bool:
    """Try what has no trial yet; False if the time was up before."""
    done = set() if again else {(one.fault, one.side, one.seed) for one in trials.all() if one.verdict != "no fault"}
    calm: dict[tuple[object, ...], Course] = {}
    place = trials.path.parent / "beds"
    place.mkdir(parents=True, exist_ok=True)
    wanted = [
        (fault, side, seed)
        for fault in faults
        for seed in range(fault.seeds if seeds is None else min(seeds, fault.seeds))
        for side in fault.sides()
        if (fault.number, side, seed) not in done
    ]
    for fault, side, seed in wanted:
        if time.monotonic() > end:
            return False
        trial = attempt(fault, side, seed, calm, place)
        trial.digest = trials.digest
        trials.add(trial)
        told = trial.outcome.get("seen") or trial.why.partition("\n")[0]
        say(f"{fault.number:2} {fault.name}, {side}, seed {seed}: {trial.verdict}, {told[:160]} ({trial.took:.0f} s)")
    return True


def rows_of(faults: list[Fault], trials: list[Trial]) -> list[dict[str, Any]]:
    """Return one row for each fault: what it is, and what the trials of both sides showed."""
    rows = []
    for fault in faults:
        sides = {}
        for side in fault.sides():
            mine = [one for one in trials if (one.fault, one.side) == (fault.number, side)]
            sides[side] = _summed(mine) if mine else {"verdict": NOT_YET}
        row = {"number": fault.number, "name": fault.name, "how": fault.how, "bound": fault.bound, **sides}
        row["missing"] = fault.missing or sides.get("trainyard", {}).get("missing", "")
        if fault.control.startswith("none: "):
            row["no_control"] = fault.control.removeprefix("none: ")
        rows.append(row)
    return rows


def _summed(mine: list[Trial]) -> dict[str, Any]:
    """Sum up the trials of one side of a fault, over its seeds."""
    order = ("not held", "no fault", "not tried", "held")
    worst = min(mine, key=lambda one: order.index(one.verdict))
    if worst.verdict == "not tried":
        return {"verdict": "not tried", "missing": worst.why}
    lost = [one.outcome["lost"] for one in mine if one.outcome.get("lost") is not None]
    seconds = [one.outcome["seconds"] for one in mine if one.outcome.get("seconds") is not None]
    return {
        "verdict": worst.verdict,
        "seeds": len(mine),
        "points": sum(one.outcome.get("points", 1) for one in mine),
        "lost": max(lost, default=None),
        "seconds": round(statistics.median(seconds), 1) if seconds else None,
        "proof": worst.outcome.get("proof", ""),
        "seen": worst.outcome.get("seen") or worst.why.partition("\n")[0][:200],
    }


HEAD = ["#", "fault", "bound", "points", "trainyard", "lost", "seconds", "torchrun with DCP", "lost", "seconds"]


def table_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as a Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    for row in rows:
        ours, theirs = row.get("trainyard", {}), row.get("control", {})
        told = f"**not tried**: {row['missing']}" if row["missing"] else _told(ours)
        beside = theirs.get("seen") or theirs.get("missing", NOT_YET)
        beside = row.get("no_control") or ("" if row["missing"] else beside)
        cells = [
            row["number"], f"{row['name']}: {row['how']}" if row["how"] else row["name"], row["bound"],
            "" if row["missing"] else ours.get("points", ""), told, _cell(ours, "lost"), _cell(ours, "seconds"), beside,
            _cell(theirs, "lost"), _cell(theirs, "seconds"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    return lines


def _told(side: dict[str, Any]) -> str:
    verdict = side["verdict"]
    shown = verdict if verdict in ("held", NOT_YET) else f"**{verdict}**"
    return f"{shown}: {side['seen']}" if side.get("seen") else shown


def _cell(side: dict[str, Any], name: str) -> str:
    value = side.get(name)
    return "" if value is None else f"{value}"


def exit_code(rows: list[dict[str, Any]], complete: bool) -> int:
    verdicts = {row["trainyard"]["verdict"] for row in rows if "trainyard" in row}
    return 1 if "not held" in verdicts else 3 if not complete or verdicts - {"held"} else 0


def environment() -> None:
    """Set what every process of a trial inherits: loopback only, one thread, torchrun and imports of this checkout."""
    guard = str(ROOT / "training/guard")
    logging.getLogger("training").addHandler(logging.NullHandler())  # else crash points in this process print warnings
    os.environ.update(TRAINYARD_LOOPBACK="1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", TRAINYARD_CPUS="1")
    os.environ["PYTHONPATH"] = os.pathsep.join([guard, str(ROOT)])
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.chdir(ROOT)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="only these faults, tried again")
    parser.add_argument("--all", action="store_true", help="all seeds of each fault")
    parser.add_argument("--keep", action="store_true", help="write the table for docs/recovery.md")
    given = parser.parse_args(arguments)
    table = read_table()
    if unknown := set(given.numbers) - {fault.number for fault in table}:
        parser.error(f"no such fault: {', '.join(map(str, sorted(unknown)))}; there are 1 to {table[-1].number}")
    environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the trial ends its processes
    trials = Trials(PLACE / "trials.jsonl", digest())
    say: Say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    chosen = [one for one in table if (one.number in given.numbers if given.numbers else given.all or not one.long)]
    complete = run(
        chosen, seeds=None if given.all else 1, again=bool(given.numbers), trials=trials, say=say,
        end=time.monotonic() + (LONG if given.all else QUICK),
    )  # fmt: skip
    rows = rows_of(chosen, trials.all())
    print("\n".join([*table_lines(rows), "", *goals.lines(rows)]))
    if not complete:
        say(f"the time is up: run make faults{'-all' if given.all else ''} again to continue")
    if given.keep:
        keep(rows_of(table, trials.all()), "make faults-all" if given.all else "make faults")
    return exit_code(rows, complete)


def keep(rows: list[dict[str, Any]], command: str) -> None:
    """Write the results that docs/generate.py reads. What the present code has not tried keeps its earlier result."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    earlier = {(row["number"], row["name"]): row for row in kept}
    now = {
        "processor": processor()[0], "commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command,
    }  # fmt: skip
    merged = [
        {**row, **now} if row.get("trainyard", {}).get("verdict") != NOT_YET
        else earlier.get((row["number"], row["name"]), row)
        for row in rows
    ]  # fmt: skip
    RESULTS.write_text(json.dumps({"rows": merged}, indent=1) + "\n", encoding="utf-8")


def sources(rows: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each run of the suite that has rows here: its command, commit, date and machine."""
    runs: dict[str, list[int]] = {}
    for row in rows:
        if "commit" in row:
            run = f"`{row['command']}`, commit {row['commit']}, {row['date']}, on {row['processor']}"
            runs.setdefault(run, []).append(row["number"])
    return [f"{run}: {ranges(numbers)}." for run, numbers in runs.items()]


def ranges(numbers: list[int]) -> str:
    """Return increasing numbers as in 1 to 5, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
