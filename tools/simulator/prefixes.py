"""What stands before a program: `env`, `tini --`, `conda run -n x`, this project's entrypoint."""

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tools.core.tables import load
from tools.simulator.shell import ASSIGNMENT, SHELLS

TABLE: dict[str, Any] = load("simulator/launchers.yaml")
PREFIXES = {name: kind for kind, names in TABLE["prefixes"].items() for name in names}
ENTRYPOINTS = ("training.entrypoint", "training.precompile")  # this project's own; they pass signals on
AGENT = "agent.pyz"  # training.agent: it sends SIGTERM to the process group of what it starts
PYTHON = re.compile(r"python[0-9.]*|pypy3?")
_PYTHON_FLAGS_WITH_VALUE = ("-W", "-X")


@dataclass
class Parent:
    """A process that stays above a program: its name, whether it passes SIGTERM on, and why it stays.

    `forwards` is `all` (to all below it), `child` (to its child), `no` or `unknown`.
    """

    name: str
    forwards: str
    why: str


def behind_prefixes(
    words: list[str], environment: dict[str, str]
) -> tuple[list[str], dict[str, str], tuple[Parent, ...]]:
    """Return the command behind `env`, `tini --`, `conda run -n x` and the like, and what stays above it."""
    parents: list[Parent] = []
    words = list(words)
    while words:
        name = PurePosixPath(words[0]).name
        module, behind = python_module(words[1:]) if PYTHON.fullmatch(name) else (None, [])
        if module in ENTRYPOINTS:
            parents.append(Parent(module, "child", f"{module} starts it"))
            words = behind
            continue
        script = words[1:] if PYTHON.fullmatch(name) else words
        if script and PurePosixPath(script[0]).name == AGENT:
            parents.append(Parent(AGENT, "all", "the agent starts it"))
            words = script[2:] if script[1:2] == ["--"] else script[1:]
            continue
        rest = _split(words[1:]) if name == "env" else words[1:]
        if name in TABLE["runners"]:
            rest = rest[rest.index("run") + 1 :] if "run" in rest else []
        at = _program(name, rest) if name in PREFIXES else len(rest)
        if at >= len(rest):
            break
        given = [match for word in rest[:at] if (match := ASSIGNMENT.match(word))]
        if name in ("env", "sudo"):
            environment = {**environment, **{match[1]: match.string[match.end() :] for match in given}}
        kind = "all" if name == "tini" and "-g" in rest[:at] else PREFIXES[name]
        if kind != "itself":
            parents.append(Parent(name, kind, f"{name} starts it"))
        words = rest[at:]
    return words, environment, tuple(parents)


def _split(words: list[str]) -> list[str]:
    """Return the words of `env` with those in the text behind -S."""
    for at, word in enumerate(words):
        match = re.match(r"-S|--split-string=?", word)
        if match is None and word.startswith("-"):
            continue
        given = [word[match.end() :], *words[at + 1 :]] if match else []
        given = given[1:] if given[:1] == [""] else given
        with contextlib.suppress(ValueError):
            return [*words[:at], *shlex.split(given[0]), *given[1:]] if given else words
    return words


def _program(prefix: str, words: list[str]) -> int:
    """Return the index of the program behind a prefix: the first word that is not the prefix's own."""
    skipped, at = TABLE["words before program"].get(prefix, 0), 0
    candidates: list[int] = []
    while at < len(words):
        name = PurePosixPath(words[at]).name
        if words[at].startswith("-"):
            at += words[at] in TABLE["options with value"].get(prefix, ())
        elif not ASSIGNMENT.match(words[at]) and not re.fullmatch(r"[0-9.,:smhdx-]+", name):
            if PREFIXES[prefix] != "unknown" and len(candidates) == skipped:
                return at
            if PYTHON.fullmatch(name) or name in _STARTERS:
                return at
            candidates.append(at)
        at += 1
    return candidates[skipped] if len(candidates) > skipped else len(words)


_STARTERS = frozenset((*SHELLS, *PREFIXES, "torchrun", "accelerate", "deepspeed", "hyperpodrun", "mpirun"))


def python_module(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the module of `python [flags] -m MODULE ...` and the words after it; the module is None for a script."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in _PYTHON_FLAGS_WITH_VALUE else rest[1:]
    if len(rest) >= 2 and rest[0] == "-m":
        return rest[1], rest[2:]
    return None, rest
