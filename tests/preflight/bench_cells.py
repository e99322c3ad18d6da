"""Measure the time to render and check every cell, and print it as a table.

python -m tests.preflight.bench_cells
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tools.cells import kustomize, locate
from tools.core import output, repo
from tools.kube.manifests import parse
from tools.preflight.evaluate import evaluate
from tools.preflight.rule import rule as rules

PRINTED = "{:<32}{:>12}"


def measure(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the rows of the table. Checking includes parsing the YAML."""
    renderer = kustomize.ensure(repo.root(), output.note)
    count = len(rules.all)  # imports their modules before the clock starts
    start = time.perf_counter()
    texts = {name: renderer.build(repo.root() / name) for name in names}
    rendered = time.perf_counter()
    checked = [evaluate(parse(text, name)) for name, text in texts.items()]
    done = time.perf_counter()
    objects = sum(len(parse(text, name).objects) for name, text in texts.items())
    return [
        ("cells", f"{len(names)}"),
        ("objects", f"{objects}"),
        ("rules", f"{count}"),
        ("verdicts", f"{sum(len(one.verdicts) for one in checked)}"),
        ("seconds to render all", f"{rendered - start:.2f}"),
        ("seconds to preflight all", f"{done - rendered:.2f}"),
    ]


if __name__ == "__main__":
    for name, value in measure(locate.cells()):
        output.line(PRINTED.format(name, value))
