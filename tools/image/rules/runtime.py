"""Rules on how the image runs: its user, its first process, its architecture."""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.core import Verdict, bad, doubtful, good, tables, unclear
from tools.image.dockerfile.context import matching
from tools.image.dockerfile.parse import PLATFORM_ARGS, Instruction, Stage, unresolved
from tools.image.rules.rule import Location, Subject, at, rule
from tools.simulator import launch, script
from tools.simulator.script import Outcome
from tools.simulator.shell import SHELLS
from training.run.files import read_bounded

LARGEST_SCRIPT = 2**20  # bytes of an entrypoint that is read
MOST_SCRIPTS = 5  # scripts that start each other
GIVEN = "program"  # stands for the command that is given when the container is started
OTHER_ARCHITECTURE = {"amd64": re.compile(r"aarch64|arm64"), "arm64": re.compile(r"x86_64|amd64")}
FETCHED = re.compile(r"://|\.(?:whl|deb|rpm|sh|run|tgz|zip|tar(?:\.\w+)?)$")
_PATTERNS = tables.patterns("image/patterns.yaml")
ASKS_ARCHITECTURE, OWN_USER = _PATTERNS["asks for the architecture"], _PATTERNS["own user"]
ROOT = frozenset({"root", "0"})
QUOTED = re.compile(r"(?<!\\)\"(?:[^\"\\]|\\.)*\"|'[^']*'")
ONLY_EXEC = re.compile(r"exec\s+[^\s|&;][^|&;]*$")


@dataclass(frozen=True)
class Made:
    """A file of the image: the COPY or ADD that makes it, its path there, its text or the file of the context."""

    instruction: Instruction
    path: PurePosixPath
    content: str | Path


@rule("user")
def user(subject: Subject) -> Iterator[Verdict]:
    final = subject.dockerfile.final
    instruction, fix = final.last("USER"), "USER 1000:1000, after the last RUN"
    if instruction is None:
        if OWN_USER.search(final.image):
            yield good(at(subject, final), f"{final.image} has its own user")
        else:
            yield doubtful(at(subject, final), "no USER: the image runs as root", fix)
        return
    place, value = at(subject, instruction), instruction.value.strip().strip("\"'")
    name = value.split(":")[0].lower()
    if hole := unresolved(value):
        yield doubtful(place, f"the user depends on the build argument {hole}, which has no default", fix)
    elif name in ROOT:
        yield doubtful(place, "the image runs as root", fix)
    else:
        note = "" if name.isdigit() else ": a name, which runAsNonRoot cannot check without runAsUser"
        yield good(place, f"runs as {value}{note}")


@rule("signals")
def signals(subject: Subject) -> Iterator[Verdict]:
    final = subject.dockerfile.final
    stop = final.last("STOPSIGNAL")
    if stop and stop.value.strip().upper() in ("SIGKILL", "KILL", "9"):
        yield doubtful(at(subject, stop), "SIGKILL leaves no time for a checkpoint", "STOPSIGNAL SIGTERM")
    started = started_by(final)
    if started and started[0].words is None:
        if started[0] not in shell_forms(final):
            yield good(at(subject, started[0]), "the shell is replaced by exec")
        return
    if started:
        yield from _first_process(subject, started)


def shell_forms(final: Stage) -> list[Instruction]:
    """Return the started instructions in shell form, except an `exec`, which replaces the shell."""
    found = [one for one in started_by(final) if one.words is None]
    return [one for one in found if (one.name == "CMD" and final.last("ENTRYPOINT")) or not ONLY_EXEC.match(one.value)]


def started_by(final: Stage) -> list[Instruction]:
    """Return the ENTRYPOINT and CMD that the container starts. An ENTRYPOINT in shell form drops the CMD."""
    entrypoint, command = final.last("ENTRYPOINT"), None
    for stage in reversed(final.lineage()):
        names = [one.name for one in stage.instructions]
        if "CMD" in names:
            command = next(one for one in reversed(stage.instructions) if one.name == "CMD")
        if "CMD" in names or "ENTRYPOINT" in names:  # an ENTRYPOINT drops the CMD of an earlier stage
            break
    drops = entrypoint is not None and entrypoint.words is None
    return [one for one in (entrypoint, None if drops else command) if one is not None]


