"""Proofs that are kept: one file for each script with its arguments, and whether a job has been proven.

What was proven is named by a digest of the program's file, its arguments and the files that a manifest gives it. The
path of the file, the options of a launcher, such as the number of ranks, and the modules that the file imports are not
part of it.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from tools.core import State, UserError, Verdict, output, repo, secret_patterns
from tools.kube import Manifests
from tools.prove.claims import NAMES, NEEDED
from tools.prove.observed import TABLE
from tools.simulator import launch, launchers, node, volumes, wiring
from tools.simulator.shell import SHELLS
from tools.simulator.torchrun import BadOptions, UnknownOptions
from tools.workload import Pod, kinds
from tools.workload.hosts import Hosts

VERSION = 1
LARGEST = 4 << 20  # bytes of a proof or of a file whose content is digested
MOST = 2000  # proofs of a directory
RULE = "proof"
REMEDY = "prove the job's command again, with the same arguments, and keep the file of the proof in that directory"
REASON = "a script that fails its proof loses the run, or trains something else, after it has cost money"


@dataclass(frozen=True)
class Program:
    """What a command starts. `content` is None where the file is not on this machine."""

    name: str  # the file's name, or -m and the module
    arguments: list[str]  # secrets are masked
    content: str | None
    digest: str


@dataclass(frozen=True)
class Saved:
    """A proof file. `claims` has the verdicts as plain data, `figures` what was measured beside them."""

    name: str
    arguments: list[str]
    content: str | None
    digest: str
    date: str  # ISO 8601, UTC
    image: str  # of the manifest, empty without one
    versions: dict[str, str]
    claims: list[dict[str, Any]]
    figures: dict[str, Any] = field(default_factory=dict)
    not_proven: list[str] = field(default_factory=list)
    version: int = VERSION

    def states(self) -> dict[str, State]:
        """Return the verdict on each claim that was looked at."""
        return {str(one["claim"]): State(one["verdict"]) for one in self.claims}

    def summary(self) -> str:
        """Return `9 of 10, resume not exact`."""
        states = self.states()
        passed = sum(state is State.PASS for state in states.values())
        lacks = [_lack(name, states.get(name)) for name in NAMES if states.get(name) is not State.PASS]
        return ", ".join([f"{passed} of {len(NAMES)}", *lacks])


def _lack(name: str, state: State | None) -> str:
    row = TABLE["claims"][name]
    bad = state in (State.FAIL, State.WARN)
    return str(row["otherwise"]) if bad else f"{row['title'].lower()}: {'unknown' if state else 'not tried'}"


def program(command: Sequence[str], directory: Path, files: Mapping[str, str] | None = None) -> Program:
    """Return what a command starts in `directory`. `files` are those that a manifest gives it, by path."""
    try:
        words = launchers.program(launch.read(command, {}).words) or list(command)
    except (BadOptions, UnknownOptions, UserError):
        words = list(command)
    return _program(words, directory, files or {})


def _program(words: Sequence[str], directory: Path, files: Mapping[str, str]) -> Program:
    if PurePosixPath(words[0]).name in SHELLS and len(words) > 1 and not words[1].startswith("-"):
        words = words[1:]
    is_module = words[0] == "-m" and len(words) > 1
    name = f"-m {words[1]}" if is_module else PurePosixPath(words[0]).name
    arguments = list(words[2 if is_module else 1 :])
    places = [words[0], name]
    if is_module:
        path = words[1].replace(".", "/")
        places = [f"{path}.py", f"{path}/__main__.py"]
    content = _content(directory / place for place in places)
    values = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    named = [_content([directory / value]) for value in values]
    given = sorted((path, _digest(text.encode())) for path, text in files.items())
    parts = [name if is_module or content is None else "", content, arguments, named, given]
    return Program(name, list(map(secret_patterns.mask, arguments)), content, _digest(json.dumps(parts).encode()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _content(paths: Iterable[Path]) -> str | None:
    """Return the digest of the first path that is a file, None without one and for a large file."""
    return next((_digest(text) for path in paths if (text := _bytes(path)) is not None), None)


def _bytes(path: Path) -> bytes | None:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        with path.open("rb") as file:
            return file.read(LARGEST)
    except (OSError, ValueError):  # a name that no file can have
        return None


def saved(
    what: Program,
    verdicts: Iterable[Verdict],
    versions: Mapping[str, str],
    figures: Mapping[str, Any],
    not_proven: Iterable[str] = (),
    image: str = "",
) -> Saved:
    """Return the proof of a program as it is kept, with the time of now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    facts = (what.name, what.arguments, what.content, what.digest, now, image, dict(versions))
    return Saved(*facts, [one.as_dict() for one in verdicts], dict(figures), list(not_proven))


def default() -> Path:
    """Return the directory of the proofs of this machine."""
    return repo.local() / "proofs"


def write(proof: Saved, directory: Path | None = None) -> Path:
    """Write a proof whole or not at all, and return its path. It replaces an older one of the same digest."""
    path = (directory or default()) / f"{proof.digest}.json"
    repo.write(path, json.dumps(asdict(proof), indent=1) + "\n")
    return path


def read(path: Path) -> Saved | None:
    """Return a proof, None for a file that is not one of this version."""
    try:
        found = Saved(**json.loads(_bytes(path) or b""))
        texts = [found.name, found.digest, found.date, found.image, *found.arguments]
        for one in found.claims:
            texts += [State(one["verdict"]).value, one["summary"], *one["evidence"], one["remedy"] or ""]
        numbers = all(NAMES.index(one["claim"]) + 1 == one["number"] for one in found.claims)
        good = numbers and found.version == VERSION and all(isinstance(text, str) for text in texts)
        return found if good and datetime.fromisoformat(found.date).tzinfo is not None else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def every(directory: Path) -> list[Saved]:
    """Return the proofs of a directory, the newest first."""
    paths = sorted(directory.glob("*.json"))[:MOST]
    return sorted(filter(None, map(read, paths)), key=lambda one: datetime.fromisoformat(one.date), reverse=True)


