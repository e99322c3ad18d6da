"""The shapes of secrets, and where they occur in a text.

In a Dockerfile or a manifest, each value of such a shape is a finding. Code and documentation also show
example tokens: `find(text, examples=False)` leaves these out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    Shape(
        "a GitLab token",
        ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-"),
        re.compile(r"\bgl(?:pat|dt|rt|cbt|ptt)-[\w-]{20,}"),
    ),
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
    Shape("a Google OAuth secret", ("gocspx-", "ya29."), re.compile(r"\b(?:GOCSPX-|ya29\.)[\w-]{20,}")),
    Shape("a Vault token", ("hvs.", "hvb."), re.compile(r"\bhv[sb]\.[\w-]{24,}")),
    Shape(
        "a web token",
        ("eyj",),
        re.compile(r"(?<![\w-])eyJ[\w-]{8,}+\.eyJ[\w-]{8,}+\.[\w-]{8,}"),  # JWT: header, claims and signature
    ),
    Shape(
        "a signature of an address",  # a shared access signature of Azure, a presigned URL of AWS
        ("sig=", "signature="),
        re.compile(r"(?i)[?&;](?:sig|X-Amz-Signature|Signature)=([\w%/+=-]{20,})"),
    ),
    Shape("a key of Azure Storage", ("accountkey=",), re.compile(r"(?i)\bAccountKey=([\w/+]{40,}={0,2})")),
    Shape(
        "a webhook's address",
        ("hooks.slack.com/", "/api/webhooks/", "webhook.office.com/"),
        re.compile(
            r"(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks"
            r"|webhook\.office\.com/webhookb2)/([\w/@-]{20,})"
        ),
    ),
    Shape("a Stripe key", ("k_live_",), re.compile(r"\b[rs]k_live_[0-9A-Za-z]{16,}")),
    Shape(
        PRIVATE_KEY,  # with the lines of the key, or as base64
        ("private key", "ls0tls1crudjtib"),
        re.compile(
            r"-----BEGIN (?:[A-Z]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:\s|\\[nr])++(?:[\w-]{1,40}: [^\n\\]{0,200}|[A-Za-z0-9+/=]{20,}+))*+"
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
HINTS = re.compile("|".join(re.escape(hint) for shape in SHAPES for hint in shape.hints))
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
_VALUE = re.compile(
    r"""\\"((?:[^"\\]|\\[^"]){0,4096})\\"|"((?:[^"\\]|\\.){0,4096})"|'([^']{0,4096})'|(\S+)"""
)
_JSON_NUMBER = re.compile(r"(?:[-+.\deE]+|true|false|null)(?=[\s,}\]])")
_WORD = re.compile(r"[a-z]{1,15}(?= )")  # after a colon: `token: not found` is a sentence
# Values that need no name. The group is the value.
_GIVEN_AWAY = (
    re.compile(
        r"(?i)\bauthorization\\?[\"']?[ \t]{0,8}[=:][ \t]{0,8}\\?[\"']?"
        r"(?:(?:bearer|basic|token|negotiate|digest)[ \t]{1,4})?+([^\s\"'\\]{4,})"
    ),
    re.compile(r"(?i)\bbearer[ \t]{1,4}(?=[^\s\d]{0,64}\d)([\w.~+/=-]{12,})"),
    re.compile(
        r"(?<![\w-])(?:-u|-U|--user|--proxy-user)[ \t=]{1,4}[\"']?(?!\d+:\d+\b)[^\s:\"']{1,256}:(\S+)"
    ),
    re.compile(r"(?i)\blogin\b[^\n]{0,200}?[ \t](?:-p|password)[ \t]{1,8}([^\s-]\S*)"),
    re.compile(r"(?i)\b(?:set-)?cookie:[ \t]{0,8}(\S[^\n]{3,4096})"),
    re.compile(r"://[^\s/:@$<>{}]{0,256}:([^\s/$<>{}]{1,256})@(?!sha256)"),
    re.compile(r"://([^\s/:@$<>{}]{20,256})@"),
)
# One of these is in every text in which `mask` finds something. Most lines of a log have none.
_TELLING = re.compile(
    f"{HINTS.pattern}|token|key|pass|pwd|pat|secret|credential|auth|bearer|login|cookie|-u|user|://"
)


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
    if not _TELLING.search(text.lower()):
        return text
    text = _replaced(text, [(secret.start, secret.end) for secret in find(text)])
    for pattern in _GIVEN_AWAY:
        text = _replaced(text, [match.span(1) for match in pattern.finditer(_unescaped(text))])
    for pattern in _BEFORE_VALUE:
        text = _replaced(text, _named_values(pattern, _unescaped(text)))
    return text


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
    found = {mask(key) if isinstance(key, str) else key: masked(item) for key, item in value.items()}
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