@rule("platform")
def platform(subject: Subject) -> Iterator[Verdict]:
    wanted = subject.machine.architecture if subject.machine else "amd64"
    for stage in subject.dockerfile.shipped():
        if stage.platform is not None:
            yield from _stage_platform(at(subject, stage), stage.platform, wanted)
    yield from _built_elsewhere(subject)
    if base := _named_architecture(subject, wanted):
        text = f"{base} is an image for another architecture, and the nodes are {wanted}"
        yield bad(at(subject, subject.dockerfile.final.lineage()[0]), text, f"the image for {wanted}")
    for _, one in subject.dockerfile.instructions():
        words = one.value.split() if one.name in ("RUN", "ADD") else []
        files = [word for word in words if FETCHED.search(word.strip("\"';"))]
        match = next((found for word in files if (found := OTHER_ARCHITECTURE[wanted].search(word))), None)
        if match and not ASKS_ARCHITECTURE.search(one.raw + one.value):
            text = f"{match[0]} is downloaded, and the nodes are {wanted}"
            yield bad(at(subject, one), text, f"the file for {wanted}")


def _stage_platform(place: Location, value: str, wanted: str) -> Iterator[Verdict]:
    if "BUILDPLATFORM" in value or "BUILDARCH" in value:
        text = "the image is for the machine that builds it, not for the nodes"
        yield bad(place, text, "--platform=$BUILDPLATFORM only in stages that are not shipped")
    elif hole := unresolved(value):
        if hole not in PLATFORM_ARGS:
            yield unclear(place, f"the platform depends on {hole}, which has no default")
    elif value.rsplit("/", 1)[-1] == wanted or value.split("/")[1:2] == [wanted]:
        yield good(place, f"{value} is the nodes' architecture")
    else:
        yield bad(place, f"the image is for {value}, and the nodes are {wanted}", f"linux/{wanted}")


def _built_elsewhere(subject: Subject) -> Iterator[Verdict]:
    """Find Python packages that a stage for the building machine installs and the image copies."""
    for install in subject.shipped:
        value = install.stage.platform or ""
        if install.stage not in subject.dockerfile.shipped() and "BUILDPLATFORM" in value:
            text = "packages are installed for the machine that builds, and copied to the nodes"
            remedy = "no --platform=$BUILDPLATFORM in a stage that installs packages"
            yield bad(at(subject, install.stage), text, remedy)
            return


def _named_architecture(subject: Subject, wanted: str) -> str | None:
    """Return the base image if its name states another architecture than the nodes'."""
    base = subject.dockerfile.final.image
    names = {
        "amd64": r"^arm(?:64v8|32v7)/|[-_:](?:arm64|aarch64)(?:[-_.]|$)",
        "arm64": r"^amd64/|[-_:](?:amd64|x86_64)(?:[-_.]|$)",
    }
    return base if re.search(names[wanted], base.split("@")[0]) else None


def exec_remedy(instruction: Instruction) -> str:
    if instruction.value.lstrip().startswith("["):
        return "valid JSON: double quotes, and no comma at the end"
    form = exec_form(instruction.raw)
    return f"{instruction.name} {form}" if form else f"{instruction.name} of a script that ends in exec"


def _first_process(subject: Subject, started: list[Instruction]) -> Iterator[Verdict]:
    """Check who gets SIGTERM: follow the first process through its shells and scripts, as a pod would."""
    place, words = at(subject, started[0]), [word for one in started for word in one.words or []]
    if not words or not words[0]:
        return
    if started[0].name == "ENTRYPOINT" and len(started) == 1:
        words.append(GIVEN)
    shell = PurePosixPath(words[0]).name in SHELLS
    remedy = "exec before the command" if "-c" in words else 'exec "$@" as its last line'
    outcome, missing = _follow(subject, words)
    if missing:
        what = f"{missing} is not in the context, so it is unknown whether it ends in exec"
        yield doubtful(place, what, remedy)
    elif outcome.refused:
        yield bad(place, outcome.refused, "a script that begins with #!/bin/sh, and has the mode 0755")
    elif outcome.unreadable:
        yield doubtful(place, f"whether SIGTERM arrives is not known: {outcome.unreadable}", remedy)
    elif not outcome.programs or (shell and outcome.programs[-1].words[0] in (words[0], GIVEN)):
        yield good(place, "the program is given when the container is started")
    else:
        last = (launch.unfamiliar(outcome) or outcome.programs)[-1]
        signalled, why = launch.signalled(last)
        if signalled:
            yield good(place, f"{last.words[0]} gets SIGTERM: {why}")
        else:
            yield doubtful(place, f"the program may not get SIGTERM: {why}", remedy)


