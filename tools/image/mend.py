"""Build from a repaired copy of a context, so that a repair is tried before anybody writes it down."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.image.dockerfile import dockerignore
from tools.image.fix import Fixed
from tools.image.rules.evaluate import Target


@contextmanager
def repaired(target: Target, fixed: Fixed) -> Iterator[Target]:
    """Yield a target with the repairs in it: a copy of what is sent to the engine, gone afterwards.

    Without a repair it is the target itself. The copy's directory has the name of the original, which the
    image's own name comes from.
    """
    if not fixed.diff:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="yard-fix-") as scratch:
        root = Path(scratch) / "context" / target.context.name
        ignore = dockerignore.read(target.context, target.dockerfile)
        for name, _ in dockerignore.files(target.context, ignore):
            _copy(target.context / name, root / name)
        for path, text in fixed.after.items():
            place = _place(path, target, root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        yield Target(_place(target.dockerfile, target, root), root)


def _place(path: Path, target: Target, root: Path) -> Path:
    """Return where a file has its copy; a Dockerfile may stand beside its context."""
    if path.resolve().is_relative_to(target.context):
        return root / path.resolve().relative_to(target.context)
    return root.parent.parent / "file" / path.parent.name / path.name


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, place, follow_symlinks=False)
