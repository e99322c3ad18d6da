"""Parse a shell text that is one simple command.

Understood: words, quotes, backslashes, line continuations, comments, `$NAME`, `${NAME}`, `${NAME:-text}`,
variables set before the command, and `exec`. Anything that starts, joins or redirects commands is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LARGEST = 2_097_152  # characters of all words; Linux refuses more
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}$`]*))?\})")
OPERATORS = set(";|&<>()`")
PATTERNS = set("*?[~")


class NotSimple(Exception):
    """The text is more than one simple command. The message names the obstacle."""


def simple_command(text: str, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of the one command in `text`. Raises NotSimple."""
    words = _Reader(text, environment).words()
    values = dict(environment)
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        values[match[1]] = match[2]
        words = words[1:]
    if words and words[0] == "exec":
        words = words[1:]
    if not words:
        raise NotSimple("it has no command")
    return words, values


class _Reader:
    def __init__(self, text: str, environment: Mapping[str, str]) -> None:
        self._text = text.strip()
        self._at = 0
        self._environment = environment
        self._words: list[str] = []
        self._word: list[str] | None = None
        self._length = 0

    def words(self) -> list[str]:
        while self._at < len(self._text):
            self._step()
        self._end_word()
        return self._words

    def _step(self) -> None:
        char = self._text[self._at]
        if char == "\n":
            raise NotSimple("it has several commands, one per line")
        if char in " \t":
            self._at += 1
            self._end_word()
        elif char == "#" and self._word is None:
            self._at = _or_end(self._text.find("\n", self._at), self._text)
        elif char == "\\":
            self._escape()
        elif char == "'":
            self._single()
        elif char == '"':
            self._double()
        elif char == "$":
            self._unquoted(self._expand())
        elif char in OPERATORS:
            raise NotSimple(f"it has the operator {char}")
        elif char in PATTERNS and not (char == "[" and any(self._word or ())):
            raise NotSimple(f"it has a file pattern ({char})")
        else:
            self._add(char)
            self._at += 1

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append("".join(self._word))
        self._word = None

    def _add(self, text: str) -> None:
        self._length += len(text)
        if self._length > LARGEST:
            raise NotSimple(f"it is longer than {LARGEST:,} characters")
        self._word = self._word or []
        self._word.append(text)

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following != "\n":
            self._add(following)
        self._at += 2

    def _single(self) -> None:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise NotSimple("a quote is not closed")
        self._add(self._text[self._at + 1 : end])
        self._at = end + 1

    def _double(self) -> None:
        self._add("")
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "$":
                self._add(self._expand())
            elif char == "`":
                raise NotSimple("it runs another command inside (`)")
            elif char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                self._escape()
            else:
                self._add(char)
                self._at += 1
        raise NotSimple("a quote is not closed")

    def _expand(self) -> str:
        match = VARIABLE.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at : self._at + 12]
            raise NotSimple(f"it has an expansion that only a shell can do ({rest})")
        self._at = match.end()
        value = self._environment.get(match[1] or match[2], "")
        return value or match[3] or ""

    def _unquoted(self, value: str) -> None:
        """Add the value of an unquoted variable. Blanks in it separate words."""
        if value[:1].isspace():
            self._end_word()
        parts = value.split()
        for part in parts[:-1]:
            self._add(part)
            self._end_word()
        if parts:
            self._add(parts[-1])
        if value and value[-1:].isspace():
            self._end_word()


def _or_end(position: int, text: str) -> int:
    return len(text) if position < 0 else position
