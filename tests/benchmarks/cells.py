"""How long it takes to render and to judge every cell: `make bench-cells`.

Each round renders all cells with the renderer that `yard` uses, parses them and applies all preflight rules;
the table has the median of the rounds. One process, nothing cached but what the operating system keeps.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import click

from tools import kustomize, output, repo
from tools.cell import Manifests, parse
from tools.preflight.judge import judge, rules

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work returned, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(rounds: int) -> None:
    renderer = kustomize.ensure(repo.root(), output.note)
    names = repo.cells()
    rules()  # importing them is no part of judging
    rendering, parsing, judging = [], [], []
    found: list[Manifests] = []
    for number in range(1, rounds + 1):
        texts, seconds = timed(lambda: [(name, renderer.build(repo.cell_path(name))) for name in names])
        rendering.append(seconds)
        found, seconds = timed(lambda: [parse(text, name) for name, text in texts])  # noqa: B023 - called at once
        parsing.append(seconds)
        _, seconds = timed(lambda: [judge(manifests) for manifests in found])  # noqa: B023 - called at once
        judging.append(seconds)
        output.note(f"round {number} of {rounds}")
    output.table(
        [
            ("machine", f"{platform.machine()}, {os.cpu_count()} cores"),
            ("renderer", f"kustomize {renderer.version} {renderer.source}"),
            ("cells", str(len(names))),
            ("objects", str(sum(len(manifests.objects) for manifests in found))),
            ("rules", str(len(rules()))),
            ("render all", f"{statistics.median(rendering):.2f} s"),
            ("parse all", f"{statistics.median(parsing):.2f} s"),
            ("judge all", f"{statistics.median(judging):.2f} s"),
        ]
    )


if __name__ == "__main__":
    main()
