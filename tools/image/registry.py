"""What a registry has under a name, asked for by the user's own docker with its credentials."""

from __future__ import annotations

import json
import re

from tools.core.errors import UserError
from tools.image.engine import Engine

CANNOT_SEE = 3
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
REPOSITORY = re.compile(
    r"(?:(?:[A-Za-z0-9.-]+\.[A-Za-z0-9.-]+|localhost|[A-Za-z0-9.-]+:\d+|\[[0-9a-fA-F:]+\])(?::\d+)?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
)
LOOPBACK = re.compile(r"^(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?/")
ABSENT = ("no such manifest", "manifest unknown", "name unknown", "not found", "does not exist")


def split(name: str) -> tuple[str, str]:
    """Return repository and tag (or digest) of an image's name; an empty tag where it has none.

    Raises UserError where it is no name by the rules of the OCI distribution specification.
    """
    named, at, digest = name.partition("@")
    head, _, last = named.rpartition("/")
    base, colon, tag = last.partition(":")
    repository = f"{head}/{base}" if head else base
    if not REPOSITORY.fullmatch(repository):
        nearest = re.sub(r"[^a-z0-9._/:-]+", "-", repository.lower()).strip("-/")
        raise UserError(f"{name}: {repository!r} is no repository", f"{nearest}: lower case, without spaces")
    if (colon and not TAG.fullmatch(tag)) or (at and not DIGEST.fullmatch(digest)):
        wrong, right = (
            (digest, "sha256: and 64 hexadecimal digits") if at else (tag, "letters, digits, . _ -")
        )
        raise UserError(f"{name}: {wrong!r} is no {'digest' if at else 'tag'}", right)
    return repository, digest or tag


def host(repository: str) -> str:
    """Return the registry of a repository, as docker understands its name."""
    first, slash, _ = repository.partition("/")
    return first if slash and (":" in first or "." in first or first == "localhost") else "docker.io"


def digest(engine: Engine, name: str) -> str | None:
    """Return the digest that the registry has under a tag or digest, or None where it has none.

    Raises UserError with exit code 3 where the registry does not answer, or does not let us look.
    """
    options = ["--insecure"] if LOOPBACK.match(name) else []
    done = engine.run("manifest", "inspect", "--verbose", *options, name)
    if done.returncode != 0:
        if any(sign in done.stderr.lower() for sign in ABSENT):
            return None
        said = done.stderr.strip().splitlines() or ["no answer"]
        raise UserError(f"{host(name)}: {said[-1]}", "docker login, or is the registry up?", CANNOT_SEE)
    found = json.loads(done.stdout)
    entry = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not isinstance(entry, dict):
        raise UserError(f"{name} is an index of several platforms, which is not what was pushed", code=1)
    return str(entry["Descriptor"]["digest"])
