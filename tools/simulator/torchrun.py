"""How a container's command starts Python processes: with which launcher, options and program.

Known forms: `torchrun`, `python -m torch.distributed.run`, `python -m torch.distributed.launch`, plain
`python`, each of them behind `sh -c` or `bash -c` as a single command, and behind this project's entrypoint
(`python -m training.entrypoint`). Anything else is said to be unknown, with what was looked at. torchrun's
options are those of torch/distributed/run.py; a test holds `OPTIONS` and `FLAGS` against the parser of the
installed torch.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NoReturn

from tools.simulator.environment import LONGEST
from tools.simulator.shell import NotSimple, simple_command

SHELLS = ("sh", "bash", "dash", "ash")
# What starts the command that follows it, with the same environment.
ENTRYPOINTS = ("training.entrypoint", "training.precompile")
MODULES = ("torch.distributed.run", "torch.distributed.launch")
OPTIONS = {
    "nnodes": "1:1",
    "nproc-per-node": "1",
    "rdzv-backend": "static",
    "rdzv-endpoint": "",
    "rdzv-id": "none",
    "rdzv-conf": "",
    "max-restarts": "0",
    "monitor-interval": "0.1",
    "start-method": "spawn",
    "event-log-handler": "null",
    "role": "default",
    "log-dir": None,
    "redirects": "0",
    "tee": "0",
    "log-line-prefix-template": "",
    "local-ranks-filter": "",
    "duplicate-stdout-filters": "",
    "duplicate-stderr-filters": "",
    "node-rank": "0",
    "master-addr": "127.0.0.1",
    "master-port": None,
    "local-addr": None,
    "logs-specs": None,
    "numa-binding": None,
    "signals-to-handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "shutdown-timeout": None,
    "print-completion": None,
}
FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}
NOT_FROM_ENVIRONMENT = ("logs-specs", "numa-binding", "print-completion")
NUMBERS = ("node-rank", "master-port", "max-restarts", "shutdown-timeout")
START_METHODS = ("spawn", "fork", "forkserver")
PYTHON_FLAGS_WITH_VALUE = ("-W", "-X")


class BadOptions(Exception):
    """torchrun would refuse these options or PET_ variables. The message says which."""


@dataclass(frozen=True)
class Torchrun:
    """torchrun's options, from the command line and from PET_ variables.

    `words` are the words between the launcher and the program.
    """

    module: str
    words: list[str]
    values: Mapping[str, str | None]
    flags: frozenset[str]

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
        """Return the processes of a node, or None where torchrun counts devices itself (auto, gpu, cpu)."""
        text = self.values["nproc-per-node"] or ""
        if text in ("auto", "gpu", "cpu", "xpu"):
            return None
        try:
            return int(text)
        except ValueError:
            raise BadOptions(f"--nproc-per-node {text} is not a number, auto, gpu or cpu") from None


@dataclass(frozen=True)
class Launch:
    """What one container starts: `torchrun` if that is the launcher; `unknown` names what prevents an answer.

    `behind_entrypoint`: this project's entrypoint starts it, and its exit code says what happened.
    """

    words: list[str]
    environment: dict[str, str]
    torchrun: Torchrun | None = None
    unknown: str = ""
    shown: str = field(default="")

    @property
    def behind_entrypoint(self) -> bool:
        return f"-m {ENTRYPOINTS[0]} " in self.shown


def read(command: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """Parse a container's command under its environment.

    Raises BadOptions when the launcher is torchrun and would refuse its options.
    """
    words, values = list(command), dict(environment)
    shown = " ".join(words)
    words = _behind_entrypoint(words)
    if words and _name(words[0]) in SHELLS:
        try:
            words, values = _behind_shell(words, values)
            words = _behind_entrypoint(words)
        except NotSimple as reason:
            return Launch(words, values, unknown=f"{_name(command[0])} script: {reason}", shown=shown)
    if not words:
        return Launch(words, values, unknown="an empty command", shown=shown)
    if _name(words[0]) == "torchrun":
        return Launch(words, values, torchrun=_torchrun(MODULES[0], words[1:], values), shown=shown)
    if not _name(words[0]).startswith("python"):
        return Launch(words, values, unknown=f"{words[0]} is neither torchrun nor python", shown=shown)
    module, rest = _python_module(words[1:])
    if module in MODULES:
        return Launch(words, values, torchrun=_torchrun(module, rest, values), shown=shown)
    if module is not None and module.split(".")[0] in ("accelerate", "deepspeed", "torch"):
        return Launch(words, values, unknown=f"python -m {module} is another launcher", shown=shown)
    return Launch(words, values, shown=shown)


def _behind_entrypoint(words: list[str]) -> list[str]:
    """Return the command that our entrypoint starts, or `words` unchanged for any other command."""
    if words and _name(words[0]).startswith("python"):
        module, rest = _python_module(words[1:])
        if module in ENTRYPOINTS:
            return _behind_entrypoint(rest)
    return words


def _behind_shell(words: list[str], values: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the single command of `sh -c TEXT`. Shell options that do not change it are skipped."""
    rest = words[1:]
    while rest and rest[0].startswith("-") and "c" not in rest[0].lstrip("-"):
        rest = rest[1:]
    if len(rest) < 2 or not rest[0].startswith("-") or not rest[0].endswith("c"):
        raise NotSimple("it runs a file of the image")
    if len(rest[1]) > LONGEST:
        raise NotSimple(f"it is longer than {LONGEST:,} characters, the limit of Linux")
    return simple_command(rest[1], values)


def _python_module(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the module of `python [flags] -m MODULE ...` and the words after it. The module is None for a
    script.
    """
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2:] if rest[0] in PYTHON_FLAGS_WITH_VALUE else rest[1:]
    if len(rest) >= 2 and rest[0] == "-m":
        return rest[1], rest[2:]
    return None, rest


def _name(word: str) -> str:
    return PurePosixPath(word).name


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOptions(f"torchrun: {message}")


def _torchrun(module: str, words: list[str], environment: Mapping[str, str]) -> Torchrun:
    own = {name: value for name, value in environment.items() if name.startswith("PET_")}
    parser = _parser(module, tuple(sorted(own.items())))
    parsed = parser.parse_args(words)
    behind = len(parsed.training_script_args) + 1
    values = {name: getattr(parsed, name.replace("-", "_")) for name in OPTIONS}
    for name in NUMBERS:
        if values[name] is not None and not _is_integer(values[name]):
            raise BadOptions(f"torchrun: --{name} {values[name]!r} is not an integer")
    if values["start-method"] not in START_METHODS:
        known = ", ".join(START_METHODS)
        raise BadOptions(f"torchrun: --start-method {values['start-method']!r} is none of {known}")
    flags = frozenset(name for name in FLAGS if getattr(parsed, name.replace("-", "_")))
    return Torchrun(module, words[: len(words) - behind], values, flags)


@functools.lru_cache(maxsize=8)  # most pods of a job have the same variables
def _parser(module: str, variables: tuple[tuple[str, str], ...]) -> _Parser:
    """Return a parser like torchrun's: the default of an option is its PET_ variable."""
    environment = dict(variables)
    parser = _Parser(prog="torchrun", add_help=False)
    for name, default in OPTIONS.items():
        known = None if name in NOT_FROM_ENVIRONMENT else environment.get(_variable(name))
        parser.add_argument(*_strings(name), default=default if known is None else known)
    for name in FLAGS:
        parser.add_argument(*_strings(name), action="store_true", default=_flag(name, environment))
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