def matching(proofs: Iterable[Saved], what: Program, image: str) -> tuple[Saved | None, str]:
    """Return the proof that is nearest to a program, and what differs; nothing differs where it proves this program.

    The images are compared only where the program's file is not on this machine.
    """
    best: tuple[int, Saved | None, str] = (9, None, "")
    for one in proofs:
        if one.name != what.name and one.content != what.content:
            continue
        if what.content is not None and one.digest == what.digest:
            return one, ""
        found: tuple[int, Saved | None, str]
        if one.arguments != what.arguments:
            found = 3, one, f"other arguments: {output.short(shlex.join(one.arguments)) or 'none'}"
        elif what.content is None and image and one.image == image and "@sha256:" in image:
            return one, ""
        elif what.content is None:
            found = 1, one, "a script of this name; the job's own is not on this machine"
        else:
            same = one.content == what.content
            found = 2, one, "another configuration" if same else f"another version of {what.name}"
        best = min(best, found, key=lambda it: it[0])
    return best[1], best[2]


@dataclass(frozen=True)
class Wanted:
    """A program that a job of a manifest starts."""

    program: Program
    image: str
    job: str  # kind/name


def wanted(manifests: Manifests, here: Path, given: node.Given | None = None) -> list[Wanted]:
    """Return each different program that the jobs start. Files are looked for in the directory `here`."""
    found: dict[str, Wanted] = {}
    for job in kinds.find(manifests).workloads:
        try:
            pods = job.ranks() or job.pods()
            for pod in {pod.role: pod for pod in reversed(pods)}.values():
                one = of_pod(pod, Hosts(job, pods), here, given)
                if one is not None:
                    image = str(pod.container.get("image") or "")
                    found.setdefault(one.digest, Wanted(one, image, f"{job.kind}/{job.name}"))
        except (*wiring.NO_PODS, BadOptions):
            continue
    return list(found.values())


def of_pod(pod: Pod, hosts: Hosts, here: Path, given: node.Given | None = None) -> Program | None:
    """Return what a pod starts, None where it trains nothing. Raises UserError and BadOptions where it is unknown."""
    understood = node.launch_of(pod, hosts, given or node.Given())
    if understood.idle:
        return None
    return program(understood.words, here, volumes.texts(pod, pod.container, hosts.job.manifests))


def line(manifests: Manifests, directory: Path | None = None, here: Path | None = None) -> str:
    """Return `proven 2 days ago, 9 of 10, resume not exact` for the job of some manifests, or `not proven`.

    Nothing of the manifests is read where no proof is kept.
    """
    proofs = every(directory or default())
    jobs = wanted(manifests, here or Path.cwd()) if proofs else []
    return "; ".join(dict.fromkeys(_told(*matching(proofs, one.program, one.image)) for one in jobs)) or "not proven"


def _told(proof: Saved | None, differs: str) -> str:
    if proof is None:
        return "not proven"
    return f"proven with {differs}" if differs else f"proven {ago(proof)}, {proof.summary()}"


def ago(proof: Saved) -> str:
    """Return the age of a proof, such as `2 days ago`."""
    minutes = int((datetime.now(UTC) - datetime.fromisoformat(proof.date)).total_seconds() // 60)
    for unit, size in (("day", 1440), ("hour", 60), ("minute", 1)):
        if minutes >= size:
            return f"{output.count(minutes // size, unit)} ago"
    return "just now"


def check(
    directory: Path, manifests: Manifests, given: node.Given | None = None, here: Path | None = None
) -> list[Verdict]:
    """Return a verdict for each program of the jobs: FAIL without a proof and for a proof with a FAIL."""
    if not directory.is_dir():
        raise UserError(f"--proof {directory}: no such directory")
    proofs = every(directory)
    return [
        _judged(one, directory, *matching(proofs, one.program, one.image))
        for one in wanted(manifests, here or Path.cwd(), given)
    ]


def _judged(one: Wanted, directory: Path, proof: Saved | None, differs: str) -> Verdict:
    what = one.program
    details = {"rule": RULE, "object": one.job, "program": what.name, "digest": what.digest}
    evidence = [f"{one.job}: {output.short(shlex.join([*what.name.split(' ', 1), *what.arguments]))}"]
    if proof is None or (differs and what.content is not None):
        summary = f"{what.name} is {_told(proof, differs)}" if proof else f"{what.name} has no proof"
        return Verdict(State.FAIL, summary, [*evidence, f"looked in {repo.shown(directory)}"], REMEDY, details)
    evidence.append(f"{proof.digest}.json, {ago(proof)}: {proof.summary()}")
    if differs:
        return Verdict(State.CANNOT_TELL, f"{what.name} is proven with {differs}", evidence, REMEDY, details)
    states = proof.states()
    bad = [name for name in NAMES if states.get(name) in (State.FAIL, None)]
    unknown = [name for name in NEEDED if states[name] is State.CANNOT_TELL] if not bad else []
    evidence += [
        f"{c['verdict']} {c['number']} {c['claim']}: {output.short(c['summary'])}"
        for c in proof.claims
        if c["claim"] in {*bad, *unknown}
    ]
    state = State.FAIL if bad else State.CANNOT_TELL if unknown else State.PASS
    summary = f"{what.name}: {proof.summary()}"
    return Verdict(state, summary, evidence, REMEDY if state is not State.PASS else None, details)
