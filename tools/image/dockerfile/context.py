"""What is sent to the engine with a build, and an early stop where it is far more than meant."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tools.core.errors import UserError
from tools.image.dockerfile import dockerignore

GIB = 2**30
LIMIT = 2 * GIB  # bytes; the largest checkout with code alone is far below
NAMED = 5


@dataclass(frozen=True)
class Context:
    """A build context: its files' number and bytes, the largest parts at its top, links that leave it."""

    files: int
    size: int
    largest: list[tuple[str, int]]
    outward: list[str]  # `name -> target`

    def warnings(self) -> list[str]:
        """Return what is sent otherwise than one may think, in words."""
        more = f" and {len(self.outward) - NAMED} more" if len(self.outward) > NAMED else ""
        shown = ", ".join(self.outward[:NAMED])
        text = f"links that leave the context are sent as links, without what they point to: {shown}{more}"
        return [text] if self.outward else []


def measure(root: Path, ignore: dockerignore.Ignore) -> Context:
    """Return what of `root` is sent."""
    top: Counter[str] = Counter()
    number, outward = 0, []
    for name, size in dockerignore.files(root, ignore):
        number += 1
        if (root / name).is_symlink() and _leaves(name, target := os.readlink(root / name)):
            outward.append(f"{name} -> {target}")
        top["/".join(name.split("/")[:2]) + ("/" if name.count("/") > 1 else "")] += size
    return Context(number, sum(top.values()), top.most_common(NAMED), outward)


def guard(root: Path, ignore: dockerignore.Ignore, limit: int = LIMIT) -> Context:
    """Return what of `root` is sent. Raises UserError, with the largest parts named, beyond `limit` bytes."""
    found = measure(root, ignore)
    if found.size <= limit:
        return found
    largest = ", ".join(f"{name} {shown(size)}" for name, size in found.largest)
    raise UserError(
        f"the context {root} is {shown(found.size)} in {found.files:,} files, and the limit is"
        f" {shown(limit)}: {largest}",
        "name what the image does not need in .dockerignore, or raise --context-limit",
    )


def _leaves(name: str, target: str) -> bool:
    """Say whether a link leads out of the context; an absolute one always does."""
    end = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return os.path.isabs(target) or end.split(os.sep)[0] == os.pardir


def shown(size: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
