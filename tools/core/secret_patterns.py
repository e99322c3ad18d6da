"""The shapes of secrets, and where they occur in a text.

In a Dockerfile or a manifest, each value of such a shape is a finding. Code and documentation also show
example tokens: `find(text, examples=False)` leaves these out.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.core.tables import load

LARGEST_FILE = 2**20  # bytes; larger files are data
MOST_IN_FILE = 4  # findings reported for one file

PRIVATE_KEY, ADDRESS = "a private key", "a password in an address"


@dataclass(frozen=True)
class Shape:
    """One kind of secret. The pattern's group, or else the whole match, is the value.

    `hints` are lower-case words, one of which every match contains: a text without them is not searched.
    `real` is what a value must also match to be no example.
    """

    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    real: re.Pattern[str]


_TABLE = load("core/secrets.yaml")
SHAPES = tuple(
    Shape(row["kind"], tuple(row["hints"]), re.compile(row["pattern"]), re.compile(row.get("real", "")))
    for row in _TABLE["shapes"]
)
HINTS = re.compile("|".join(re.escape(hint) for shape in SHAPES for hint in shape.hints))
EXAMPLE, EXAMPLE_HOST = re.compile(_TABLE["example"]), re.compile(_TABLE["example host"])
FEW_CHARACTERS = 8  # different ones; a real token has more
SHORT = 256  # characters of a text whose masked form is kept

# A word that ends a secret's name. A variable with a describing word behind it only describes the secret.
NAME = re.compile(
    rf"(?:^|_|(?-i:(?<=[a-z])(?=[A-Z])))(?:{'|'.join(_TABLE['names'])})(?:$|_(?!{'|'.join(_TABLE['describing'])}))",
    re.IGNORECASE,
)
# Tokens of a tokenizer and counts of them.
NOT_SECRET = re.compile(rf"^(?:\w+_)?(?:{'|'.join(_TABLE['of a tokenizer'])})_TOKEN(?:_IDS?)?$", re.IGNORECASE)
# What stands before a value, with its name as the first group: `NAME=` and `"name": `, then `--name ` of an
# option, then `name: NAME, value: ` of a variable in a manifest.
_NAME, _QUOTE, _BLANKS = r"([A-Za-z_][\w-]{0,127})", r"\\?[\"']?", r"[ \t]{0,8}"
_BEFORE_VALUE = (
    re.compile(rf"(?<!\w)(?!PASS: ){_NAME}({_QUOTE}{_BLANKS}[=:]{_BLANKS})"),  # `PASS: 1 job` is a verdict
    re.compile(rf"(?<![\w-])--?{_NAME}([ \t]{{1,8}})(?=[^\s-])"),
    re.compile(
        rf"(?i)\bname{_QUOTE}{_BLANKS}[=:]{_BLANKS}{_QUOTE}{_NAME}"
        rf"({_QUOTE}[\s,;-]{{1,40}}{_QUOTE}value{_QUOTE}{_BLANKS}[=:]{_BLANKS})"
    ),
)
_ESCAPE = re.compile(r"\\[nrt]")
# A text in quotes, also inside another one, or else all up to a blank. The quotes stay: JSON stays valid.
_VALUE = re.compile(r"""\\"((?:[^"\\]|\\[^"]){0,4096})\\"|"((?:[^"\\]|\\.){0,4096})"|'([^']{0,4096})'|(\S+)""")
_JSON_NUMBER = re.compile(r"(?:[-+.\deE]+|true|false|null)(?=[\s,}\]])")
_WORD = re.compile(r"[a-z]{1,15}(?= )")  # after a colon: `token: not found` is a sentence
# Values that need no name. The group is the value.
_GIVEN_AWAY = tuple(re.compile(pattern) for pattern in _TABLE["given away"])
# One of these is in every text in which `mask` finds something. Most lines of a log have none.
_TELLING = re.compile(f"{HINTS.pattern}|token|key|pass|pwd|pat|secret|credential|auth|bearer|login|cookie|-u|user|:/")


@dataclass(frozen=True)
class Secret:
    """A secret in a text: its kind, and where its value starts and ends."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class FileSecret:
    """A secret in a file: its kind, its line, and the line's text with secrets masked."""

    kind: str
    line: int
    text: str


