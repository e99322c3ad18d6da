"""Measure `yard prove` on planted defects, healthy scripts and our own trainers: `make prove-bench`.

python -m tests.prove.bench [--keep | NAME ...]

A NAME is a script, `script/defect`, or a trainer; without one, all are proven. Each result is appended to
`.cache/prove/bench.jsonl` at once, and a second call continues where the first one stopped. `--keep` proves nothing: it
writes the results that count into tests/prove/results.jsonl, where other clones find them. A result counts as long as
neither the script nor the code that it depends on has changed: what starts, probes and reads, and the judges of its
claims. Comments, the words of a repair, the report, and what runs only in a cluster or without namespaces decide no
result.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.parts import ledger
from tests.prove import planted, proving, trainers
from tests.prove.planted import Defect, Script
from tools.prove.observed import TABLE

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".cache/prove/bench.jsonl"
KEPT = ROOT / "tests/prove/results.jsonl"
CODE = ("training/prove", "tools/prove", "tests/prove/trainers.py")
JUDGES = Path("tools/prove/claims")
NO_PART = {  # of the code, in a result
    *("tools/prove/remedies.yaml", "tools/prove/report.py", "tools/prove/proofs.py", "tools/prove/pods.py"),
    *("training/prove/pod.py", "training/prove/view/pods.py"),
    *("training/prove/view/copied.py", "training/prove/view/guard.py"),
}
LONGEST = 3600.0  # seconds for one row: a machine that others use too is several times slower
ALL = frozenset(TABLE["claims"])
ROW = "{:<17} {:<27} {:<35} {:<43} {:>5}"
NAMED, ELSEWHERE, MISSED = "by its claim", "by another claim", "missed"


@dataclass
class Result:
    """One proof: what it found, and the digest of what was proven by which code."""

    name: str
    digest: str
    code: int
    states: dict[str, str]
    found: dict[str, str]
    seconds: float
    errors: str = ""
    evidence: list[str] = field(default_factory=list)


@dataclass
class Case:
    """One proof to carry out. `prepare` writes the inputs into an empty directory and returns the command."""

    name: str
    digest: str
    prepare: Callable[[Path], list[str]]
    options: list[str]
    path: Path
    starts: int = len(TABLE["starts"])


def cases(scripts: dict[str, Script]) -> Iterator[Case]:
    """Yield each defect with its claim only, each healthy script, and each trainer."""
    for script in scripts.values():
        path = proving.programs(script.name)
        if path is None:
            raise SystemExit(f"error: no environment for {script.name}: run `make prove-bench`, which makes it")
        for defect in script.defects:
            yield _defect(defect, path)
        yield Case(
            script.name,
            _digest(ALL, script.text(), *script.command),
            functools.partial(_write, script.name, script.text(), script.command),
            ["--keep", "checkpoints"],
            path,
        )
    for name in trainers.NAMES:
        yield Case(name, _digest(ALL, name), functools.partial(trainers.make, name), [], Path(sys.executable).parent)


def _defect(defect: Defect, path: Path) -> Case:
    text = defect.text()
    return Case(
        f"{defect.script}/{defect.name}",
        _digest(frozenset({defect.claim}), text, *defect.command, *defect.options, defect.claim),
        functools.partial(_write, defect.script, text, defect.command),
        ["--only", defect.claim, "--keep", "checkpoints", *defect.options],
        path,
        len(TABLE["claims"][defect.claim]["starts"]),
    )


def _write(name: str, text: str, command: list[str], directory: Path) -> list[str]:
    (directory / f"{name}.py").write_text(text, encoding="utf-8")
    return command


@functools.cache
def _code(claims: frozenset[str]) -> str:
    """Return a digest of the code that a result on some claims depends on."""
    paths = [path for top in CODE for path in ([ROOT / top] if (ROOT / top).is_file() else (ROOT / top).rglob("*"))]
    kept = {path.relative_to(ROOT) for path in paths if path.suffix in (".py", ".yaml")}
    other = {_judge(claim) for claim in ALL} - {_judge(claim) for claim in _with_imports(claims)}
    read = sorted(path for path in kept - other if str(path) not in NO_PART)
    return hashlib.sha256("".join(_meaning(ROOT / path) for path in read).encode()).hexdigest()


def _meaning(path: Path) -> str:
    """Return what a file says to a machine: neither comments nor docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return repr(yaml.safe_load(text))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def _judge(claim: str) -> Path:
    return JUDGES / f"{claim}.py"


def _with_imports(claims: frozenset[str]) -> frozenset[str]:
    """Return claims, and the claims whose judges theirs import."""
    texts = [(ROOT / _judge(claim)).read_text(encoding="utf-8") for claim in claims]
    imported = (re.findall(r"^from tools\.prove\.claims\.(\w+) import", text, re.M) for text in texts)
    more = claims.union(*imported)
    return more if more == claims else _with_imports(more)


def _digest(claims: frozenset[str], *texts: str) -> str:
    return hashlib.sha256("\0".join([_code(claims), *texts]).encode()).hexdigest()[:16]


