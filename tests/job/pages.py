"""Writes the outputs in docs/operating.md: `python -m tests.job.pages`."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from tests.job.conftest import KINDS
from tests.job.situations import SITUATIONS
from tests.job.world import World
from tools.cells import kustomize
from tools.cli import invoke
from tools.core import repo
from tools.kube.manifests import Manifests, parse

PAGE = repo.root() / "docs/operating.md"
BLOCK = re.compile(r"<!-- situation: (\w+) -->\n(?:```text\n.*?```\n)?", re.DOTALL)


def rendered() -> dict[str, Manifests]:
    """The cells of the situations, by name."""
    renderer = kustomize.ensure(repo.root(), print)
    return {name: parse(renderer.build(repo.root() / "overlays" / name), name) for name in KINDS}


def output_of(name: str, cells: dict[str, Manifests]) -> str:
    """The output of `yard job why` in a situation of the corpus."""
    one = next(each for each in SITUATIONS if each.name == name)
    world = World(cells[one.cell], KINDS[one.cell])
    one.plant(world)
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(io.StringIO()) as shown:
        world.snapshot().save(Path(directory))
        invoke(["job", "why", "--from", directory])
    return shown.getvalue()


def written(text: str, cells: dict[str, Manifests]) -> str:
    """The page with the present outputs."""
    block = "{}\n```text\n$ yard job why\n{}```\n"
    return BLOCK.sub(lambda found: block.format(found[0].splitlines()[0], output_of(found[1], cells)), text)


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rendered()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
