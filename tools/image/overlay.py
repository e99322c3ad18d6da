"""A working tree as one layer on an existing image, for development."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools import __version__
from tools.core import Say, UserError, secret_patterns
from tools.image import build, registry, tags
from tools.image.dockerfile import context, dockerignore
from tools.image.engine import Engine, Image
from tools.image.rules.evaluate import Target
from tools.image.rules.secrets import holds_credentials

NAME = "overlay"  # of its record, local/images/overlay.json
DIGITS = 12


@dataclass(frozen=True)
class Overlay:
    """An overlay: its name with a tag of the content, its image, and whether it existed before."""

    name: str
    image: Image
    old: bool


def add(tree: Path, on: str, engine: Engine, say: Say, limit: int = context.LIMIT) -> Overlay:
    """Copy `tree`, filtered by .dockerignore, into the working directory of the image `on`.

    The tag is `dev-` and a digest of the files and of `on`, so that an equal tree is not built again. Raises
    BuildFailed, and UserError if the engine does not have the image, the image has no working directory, or
    the tree is empty, holds a secret or is larger than `limit` bytes.
    """
    registry.split(on)
    engine.check()
    below = engine.image(on)
    if below is None:
        raise UserError(f"the engine has no image {on}", f"docker pull {on}, or yard image build")
    place = engine.text("image", "inspect", "--format", "{{.Config.WorkingDir}}", below.id).strip()
    if place in ("", "/"):
        raise UserError(f"{on} has no working directory, so the code has no place", "WORKDIR /app")
    ignore = dockerignore.read(tree)
    if context.guard(tree, ignore, limit).files == 0:
        raise UserError(f"{tree}: no file to add to {on}", ".dockerignore excludes everything")
    _refuse_secrets(tree, ignore)
    name = f"{registry.split(on)[0]}:dev-{content(tree, ignore, below.id)}"
    existing = engine.image(name)
    if existing is not None:
        return Overlay(name, existing, old=True)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / NAME / "Dockerfile"
        file.parent.mkdir()
        file.write_text(_dockerfile(on, tree, below), encoding="utf-8")
        ignored = tree / ".dockerignore"
        if ignored.is_file():  # the engine first looks beside the Dockerfile
            file.with_name("Dockerfile.dockerignore").write_bytes(ignored.read_bytes())
        _, image = build.build(build.Request(Target(file, tree), (name,), limit=limit), engine, say)
    return Overlay(name, image, old=False)


def content(tree: Path, ignore: dockerignore.Ignore, on: str) -> str:
    """Return a digest of an overlay: paths, executable bits, contents, and the image below."""
    found = hashlib.sha256(on.encode())
    for name, _ in sorted(dockerignore.files(tree, ignore)):
        path = tree / name
        body = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        kind = "link" if path.is_symlink() else "program" if os.access(path, os.X_OK) else "file"
        found.update(f"\0{name}\0{kind}\0{len(body)}\0".encode() + body)
    return found.hexdigest()[:DIGITS]


def _refuse_secrets(tree: Path, ignore: dockerignore.Ignore) -> None:
    for name, _ in dockerignore.files(tree, ignore):
        found = next(secret_patterns.in_file(tree / name), None)
        if found or holds_credentials(name) or name.endswith(".git/config"):
            what = f"{found.kind} in line {found.line}" if found else "by its name"
            raise UserError(f"{name} would be in the image, and holds credentials ({what})", f"{name} in .dockerignore")


def _dockerfile(on: str, tree: Path, below: Image) -> str:
    labels = {
        "org.opencontainers.image.revision": tags.revision(tree),
        "org.opencontainers.image.version": f"{__version__}-dev",
        "org.opencontainers.image.base.digest": below.id,
    }
    shown = " ".join(f'{name}="{value}"' for name, value in labels.items())
    return f"FROM {on}\nCOPY . ./\nLABEL {shown}\n"
