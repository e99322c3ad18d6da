"""The rule on secrets: everyone who pulls an image can read its ARG, ENV, RUN and copied files."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from tools.core import Verdict, bad, doubtful, good, secret_patterns, tables
from tools.image.dockerfile.dockerignore import files
from tools.image.dockerfile.parse import Instruction
from tools.image.rules.rule import Location, Subject, at, rule
from training.run.files import read_bounded

_PATTERNS = tables.patterns("image/patterns.yaml")
SPOKEN = ("a password for .netrc", "an authorization header", "a password of a command", "an AWS secret key")
ASSIGNED = re.compile(r"(?:^|[\s;&|(])(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s;&|]+)")
_CREDENTIALS: dict[str, list[str]] = tables.load("image/tables.yaml")["credentials"]
HARMLESS = _CREDENTIALS["harmless"]
EMPTY = re.compile(r"^$|^\$|^<|^(?:changeme|none|null|false|true|0|1|unset)$", re.IGNORECASE)
REMEDY = "RUN --mount=type=secret,id=NAME at build time, a Kubernetes Secret at run time"


@rule("secrets")
def secrets(subject: Subject) -> Iterator[Verdict]:
    every = [*_before(subject), *(one for _, one in subject.dockerfile.instructions())]
    found = [verdict for one in every for verdict in _instruction(subject, one)]
    yield from found
    if not found:
        yield good(at(subject, subject.dockerfile.stages[0]), "no secret in ARG, ENV, RUN or a copied file")


def _before(subject: Subject) -> list[Instruction]:
    first = subject.dockerfile.stages[0].line
    found = []
    for number, line in enumerate(subject.dockerfile.text.splitlines()[: first - 1], 1):
        words = line.split(maxsplit=1)
        if len(words) == 2 and words[0].upper() == "ARG":
            found.append(Instruction("ARG", words[1], words[1], number, number))
    return found


def _instruction(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    if one.name in ("ARG", "ENV"):
        for name, value in one.pairs:
            if not secret_patterns.is_secret_name(name) or (one.name == "ENV" and EMPTY.match(value)):
                continue
            place = Location(subject.source, one.line, f"{one.name} {name}" + ("=***" if value else ""))
            text = f"the value of {one.name} {name} stays in the image's history"
            # without a default, an ARG before FROM or of another stage does not reach the image
            in_image = any(one in stage.instructions for stage in subject.dockerfile.shipped())
            yield (bad if value or in_image else doubtful)(place, text, REMEDY)
            return
    text = "\n".join([one.raw, *one.heredocs])
    secrets_in = secret_patterns.find(text)
    if secrets_in:
        yield bad(at(subject, one), f"{secrets_in[0].kind} in the Dockerfile", f"revoke it, and {REMEDY}")
    elif one.name == "RUN" and (problem := _in_words(text)):
        yield bad(Location(subject.source, one.line, one.name), problem, REMEDY)
    elif one.name == "RUN" and _PATTERNS["made key"].search(text):
        what = "a private key is made in a layer, and everyone who pulls the image has it"
        yield doubtful(at(subject, one), what, "make it when the container starts, or mount a Secret")
    if one.name in ("COPY", "ADD"):
        yield from _copied(subject, one)


def _in_words(text: str) -> str | None:
    """Return the secret that a command has in its words or leaves in the layer, or None."""
    kind = next((kind for kind in SPOKEN if _PATTERNS[kind].search(text)), None)
    if kind:
        return f"{kind} in the Dockerfile"
    for name, value in ASSIGNED.findall(text):
        bare = value.strip("\"'")
        literal = len(bare) > 3 and not EMPTY.match(bare) and bare[:1] != "`"
        if literal and name.isupper() and secret_patterns.is_secret_name(name):
            return f"the value of {name} in the Dockerfile"
    written = _PATTERNS["written credential"].search(text)
    if written and not _PATTERNS["removed credential"].search(text):
        return f"a file of the layer keeps a credential: {' '.join((written[1] or written[2]).split())}"
    copied = _PATTERNS["copied from a mount"].findall(text)
    kept = (one for one in copied if not re.search(rf"\brm\b[^;&|]{{0,300}}{re.escape(one)}", text))
    path = next(kept, None)
    return f"a secret is copied from its mount to {path}, which stays in the layer" if path else None


def _copied(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    sources = [word.strip("/").removeprefix("./") for word in (one.words or one.value.split())[:-1]]
    named = [word for word in sources if holds_credentials(word) and not _is_certificate(subject.context / word)]
    if named:
        yield bad(at(subject, one), f"a file that holds credentials is copied into a layer: {named[0]}", REMEDY)
        return
    if one.flag("from") is not None:
        return
    sent = _sent(subject, sources)
    for name in sent:
        if holds_credentials(name) and not _is_certificate(subject.context / name):
            remedy = f"{PurePosixPath(name).name} in .dockerignore (**/{PurePosixPath(name).name})"
            yield bad(at(subject, one), f"a file that holds credentials is copied with its directory: {name}", remedy)
            return
    for name in sent:
        if any(fnmatchcase(PurePosixPath(name).name, pattern) for pattern in HARMLESS):
            continue
        for secret in secret_patterns.in_file(subject.context / name):
            text = f"{secret.kind} in {name}, which {one.name} in line {one.line} copies into a layer"
            yield bad(Location(name, secret.line, secret.text), text, f"revoke it, and {REMEDY}")


def _is_certificate(path: Path) -> bool:
    """Return whether a file of the context holds certificates and no key: those of a company's proxy, for example."""
    try:
        text = read_bounded(path, secret_patterns.LARGEST_FILE, follow=True)
    except OSError:
        return False
    return b"-----BEGIN CERTIFICATE-----" in text and b"PRIVATE KEY-----" not in text


def _sent(subject: Subject, sources: list[str]) -> list[str]:
    every = [name for name, _ in files(subject.context, subject.ignore)]
    return [name for name in every if any(source in ("", ".") or _below(name, source) for source in sources)]


def _below(name: str, source: str) -> bool:
    """Return whether a file is what `source` names, or is in a directory that it names."""
    parts, wanted = name.split("/"), source.split("/")
    return len(parts) >= len(wanted) and all(map(fnmatchcase, parts, wanted))


def holds_credentials(path: str) -> bool:
    """Return whether a file of this name usually holds credentials."""
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    if any(fnmatchcase(name, pattern) for pattern in HARMLESS):
        return False
    return any(fnmatchcase(name, pattern) for pattern in _CREDENTIALS["files"]) or not set(parts).isdisjoint(
        _CREDENTIALS["directories"]
    )
