"""The command of a user's script in the pods of a cell, whose operator sets torchrun's variables."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from tools.core import UserError, output, tables
from tools.simulator import launchers
from tools.simulator.prefixes import TABLE, behind_prefixes
from tools.simulator.shell import ASSIGNMENT
from tools.simulator.torchrun import MODULES

_TEXTS = tables.load("new/texts.yaml")
MEETING: tuple[str, ...] = tuple(_TEXTS["torchrun's options"])
# Those of launchers that need another command line, or a list of hosts, in each pod: the number of their words,
# or the variable that says the same to the script.
OTHERS: dict[str, dict[str, int | str]] = _TEXTS["launchers' options"]


def words_of(text: str) -> list[str]:
    """Return the words of a command as a shell splits them, with env before variables.

    Raises UserError for one that needs a shell.
    """
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError as problem:
        raise UserError(f"--command: {problem}: {output.short(text)}") from None
    special = next((word for word in words if word and set(word) <= set("();<>|&")), None)
    if special is not None:
        hint = f"start a shell: --command {shlex.quote(f'bash -c {shlex.quote(text)}')}"
        raise UserError(f"--command: {special} needs a shell: {output.short(text)}", hint)
    return ["env", *words] if words and ASSIGNMENT.match(words[0]) else words


def for_pods(words: Sequence[str], nodes: int, said: list[str]) -> list[str]:
    """Return the command without what the cell's own job decides, and add to `said` what has changed.

    torchrun's own options for pods and processes go. On several pods, torchrun also starts what accelerate,
    deepspeed or python would start. A command with other options of theirs, or in a shell, stays: `yard
    wiring` judges it.
    """
    started = behind_prefixes(list(words), {})[0]  # behind env, tini and others
    launcher, rest = launchers.kind(started) if started else ("", [])
    before = list(words[: len(words) - len(rest)])
    if launcher in ("torchrun", *MODULES):
        return [*before, *_without_meeting(rest, said)]
    if nodes == 1 or launcher not in OTHERS:
        return list(words)
    behind, unknown = _behind_options(rest, OTHERS[launcher])
    if unknown:
        said.append(f"the command stays: with {unknown}, only {launcher} knows how the {nodes} pods meet")
        return list(words)
    said.append(f"torchrun starts the ranks of the {nodes} pods, not {launcher}")
    beside = str(PurePosixPath(started[0]).parent / "torchrun") if "/" in started[0] else "torchrun"  # of a venv
    return [*words[: len(words) - len(started)], *(beside if word == "torchrun" else word for word in behind)]


def _without_meeting(words: list[str], said: list[str]) -> list[str]:
    kept: list[str] = []
    dropped: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name = words[at].lstrip("-").partition("=")[0].replace("_", "-")
        step = 2 if "=" not in words[at] and name in TABLE["torchrun"]["options"] else 1
        (dropped if name.startswith(MEETING) else kept).extend(words[at : at + step])
        at += step
    if dropped:
        said.append(f"not taken, because the operator sets it: {shlex.join(dropped)}")
    return [*kept, *words[at:]]


def _behind_options(words: list[str], options: Mapping[str, int | str]) -> tuple[list[str], str]:
    """Return torchrun's command for the script behind the options, and the first option that torchrun cannot take."""
    at = 0
    module: list[str] = []
    variables: list[str] = []
    while at < len(words) and words[at].startswith("-") and (words[at] != "-m" or "m" in options):
        option, equals, value = words[at].lstrip("-").partition("=")
        option = option.replace("_", "-")
        meaning = options.get(option)
        if meaning is None:
            return [], words[at]
        if isinstance(meaning, str):
            variables.append(f"{meaning}={value if equals else ''.join(words[at + 1 : at + 2])}")
        module = ["-m"] if option in ("m", "module") else module
        at += 1 if equals else meaning if isinstance(meaning, int) else 2
    if at >= len(words):
        return [], "no script"
    return [*(["env", *variables] if variables else []), "torchrun", *module, *words[at:]], ""
