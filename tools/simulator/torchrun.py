"""torchrun's options, from its command line and from PET_ variables.

They are those of torch/distributed/run.py; a test holds `OPTIONS` and `FLAGS` against the parser of the
installed torch. `hyperpodrun` has them too, and more (hyperpod_elastic_agent/run.py of hyperpod-elastic-agent
1.1.3).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from tools.simulator.expansion import MARK
from tools.simulator.prefixes import TABLE

MODULES = ("torch.distributed.run", "torch.distributed.launch")
_TORCHRUN: dict[str, Any] = TABLE["torchrun"]
OPTIONS: dict[str, str | None] = _TORCHRUN["options"]
FLAGS: list[str] = _TORCHRUN["flags"]
SHORT: dict[str, str] = _TORCHRUN["short"]
START_METHODS: list[str] = _TORCHRUN["start methods"]
HYPERPOD = "hyperpodrun"
PROCESSES = "nproc-per-node"
COUNTED = re.compile(
    r"nvidia-smi [^|]{0,60}(?:-L|--list-gpus|noheader)[^|]{0,40}\| *wc -l|\bdevice_count\(\)"
)  # a pod counts its GPUs
Explain = Callable[[str], str]


class BadOptions(Exception):
    """The launcher would refuse these options or variables. The message says which."""


class UnknownOptions(Exception):
    """What the options are depends on what only the pod knows. The message says on what."""


@dataclass(frozen=True)
class Torchrun:
    """torchrun's options, from the command line and from PET_ variables.

    `words` are the words between the launcher and the program. `unknown` says why a value is not known; it is
    None in `values`. `launcher` is the command that was given, which may translate its own options to these.
    """

    module: str
    words: list[str]
    values: Mapping[str, str | None]
    flags: frozenset[str]
    unknown: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "torchrun"

    def changed(self, launcher: str, values: Mapping[str, str | None], *flags: str) -> Torchrun:
        """Return the options with other values, as `launcher` sets them."""
        unknown = {name: why for name, why in self.unknown.items() if name not in values}
        merged = {**self.values, **values}
        return replace(self, values=merged, flags=self.flags | set(flags), unknown=unknown, launcher=launcher)

    def nodes(self) -> tuple[int, int]:
        """Return the minimum and maximum number of nodes."""
        low, _, high = (self.values["nnodes"] or "").partition(":")
        try:
            result = int(low), int(high or low)
        except ValueError:
            raise BadOptions(f"--nnodes {self.values['nnodes']} is neither N nor MIN:MAX") from None
        if not 0 < result[0] <= result[1]:
            raise BadOptions(f"--nnodes {self.values['nnodes']}: 0 < MIN <= MAX is needed")
        return result

    def processes(self) -> int | None:
        """Return the processes of a node, None where they are unknown or torchrun counts devices (auto, gpu, cpu)."""
        text = self.values[PROCESSES] or ""
        if PROCESSES in self.unknown or text in ("auto", "gpu", "cpu", "xpu"):
            return None
        try:
            return int(text)
        except ValueError:
            raise BadOptions(f"--nproc-per-node {text} is not a number, auto, gpu or cpu") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOptions(f"torchrun: {message}")


def parse(module: str, words: list[str], environment: Mapping[str, str], explain: Explain) -> Torchrun:
    """Parse the words behind `module`. BadOptions: torchrun refuses them. UnknownOptions: a mark leaves it open."""
    own = {name: value for name, value in environment.items() if name.startswith("PET_")}
    parser = _parser(module, tuple(sorted(own.items())))
    _judge_abbreviations(parser, words)
    parsed = parser.parse_args(words)
    if MARK.match(parsed.training_script) and "*" in parsed.training_script:
        raise UnknownOptions(f"the options in {explain(parsed.training_script)}")
    behind = len(parsed.training_script_args) + 1
    values = {name: getattr(parsed, name.replace("-", "_")) for name in OPTIONS}
    unknown = {name: explain(value) for name, value in values.items() if value and MARK.search(value)}
    values |= dict.fromkeys(unknown)
    if COUNTED.search(unknown.get(PROCESSES, "")):
        values[PROCESSES] = "gpu"
        del unknown[PROCESSES]
    for name in _TORCHRUN["numbers"]:
        if values[name] is not None and not _is_integer(values[name]):
            raise BadOptions(f"torchrun: --{name} {values[name]!r} is not an integer")
    if "start-method" not in unknown and values["start-method"] not in START_METHODS:
        known = ", ".join(START_METHODS)
        raise BadOptions(f"torchrun: --start-method {values['start-method']!r} is not one of {known}")
    flags = frozenset(name for name in FLAGS if getattr(parsed, name.replace("-", "_")))
    given = [MARK.sub("...", word) for word in words[: len(words) - behind]]
    return Torchrun(module, given, values, flags, unknown, HYPERPOD if module == HYPERPOD else "torchrun")


def _judge_abbreviations(parser: _Parser, words: list[str]) -> None:
    """Raise UnknownOptions for a program's option with which several of torchrun's begin.

    Python's argparse refuses it behind the program in 3.10.13, 3.11.7, 3.12.1 and 3.13.0, which were tried, and takes
    it from 3.13.1 on (python/cpython, pull request 124760, 7 October 2024).
    """
    known = [text for name in (*OPTIONS, *FLAGS) for text in _strings(name)]
    for at, word in enumerate(words[: words.index("--")] if "--" in words else words):
        name = word.partition("=")[0]
        if len(name) > 2 and name not in known and sum(one.startswith(name) for one in known) > 1:
            with contextlib.suppress(BadOptions):
                parser.parse_args(words[:at])
                raise UnknownOptions(
                    f"whether torchrun takes {name} behind the program depends on the image's Python: before 3.13.1"
                    " it may be ambiguous, unless -- stands before the program"
                )


@functools.lru_cache(maxsize=8)  # most pods of a job have the same variables
def _parser(module: str, variables: tuple[tuple[str, str], ...]) -> _Parser:
    """Return a parser like torchrun's: the default of an option is its PET_ variable."""
    environment = dict(variables)
    parser = _Parser(prog="torchrun", add_help=False)
    for name, default in OPTIONS.items():
        known = None if name in _TORCHRUN["not from environment"] else environment.get(_variable(name))
        parser.add_argument(*_strings(name), default=default if known is None else known)
    for name in FLAGS:
        parser.add_argument(*_strings(name), action="store_true", default=_flag(name, environment))
    if module == HYPERPOD:
        for name in TABLE[HYPERPOD]:
            parser.add_argument(*_strings(name))
        parser.add_argument(*_strings("inprocess-restart"), action="store_true")
    if module == MODULES[1]:
        parser.add_argument("--use-env", "--use_env", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _strings(name: str) -> list[str]:
    long = [f"--{name}", f"--{name.replace('-', '_')}"]
    return ([SHORT[name]] if name in SHORT else []) + list(dict.fromkeys(long))


def _variable(name: str) -> str:
    return "PET_" + name.upper().replace("-", "_")


def _flag(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(_variable(name), "0")
    if not _is_integer(text):
        raise BadOptions(f"{_variable(name)} is {text!r}: torchrun needs a number and stops")
    return bool(int(text))


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
