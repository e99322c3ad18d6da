"""Rules on where an image's parts come from: over which connection, and with which known vulnerability."""

import re
from collections.abc import Iterator

from packaging.version import Version

from tools.core import Verdict, doubtful, good, secret_patterns, tables
from tools.facts import compatibility
from tools.image.dockerfile.shell_script import commands, program, script
from tools.image.rules.rule import Subject, at, rule
from tools.image.rules.versions import find_torch

PLAIN = re.compile(r"(?i)\b(?:http|ftp|git)://(?!localhost\b|127\.|\[::1\])[^\s\"']{1,512}")
DOWNLOADS = frozenset(tables.load("image/tables.yaml")["downloads"])
CHECKED = re.compile(r"\bsha(?:256|384|512)sum\b|\bshasum\b|\bgpgv?\b|--require-hashes|--hash=sha256:")
UNCHECKED = tables.patterns("image/patterns.yaml")["unchecked"]
CURL_INSECURE = re.compile(r"-[A-Za-z]{0,8}k[A-Za-z]{0,8}")
INDEX = re.compile(r"(?:PIP|UV)_\w{0,80}(?:INDEX|LINKS)\w*|CONDA_\w{0,80}CHANNEL\w*")
NEURON_TORCH = re.compile(r"pytorch-(?:training|inference)-neuronx:(\d+\.\d+(?:\.\d+)?)")
REMEDY = "https://, or check the file's SHA-256 in the same RUN; ADD --checksum=sha256:..."


@rule("transport")
def transport(subject: Subject) -> Iterator[Verdict]:
    for install in subject.installs:
        if plain := _first(PLAIN, " ".join(install.channels)):
            text = f"{secret_patterns.mask(plain)} is a channel without TLS: what it brings is not checked"
            yield doubtful(at(subject, install.instruction), text, "https:// in the environment file")
    for _, one in subject.dockerfile.instructions():
        text = "\n".join([one.value, *one.heredocs])
        problem = None
        if one.name == "RUN" and not CHECKED.search(script(one)):
            problem = _run(script(one))
        elif one.name == "ADD" and one.flag("checksum") is None:
            problem = _first(PLAIN, text)
        elif one.name in ("ENV", "ARG"):
            indexes = " ".join(value for name, value in one.pairs if INDEX.fullmatch(name))
            problem = _first(UNCHECKED, text) or _first(PLAIN, indexes)
        if problem:
            yield doubtful(at(subject, one), f"{secret_patterns.mask(problem)}: what it brings is not checked", REMEDY)


@rule("advisory")
def advisory(subject: Subject) -> Iterator[Verdict]:
    torch, base = find_torch(subject), NEURON_TORCH.search(subject.dockerfile.final.image)
    release = torch.version if torch else base[1] if base else ""
    place = torch.place if torch else at(subject, subject.dockerfile.final.lineage()[0])
    number = compatibility.version(release)
    for name, row in compatibility.ADVISORIES.items() if number else ():
        if number and number < Version(row["repaired"]):
            text = f"torch {release} has {name}: {row['what']}"
            yield doubtful(place, text, f"torch {row['repaired']} or newer; until then, {row['until']}")
        else:
            yield good(place, f"torch {release} has the repair of {name}")


def _run(text: str) -> str | None:
    """Return what a script downloads or accepts without a check, or None."""
    if found := _first(UNCHECKED, text):
        return found
    for words in commands(text):
        name = program(words)
        if name == "curl" and (option := next(filter(CURL_INSECURE.fullmatch, words), None)):
            return f"curl {option}"
        if name in DOWNLOADS and (found := _first(PLAIN, " ".join(words))):
            return found
    return None


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[0] if match else None