def find(text: str, examples: bool = True) -> list[Secret]:
    """Return the secrets in `text` by position; `examples=False` leaves out values that are examples."""
    text = _unescaped(text)
    lowered = text.lower()
    if not HINTS.search(lowered):
        return []
    hits = [
        Secret(shape.kind, *match.span(match.re.groups))
        for shape in SHAPES
        if any(hint in lowered for hint in shape.hints)
        for match in shape.pattern.finditer(text)
        if examples or not _is_example(shape, match)
    ]
    found: list[Secret] = []
    for secret in sorted(hits, key=lambda hit: (hit.start, -hit.end)):
        if not found or secret.start >= found[-1].end:
            found.append(secret)
    return found


def mask(text: str) -> str:
    """Return `text` with *** for each secret, and for each value behind a secret's name."""
    return _masked_short(text) if len(text) <= SHORT else _masked(text)


def _masked(text: str) -> str:
    if not _TELLING.search(text.lower()):
        return text
    text = _replaced(text, [(secret.start, secret.end) for secret in find(text)])
    for pattern in _GIVEN_AWAY:
        text = _replaced(text, [match.span(1) for match in pattern.finditer(_unescaped(text))])
    for pattern in _BEFORE_VALUE:
        text = _replaced(text, _named_values(pattern, _unescaped(text)))
    return text


_masked_short = functools.lru_cache(1 << 16)(_masked)  # a thousand pods repeat most of their texts


def _unescaped(text: str) -> str:
    """Return `text` with blanks for escaped line ends: the n of `\\ntoken=` is not a part of the name."""
    return _ESCAPE.sub("  ", text) if "\\" in text else text


def masked(value: Any) -> Any:
    """Return plain data (texts, lists and mappings) with its secrets masked."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list | tuple):
        options = [False, *(isinstance(item, str) and _is_secret_option(item) for item in value)]
        return ["***" if after and isinstance(item, str) else masked(item)
                for after, item in zip(options, value, strict=False)]  # fmt: skip
    if not isinstance(value, dict):
        return value
    found = {
        mask(key) if isinstance(key, str) else key: mask(item) if isinstance(item, str) else masked(item)
        for key, item in value.items()
    }
    named = [key for key, item in found.items() if isinstance(item, str) and is_secret_name(str(key))]
    named += ["value"] if "value" in found and is_secret_name(str(found.get("name"))) else []
    return found | dict.fromkeys(named, "***")


def _is_secret_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word and is_secret_name(word.lstrip("-"))


def _replaced(text: str, spans: list[tuple[int, int]]) -> str:
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], "***"]
        at = end
    return "".join([*parts, text[at:]])


def _named_values(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    """Return where the values behind secrets' names are."""
    spans: list[tuple[int, int]] = []
    for before in pattern.finditer(text):
        if (spans and before.start() < spans[-1][1]) or not is_secret_name(before[1]):
            continue
        value = _VALUE.match(text, before.end())
        json_number = before[2].strip()[:1] in "\"'\\" and _JSON_NUMBER.match(text, before.end())
        if value and not json_number and not (":" in before[2] and _WORD.match(text, before.end())):
            spans.append(value.span(value.lastindex or 0))
    return spans


@functools.lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret."""
    plain = name.replace("-", "_")
    return bool(NAME.search(plain)) and not NOT_SECRET.match(plain)


def in_file(path: Path) -> Iterator[FileSecret]:
    """Yield the first secrets in a file that are not examples. Links, binary, unreadable and large files have none."""
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST_FILE:
            return
        content = path.read_bytes()
    except OSError:
        return
    if b"\0" in content[:8192]:
        return
    text = content.decode("utf-8", errors="replace")
    for secret in find(text, examples=False)[:MOST_IN_FILE]:
        before = text[: secret.start].split("\n")
        after = text[secret.end :].partition("\n")[0]
        yield FileSecret(secret.kind, len(before), mask(f"{before[-1]}***{after}").strip())


def _is_example(shape: Shape, match: re.Match[str]) -> bool:
    value = match[match.re.groups]
    if not shape.real.match(value):
        return True
    if shape.kind == PRIVATE_KEY:  # random base64 may contain any word, and OpenSSH's keys begin with zeros
        return len(set(re.sub(r"-----[^-]*-----", "", value))) < FEW_CHARACTERS
    if shape.kind == ADDRESS and EXAMPLE_HOST.match(match.string, match.end()):
        return True
    return bool(EXAMPLE.search(value)) or len(set(value)) < FEW_CHARACTERS
