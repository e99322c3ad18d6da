"""The simple commands of a shell script, as far as they are known without running it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.image.dockerfile.parse import Instruction
from tools.simulator.shell import ASSIGNMENT, SHELLS, Unreadable, parse, simple_commands

PREFIXES = frozenset({"sudo", "exec", "command", "env", "nice", "nohup"})


def script(instruction: Instruction) -> str:
    """Return the shell script of a RUN: its own text, or the heredoc that a shell reads."""
    words = instruction.words
    if words is not None:
        return shlex.join(words)
    before = instruction.value.split("<<")[0].split()
    shell = not before or PurePosixPath(before[0]).name in SHELLS
    if instruction.heredocs:
        return "\n".join(instruction.heredocs) if shell else ""
    return instruction.value


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a script, without quotes and the assignments before it.

    Of a text that is not a script, such as one with build arguments in place of commands, each line counts.
    """
    try:
        found = [[_bare(word) for word in words] for words in simple_commands(parse(text.replace("\r", "")))]
    except (Unreadable, RecursionError):
        found = [line.split() for line in re.sub(r"\\\n", " ", text).splitlines()]
    for words in found:
        start = next(
            (n for n, word in enumerate(words) if word not in PREFIXES and not ASSIGNMENT.match(word)), len(words)
        )
        if words[start:]:
            yield words[start:]


def _bare(word: str) -> str:
    """Return a word without its quotes; a substitution stays as it is written."""
    try:
        return word if "$(" in word or "`" in word else "".join(shlex.split(word))
    except ValueError:
        return word


def program(words: list[str]) -> str:
    """Return the name of a command's program, without its directory."""
    return PurePosixPath(words[0]).name