def carry_out(case: Case) -> Result:
    """Prove one case in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="prove-bench-") as name:
        directory = Path(name)
        command = case.prepare(directory)
        trainer = trainers.options(directory) if case.name in trainers.NAMES else []
        began = time.monotonic()
        try:
            answer = proving.prove(directory, command, *case.options, *trainer, path=case.path, timeout=LONGEST)
        except subprocess.TimeoutExpired as error:
            return Result(case.name, case.digest, -1, {}, {}, time.monotonic() - began, str(error))
        seconds = time.monotonic() - began
        told = [f"{row['claim']}: {row['verdict']}: {row['summary']}" for row in answer.rows]
        return Result(
            case.name, case.digest, answer.code, answer.states(), answer.found, seconds, answer.errors[-2000:], told
        )


def results() -> dict[str, Result]:
    """Return the kept results by name, the newest of each. A row without a verdict is not a result."""
    rows = [*ledger.read(KEPT), *ledger.read(RESULTS)]
    return {row["name"]: Result(**row) for row in rows if row["states"]}


def keep(kept: dict[str, Result]) -> None:
    """Write results without their evidence to the file that is in git, one a line."""
    lines = []
    for name in sorted(kept):
        row = asdict(kept[name]) | {"seconds": round(kept[name].seconds)}
        lines.append(json.dumps({key: row[key] for key in row if key not in ("errors", "evidence")}) + "\n")
    KEPT.write_text("".join(lines), encoding="utf-8")


def judged(defect: Defect, result: Result) -> str:
    """Return how a defect was named."""
    if result.found.get(defect.finding) == defect.state:
        return NAMED
    return ELSEWHERE if result.found else MISSED


def tables(scripts: dict[str, Script], kept: dict[str, Result]) -> list[str]:
    """Return the tables of defects, of healthy scripts and of trainers, and their sums."""
    lines = [ROW.format("script", "defect", "must be", "found", "s")]
    counts = dict.fromkeys((NAMED, ELSEWHERE, MISSED), 0)
    for script in scripts.values():
        for defect in script.defects:
            result = kept.get(f"{script.name}/{defect.name}")
            if result is None:
                continue
            how = judged(defect, result)
            counts[how] += 1
            text = how if how == NAMED else f"{how}: {_told(result)}"
            lines.append(
                ROW.format(script.name, defect.name, f"{defect.state} {defect.finding}", text, f"{result.seconds:.0f}")
            )
    planned = sum(len(script.defects) for script in scripts.values())
    lines.append(
        f"{planned} defects, {sum(counts.values())} proven: {', '.join(f'{n} {how}' for how, n in counts.items())}"
    )
    return [*lines, "", *_healthy(scripts, kept), "", *_trainers(kept)]


def _told(result: Result) -> str:
    told = [f"{state} {name}" for name, state in result.found.items()] or [
        f"{state} {claim}" for claim, state in result.states.items()
    ]
    return ", ".join(told)


def _healthy(scripts: dict[str, Script], kept: dict[str, Result]) -> list[str]:
    lines, alarms = [ROW.format("healthy script", "PASS", "true of the framework", "false alarms", "s")], 0
    for script in scripts.values():
        result = kept.get(script.name)
        if result is None:
            continue
        true = [name for name in result.found if name in script.expected]
        false = [f"{state} {name}" for name, state in result.found.items() if name not in script.expected]
        alarms += len(false)
        lines.append(_row(script.name, result, ", ".join(true), ", ".join(false)))
    return [*lines, f"{len(lines) - 1} healthy scripts proven: {alarms} false alarms"]


def _trainers(kept: dict[str, Result]) -> list[str]:
    lines, whole = [ROW.format("our trainer", "PASS", "", "found", "s")], 0
    for name in trainers.NAMES:
        result = kept.get(name)
        if result is not None:
            whole += list(result.states.values()).count("PASS") == 10
            lines.append(_row(name, result, "", _told(result) if result.found else ""))
    return [*lines, f"{len(lines) - 1} trainers proven: {whole} with 10 of 10"]


def _row(name: str, result: Result, true: str, found: str) -> str:
    states = list(result.states.values())
    unknown = states.count("CANNOT TELL")
    passes = f"{states.count('PASS')} of 10" + (f", {unknown} unknown" if unknown else "")
    return ROW.format(name, passes, true, found or "none", f"{result.seconds:.0f}")


def main(words: list[str]) -> int:
    """Prove what has no result yet, and print the tables. Returns the exit code."""
    names = [word for word in words if word != "--keep"]
    scripts = planted.load()
    wanted = [case for case in cases(scripts) if not names or {case.name, case.name.partition("/")[0]} & {*names}]
    if not wanted or (names and names != words):
        told = "give either --keep or names" if wanted else f"{', '.join(names)}: no such script, defect or trainer"
        print(f"error: {told}", file=sys.stderr)
        return 2
    digests = {case.name: case.digest for case in wanted}
    kept = {name: row for name, row in results().items() if digests.get(name) == row.digest}
    if "--keep" in words:
        keep(kept)
        wanted = [case for case in wanted if case.name in kept]
    left = [case for case in wanted if case.name not in kept]
    left.sort(key=lambda case: case.starts)  # where the time ends early, most rows are there
    for number, case in enumerate(left, 1):
        print(f"{number} of {len(left)}: {case.name}", file=sys.stderr, flush=True)
        result = carry_out(case)
        if result.states:
            kept[case.name] = result
            ledger.add(RESULTS, asdict(result))
            continue
        print(f"error: {case.name}: {result.errors.strip().rpartition(chr(10))[2]}", file=sys.stderr)
        if result.code >= 0:  # `yard` itself failed, as it would for the next ones
            return 1
    print("\n".join(tables(scripts, kept)))
    return 0 if len(kept) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
