"""Tokens in the text of a file: what is one by its shape, and no example of one.

In a Dockerfile each shape is a finding. In a file that is copied, code and its documentation show such shapes
too: what says of itself that it is an example, repeats one character, or names a machine of nobody, is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LARGEST = 2**20  # bytes; nobody writes a token into more, and data is not read
MOST = 4  # findings of one file
SHAPES = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{20,}\b"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "an AWS secret key": re.compile(
        r"(?i)aws_?secret_?access_?key[\"']?\s*[:=]\s*[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
    ),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22,})\b"),
    "a GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "a Weights & Biases key": re.compile(r"(?i)\bwandb_?(?:api_?)?key[\"']?\s*[:=]\s*[\"']?([0-9a-f]{40})\b"),
    "a key for a model's service": re.compile(r"\bsk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[A-Za-z0-9_-]{20,}"),
    "a Google API key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),
    "a Slack token": re.compile(r"\bxox[abeoprs]-(?=[\w-]*\d)[0-9A-Za-z-]{20,}"),
    "an NVIDIA key": re.compile(r"\bnvapi-[A-Za-z0-9_-]{20,}"),
    "a PyPI token": re.compile(r"\bpypi-AgE[A-Za-z0-9_-]{16,}"),
    "an npm token": re.compile(r"\bnpm_[A-Za-z0-9]{36}\b"),
    "a Stripe key": re.compile(r"\b[rs]k_live_[0-9A-Za-z]{16,}"),
    # With what is in it: code that looks for keys has the first line only.
    "a private key": re.compile(
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\s|\\n)+(?:[\w-]+: .*\s+)*[A-Za-z0-9+/=]{40,}"
    ),
    "a password in an address": re.compile(
        r"\b[a-z][a-z0-9+]*://[^\s/:@\"'<>{}$]+:(?=[^@\s]*\d)(?=[^@\s]*[A-Za-z])([^\s/:@\"'<>{}$%*]{8,})@(?!"
        r"localhost|127\.|0\.0\.0\.0|\[|(?:[\w-]+\.)*example\b|host\b|hostname\b|server\b|db\b|postgres\b|redis\b)"
    ),
}
# What each of them begins or is named with: most files have none of these words.
HINT = re.compile(
    r"hf_|AKIA|ASIA|(?i:secret_?access_?key|wandb)|gh[pousr]_|github_pat_|glpat-|sk-|AIza|xox|nvapi-|pypi-AgE"
    r"|npm_|k_live_|PRIVATE KEY|://[^\s/@]+:[^\s/@]+@"
)
EXAMPLE = re.compile(
    r"(?i)example|placeholder|your|dummy|fake|redacted|change.?me|sample|insert|replace|secret|passw|dont.?use"
    r"|(.)\1{4,}|\.\.\."
)
FEW_CHARACTERS = 8  # different ones; a token has many


@dataclass(frozen=True)
class Leak:
    """A token: what it is, its line, and the line's text without it."""

    kind: str
    line: int
    text: str


def of(path: Path) -> list[Leak]:
    """Return the tokens in a file; none of one that is large, is no text or cannot be read."""
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST:
            return []
        content = path.read_bytes()
    except OSError:
        return []
    if b"\0" in content[:8192]:
        return []
    return list(_found(content.decode("utf-8", errors="replace")))[:MOST]


def _found(text: str) -> Iterator[Leak]:
    if not HINT.search(text):
        return
    lines = text.splitlines()
    hits = ((match, kind) for kind, shape in SHAPES.items() for match in shape.finditer(text))
    for match, kind in sorted(hits, key=lambda hit: hit[0].start()):
        token = match[1] if match.re.groups else match[0]
        if _is_example(kind, token):
            continue
        number = text.count("\n", 0, match.start()) + 1
        line = lines[number - 1] if number <= len(lines) else ""
        yield Leak(kind, number, line.replace(token, "***").strip())


def _is_example(kind: str, token: str) -> bool:
    if kind == "a private key":  # OpenSSH's begin with many zeros
        return len(set(re.sub(r"-----[^-]*-----", "", token))) < FEW_CHARACTERS
    return bool(EXAMPLE.search(token)) or len(set(token)) < FEW_CHARACTERS
