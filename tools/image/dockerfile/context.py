"""The build context, and a limit on its size."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.core import UserError
from tools.image.dockerfile import dockerignore

GIB = 2**30
LIMIT = 2 * GIB  # bytes; a checkout without data is far smaller
NAMED = 5
MOST_WILDCARDS, MOST_MATCHES = 6, 10_000  # of a source of COPY


@dataclass(frozen=True)
class Context:
    """The number and bytes of a context's files, its largest directories, and links that leave it."""

    files: int
    size: int
    largest: list[tuple[str, int]]
    outward: list[str]  # `name -> target`

    def warnings(self) -> list[str]:
        more = f" and {len(self.outward) - NAMED} more" if len(self.outward) > NAMED else ""
        shown = ", ".join(self.outward[:NAMED])
        text = f"links that leave the context are sent as links, without their targets: {shown}{more}"
        return [text] if self.outward else []


def matching(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files and directories of a context that a source of COPY names; none for an invalid one.

    Raises UserError for more wildcards than a search through a large context can take.
    """
    parts = [name for name, _ in itertools.groupby(pattern.split("/"))]  # `**/**` is `**`
    if sum(part.count("*") for part in parts) > MOST_WILDCARDS:
        raise UserError(f"COPY {pattern[:80]}: more than {MOST_WILDCARDS} wildcards")
    try:
        yield from itertools.islice(root.glob("/".join(parts)), MOST_MATCHES)
    except (ValueError, NotImplementedError, OSError):
        return


def measure(root: Path, ignore: dockerignore.Ignore) -> Context:
    """Return the context in `root`."""
    top: Counter[str] = Counter()
    number, outward = 0, []
    for name, size in dockerignore.files(root, ignore):
        number += 1
        if (root / name).is_symlink() and _leaves(name, target := os.readlink(root / name)):
            outward.append(f"{name} -> {target}")
        top["/".join(name.split("/")[:2]) + ("/" if name.count("/") > 1 else "")] += size
    return Context(number, sum(top.values()), top.most_common(NAMED), outward)


def guard(root: Path, ignore: dockerignore.Ignore, limit: int = LIMIT) -> Context:
    """Return the context in `root`. Raises UserError with its largest parts if it exceeds `limit` bytes."""
    found = measure(root, ignore)
    if found.size <= limit:
        return found
    largest = ", ".join(f"{name} {shown(size)}" for name, size in found.largest)
    text = f"the context {root} is {shown(found.size)} in {found.files:,} files, and the limit is {shown(limit)}"
    raise UserError(f"{text}: {largest}", "exclude files in .dockerignore, or raise --context-limit")


def _leaves(name: str, target: str) -> bool:
    """Return whether a link leads out of the context; an absolute one always does."""
    end = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return os.path.isabs(target) or end.split(os.sep)[0] == os.pardir


def shown(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
