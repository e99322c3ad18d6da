"""Names of images, and their digests at a registry, read with the credentials of the user's docker."""

import json
import re

from tools.core import UserError, command_line, output
from tools.image.engine import FOREIGN, Engine, foreign, understood

CANNOT_SEE = 3
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
REPOSITORY = re.compile(
    r"(?=.{1,512}\Z)(?:(?:[A-Za-z0-9.-]+\.[A-Za-z0-9.-]+|localhost|[A-Za-z0-9.-]+:\d+|\[[0-9a-fA-F:]+\])(?::\d+)?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
)
LOOPBACK = re.compile(r"^(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?/")
ABSENT = ("no such manifest", "manifest unknown", "name unknown", "not found", "does not exist")


def split(name: str) -> tuple[str, str]:
    """Return repository and tag (or digest) of an image's name; the tag may be empty.

    Raises UserError for a name that the OCI distribution specification does not allow.
    """
    named, at, digest = name.partition("@")
    head, _, last = named.rpartition("/")
    base, colon, tag = last.partition(":")
    repository = f"{head}/{base}" if head else base
    if not REPOSITORY.fullmatch(repository):
        nearest = re.sub(r"[^a-z0-9._/:-]+", "-", repository.lower()).strip("-/")
        raise UserError(f"{name}: {repository!r} is not a repository", f"{nearest}: lower case, without spaces")
    if (colon and not TAG.fullmatch(tag)) or (at and not DIGEST.fullmatch(digest)):
        if at:
            raise UserError(f"{name}: {digest!r} is not a digest", "sha256: and 64 hexadecimal digits")
        raise UserError(f"{name}: {tag!r} is not a tag", "letters, digits, . _ -")
    return repository, digest or tag


def host(repository: str) -> str:
    """Return the registry of a repository, by docker's rules."""
    first, slash, _ = repository.partition("/")
    return first if slash and (":" in first or "." in first or first == "localhost") else "docker.io"


def digest(engine: Engine, name: str) -> str | None:
    """Return the digest of a tag or digest at its registry, or None if the registry does not have it.

    Raises UserError with exit code 3 if the registry does not answer or refuses access.
    """
    options = ["--insecure"] if LOOPBACK.match(name) else []
    done = engine.run("manifest", "inspect", "--verbose", *options, command_line.operand(name, "an image"))
    if done.returncode != 0:
        if FOREIGN.search(done.stderr):
            raise foreign(host(name))
        if any(sign in done.stderr.lower() for sign in ABSENT):
            return None
        said = done.stderr.strip().splitlines() or ["no answer"]
        raise UserError(f"{host(name)}: {output.short(said[-1])}", "docker login, or check the registry", CANNOT_SEE)
    with understood(host(name)):
        found = json.loads(done.stdout)
        entry = found[0] if isinstance(found, list) and len(found) == 1 else found
        if isinstance(entry, list) and entry:
            raise UserError(f"{name} is an index of several platforms, not the pushed image", code=1)
        return DIGEST.fullmatch(entry["Descriptor"]["digest"])[0]  # type: ignore[index]