def _follow(subject: Subject, words: list[str]) -> tuple[Outcome, str]:
    """Return what the first process starts, and a script of it that cannot be read, or an empty text."""
    files: dict[str, str | None] = {}
    names = [*words]
    for _ in range(MOST_SCRIPTS):
        known = {name: text for name in names if name not in files and (text := written(subject, name))}
        files |= known
        outcome = script.follow(words, {}, files)
        names = [word for one in outcome.programs for word in one.words[:2]]
        if not known or not set(names) - set(files):
            break
    last = outcome.programs[-1].words if outcome.programs else []
    behind = last[1:2] if last and PurePosixPath(last[0]).name in SHELLS else last[:1]
    missing = next((name for name in behind if name.endswith(".sh") and name not in files), "")
    return outcome, missing


def written(subject: Subject, name: str) -> str | None:
    """Return the text of a file of the image that a COPY or ADD of the context or a heredoc made."""
    found = made(subject, name)
    if found is None:
        return None
    if isinstance(found.content, str):
        return found.content
    with contextlib.suppress(OSError):
        return read_bounded(found.content, LARGEST_SCRIPT, follow=True).decode(errors="replace")
    return None


def made(subject: Subject, name: str) -> Made | None:
    """Return the file `name` of the image that a COPY or ADD of the context or a heredoc made, or None."""
    directory, copies = PurePosixPath("/"), []
    for one in subject.dockerfile.final.layers():
        if one.name == "WORKDIR":
            directory /= one.value.strip("\"' ")
        elif one.name in ("COPY", "ADD") and one.flag("from") is None:
            copies.append((one, directory))
    wanted = PurePosixPath(os.path.normpath(directory / name)) if "/" in name else PurePosixPath(name)
    found = (_copied(subject.context, one, place, wanted) for one, place in reversed(copies))
    return next((one for one in found if one is not None), None)


def _copied(context: Path, one: Instruction, place: PurePosixPath, wanted: PurePosixPath) -> Made | None:
    """Return the file `wanted` (a path, or a program's bare name) if this COPY makes it."""
    words = one.words or one.value.split()
    if len(words) < 2:
        return None
    goal = PurePosixPath(os.path.normpath(place / words[-1].strip("\"'")))
    marks = [word.strip("<-\"'") for word in words[:-1] if word.startswith("<<")]
    sources: list[tuple[str, str | Path]] = [*zip(marks, one.heredocs, strict=False)]  # name of a file, content
    for source in words[:-1]:
        if source.startswith("<<") or ".." in source or unresolved(source):
            continue
        for path in matching(context, source.strip("/")) if source.strip("./") else [context]:
            below = wanted.relative_to(goal) if wanted.is_relative_to(goal) else PurePosixPath(wanted.name)
            sources.append((str(below), path / below) if path.is_dir() else (path.name, path))
    for name, content in sources:
        named = wanted in (goal, goal / name) or ("/" not in str(wanted) and wanted.name in (name, goal.name))
        if named and (isinstance(content, str) or content.is_file()):
            bare = goal if wanted.name == goal.name else goal / name
            return Made(one, wanted if wanted.is_absolute() else bare, content)
    return None


def exec_form(command: str, shell: Sequence[str] = ("/bin/sh", "-c")) -> str | None:
    """Return a shell form as an exec form: plain words, or else a shell that ends in exec.

    None if the shell has to stay, as in a pipeline.
    """
    if re.search(r"[|&;<>()$`*?~{}!#]", command):
        text = with_exec(command)
        return None if text is None else json.dumps([*shell, text], ensure_ascii=False)
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if re.match(r"\w+=", command):
        words.insert(0, "env")
    return json.dumps(words, ensure_ascii=False)


def with_exec(command: str) -> str | None:
    """Return a command line with `exec` before its last command; None if that changes what it does."""
    plain = QUOTED.sub(lambda match: "Q" * len(match[0]), command.rstrip("; "))
    start = max((match.end() for match in re.finditer(r"&&|;", plain)), default=0)
    start += len(plain[start:]) - len(plain[start:].lstrip())
    start += len(match[0]) if (match := re.match(r"(?:\w+=\S*\s+)*", plain[start:])) else 0
    last = plain[start:]
    pipes = "||" in plain or re.search(r"(?<![>&])[|&](?![&>])", plain.replace("&&", ""))
    if pipes or last.split()[:1] in ([], ["}"], ["fi"], ["done"]):
        return None
    return command if last.startswith("exec ") else f"{command[:start]}exec {command[start:]}"
