"""The simple commands of a shell script, as far as they are known without running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.core.tables import load
from tools.image.dockerfile.parse import Instruction
from tools.simulator.shell import SHELLS

SEPARATORS = frozenset({"&&", "||", ";", "|", "&", "(", ")", "{", "}", "\n", ";;"})
KEYWORDS = frozenset(load("image/tables.yaml")["keywords"])
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
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
    """Yield the words of each simple command of a script, without the assignments before it."""
    words: list[str] = []
    for token in _tokens(text):
        if token in SEPARATORS:
            if words:
                yield words
            words = []
        elif not words and (token in KEYWORDS or ASSIGNMENT.fullmatch(token) or token in PREFIXES):
            continue
        else:
            words.append(token)
    if words:
        yield words


def program(words: list[str]) -> str:
    """Return the name of a command's program, without its directory."""
    return PurePosixPath(words[0]).name


def _tokens(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&(){}")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            yield from list(lexer)
        except ValueError:  # a quote that closes on another line
            yield from line.split()
        yield "\n"
