"""The findings of hadolint.

Some of them are rules of `yard image check`. The others are remarks, except those that hadolint calls errors.
"""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.core import Verdict, bad, doubtful, repo, tables, unclear
from tools.image.dockerfile.parse import Dockerfile, Instruction
from tools.image.rules.rule import Location, Subject, at, rule
from tools.image.rules.runtime import exec_remedy, shell_forms

SECONDS = 60
WIKI = "https://github.com/hadolint/hadolint/wiki"
_TABLE: dict[str, Any] = tables.load("image/tables.yaml")["hadolint"]
LEAST = {"COPY": 2, "ADD": 2}  # words; all other instructions need one


@dataclass(frozen=True)
class Note:
    """One finding of hadolint. `level` is error, warning, info or style."""

    code: str
    level: str
    line: int
    message: str


@rule("DL1000")
def syntax(subject: Subject) -> Iterator[Verdict]:
    blocks: list[list[Instruction]] = []
    for one in subject.dockerfile.unknown:
        if blocks and one.order == blocks[-1][-1].order + 1:
            blocks[-1].append(one)
        else:
            blocks.append([one])
    lines = subject.dockerfile.text.splitlines()
    for block in blocks:
        first, last = block[0].line, block[-1].end
        span = f"lines {first} to {last} are not" if last > first else "this line is not"
        place = Location(subject.source, first, "".join(lines[first - 1 : first]))
        yield bad(place, f"{span} an instruction of a Dockerfile", "remove it, or write it as a RUN <<EOF")
    short = [one for _, one in subject.dockerfile.instructions() if len(one.value.split()) < LEAST.get(one.name, 1)]
    for one in short:
        yield bad(
            at(subject, one),
            f"{one.name} needs more arguments",
            f"{one.name} <source> <destination>"
            if one.name in LEAST
            else f"{one.name} with a value, or without this line",
        )
    for note in notes(subject.dockerfile) or []:
        if note.code == "DL1000" and not blocks and not short:
            text = "hadolint cannot read this line or the one above it, so it found nothing below"
            yield unclear(_location(subject, note), text, "correct the line, if the builder rejects it")


@rule("DL3025")
def shell_form(subject: Subject) -> Iterator[Verdict]:
    for instruction in shell_forms(subject.dockerfile.final):
        place, name = at(subject, instruction), instruction.name
        if instruction.value.lstrip().startswith("["):
            text = f"{name} is not valid JSON, so /bin/sh gets the list as a command, and does not find it"
            yield bad(place, text, exec_remedy(instruction))
        else:
            text = f"{name} in shell form: /bin/sh is the first process and does not forward SIGTERM"
            yield doubtful(place, text, exec_remedy(instruction))


@rule("hadolint")
def errors(subject: Subject) -> Iterator[Verdict]:
    found = notes(subject.dockerfile)
    if found is None:
        place = at(subject, subject.dockerfile.stages[0])
        text = "hadolint does not run, so DL1000 and its errors were not checked"
        yield unclear(place, text, repo.how_to_install("image"))
    for note in found or []:
        if note.level == "error" and note.code != "DL1000":
            state = bad if note.code in _TABLE["rejected"] else doubtful
            verdict = state(_location(subject, note), note.message, f"see {WIKI}/{note.code}")
            yield replace(verdict, details={**verdict.details, "code": note.code})
        elif note.code in _TABLE["only in bash"]:
            text = f"{note.message.rstrip('.')}: a base whose /bin/sh is dash, such as Ubuntu, ends the build here"
            verdict = doubtful(_location(subject, note), text, 'SHELL ["/bin/bash", "-c"] before it')
            yield replace(verdict, details={**verdict.details, "code": note.code})


def remarks(dockerfile: Dockerfile, verdicts: Iterable[Verdict]) -> list[Note]:
    """Return the findings that no verdict states; none without hadolint."""
    said = {(one.details.get("code", one.details["rule"]), one.details["line"]) for one in verdicts}
    found = notes(dockerfile) or []
    return [note for note in found if not {(note.code, note.line), (_TABLE["same"].get(note.code), note.line)} & said]


def notes(dockerfile: Dockerfile) -> list[Note] | None:
    """Return hadolint's findings, or None if it is not installed or does not run."""
    beside = Path(sys.executable).parent / "hadolint"
    program = str(beside) if beside.is_file() else shutil.which("hadolint")
    return _run(program, _without_heredocs(dockerfile)) if program else None


def _location(subject: Subject, note: Note) -> Location:
    lines = subject.dockerfile.text.splitlines()
    return Location(subject.source, note.line, "".join(lines[note.line - 1 : note.line]))


def _without_heredocs(dockerfile: Dockerfile) -> str:
    """Return the text with empty lines for instructions with a heredoc: hadolint 2.15.1 fails on most."""
    lines = dockerfile.text.removeprefix("\ufeff").splitlines()
    for _, one in dockerfile.instructions():
        if one.heredocs:
            lines[one.line - 1 : one.last] = [""] * (one.last - one.line + 1)
    return "\n".join(lines) + "\n"


@functools.lru_cache(maxsize=64)
def _run(program: str, text: str) -> list[Note] | None:
    command = [program, "--no-fail", "-f", "json", "-"]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return [Note(one["code"], one["level"], int(one["line"]), " ".join(one["message"].split())) for one in found]
