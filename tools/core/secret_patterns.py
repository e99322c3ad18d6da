"""The shapes of secrets, and where they occur in a text.

In a Dockerfile or a manifest, each value of such a shape is a finding. Code and documentation also show
example tokens: `find(text, examples=False)` leaves these out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    real: re.Pattern[str] = re.compile("")


# Source: the prefixes that the issuers document for their tokens. No repetition is next to an unbounded one
# of the same characters, so that the search time is linear in the length of the text.
SHAPES = (
    Shape("a Hugging Face token", ("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{20,}\b")),
    Shape("an AWS access key", ("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    Shape(
        "an AWS secret key",
        ("access",),
        re.compile(
            r"(?i)aws_?secret_?access_?key[\"']?\s{0,8}[:=]\s{0,8}[\"']?([a-z0-9/+]{40})(?![a-z0-9/+=])"
        ),
    ),
    Shape(
        "a GitHub token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})"),
    ),
    Shape("a GitLab token", ("glpat-",), re.compile(r"\bglpat-[\w-]{20,}")),
    Shape(
        "a Weights & Biases key",  # 40 hexadecimal digits, or 86 characters since wandb 0.22.3
        ("wandb",),
        re.compile(
            r"(?i)wandb(?:_?(?:api_?)?key[\"']?\s{0,8}[:=]|\s{1,8}login(?:\s{1,8}--\S{1,80}){0,8}\s)\s{0,8}[\"']?"
            r"((?:local-)?(?:[0-9a-f]{40}|[\w-]{86}))\b"
        ),
    ),
    Shape(
        "a key for a model's service",
        ("sk-",),
        re.compile(r"\bsk-[\w-]{20,}"),
        real=re.compile(r"(?=.*\d).*[A-Z]"),
    ),
    Shape("a Google API key", ("aiza",), re.compile(r"\bAIza[\w-]{35}")),
    Shape(
        "a Slack token",
        ("xox",),
        re.compile(r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}"),
        real=re.compile(r"(?=.{25}).*\d"),
    ),
    Shape("an NVIDIA key", ("nvapi-",), re.compile(r"\bnvapi-[\w-]{20,}")),
    Shape("a PyPI token", ("pypi-age",), re.compile(r"\bpypi-AgE[\w-]{16,}")),
    Shape("an npm token", ("npm_",), re.compile(r"\bnpm_[A-Za-z0-9]{36}\b")),
    Shape("a Docker token", ("dckr_",), re.compile(r"\bdckr_[po]at_[\w-]{20,}")),
    Shape("a Stripe key", ("k_live_",), re.compile(r"\b[rs]k_live_[0-9A-Za-z]{16,}")),
    Shape(
        PRIVATE_KEY,  # with the lines of the key, or as base64
        ("private key", "ls0tls1crudjtib"),
        re.compile(
            r"-----BEGIN (?:[A-Z]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:\s|\\[nr])+(?:[\w-]{1,40}: [^\n\\]{0,200}|[A-Za-z0-9+/=]{20,}))*"
            r"|LS0tLS1CRUdJTiB[A-Za-z0-9+/]{0,20}?(?:UFJJVkFU|QUklWQVRF|BSSVZBVE)[A-Za-z0-9+/=]*"
        ),
        real=re.compile(r"(?s)LS0t|.*[A-Za-z0-9+/=]{40}"),  # code that looks for keys has the first line only
    ),
    Shape(
        ADDRESS,
        ("://",),
        re.compile(r"\b[a-z][a-z0-9+]{0,15}://[^\s/:@$\"'<>{}]{1,256}:([^\s/:@$\"'<>{}]{3,256})@"),
        real=re.compile(r"(?=.{8})(?=.*\d)(?=.*[A-Za-z])[^%*]*$"),
    ),
)
EXAMPLE = re.compile(
    r"(?i)example|placeholder|your|dummy|fake|redacted|change.?me|sample|insert|replace|secret|passw|dont.?use"
    r"|(.)\1{4,}|\.\.\."
)
EXAMPLE_HOST = re.compile(
    r"localhost|127\.|0\.0\.0\.0|\[|(?:[\w-]+\.)*example\b|(?:host|hostname|server|db|postgres|redis)\b"
)
FEW_CHARACTERS = 8  # different ones; a real token has more

# The words that end a secret's name. A variable with a word of the last group behind them only describes it.
NAME = re.compile(
    r"(?:^|_|(?-i:(?<=[a-z])(?=[A-Z])))"
    r"(?:(?:API|ACCESS|SECRET|PRIVATE|AUTH|LICENSE|SSH|WANDB|ENCRYPTION|SIGNING)_?KEY(?:_ID)?"
    r"|(?:HF|GH|GITHUB|GITLAB|ACCESS|AUTH|API|NPM)?TOKEN|(?:[A-Z]{2})?PASSWORD|PASSWD|PASSPHRASE|PASS(?=$)"
    r"|PWD_HASH|MYSQL_PWD|SECRETS?|CREDENTIALS?|APIKEY|PAT)"
    r"(?:$|_(?!FILE|PATH|DIR|NAME|ARN|LENGTH|COUNT|LIMIT|TYPE|UR[LI]|ENDPOINT|TTL|TIMEOUT|EXPIR|SIZE|HEADER|STORE"
    r"|PROVIDER|BACKEND|MANAGER|REGION|VERSION|ALGORITHM|MOUNT|POLICY|COMMAND|CMD|HELPER|ENABLED|REQUIRED))",
    re.IGNORECASE,
)
# Tokens of a tokenizer and counts of them.
NOT_SECRET = re.compile(
    r"^(?:\w+_)?(?:PAD|EOS|BOS|UNK|CLS|SEP|MASK|SPECIAL|STOP|START|END|IMAGE|NEXT|FIRST|LAST|PER|NEW|MAX|MIN)_TOKEN(?:_IDS?)?$",
    re.IGNORECASE,
)
PAIR = re.compile(r"\b([A-Za-z_]\w{0,127})(=|: )(\"[^\"]*\"|'[^']*'|\S+)")


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
    lowered = text.lower()
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
    """Return `text` with *** for each secret, and for each value after NAME= or NAME: of a secret's name."""
    for secret in reversed(find(text)):
        text = f"{text[: secret.start]}***{text[secret.end :]}"
    return PAIR.sub(lambda pair: f"{pair[1]}{pair[2]}***" if is_secret_name(pair[1]) else pair[0], text)


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret."""
    return bool(NAME.search(name)) and not NOT_SECRET.match(name)


def in_file(path: Path) -> Iterator[FileSecret]:
    """Yield the first secrets in a file that are not examples.

    Links, binary files, unreadable files and files over LARGEST_FILE yield nothing.
    """
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
