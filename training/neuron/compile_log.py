"""The summary that neuron_parallel_compile prints: how many graphs it found, compiled, and failed to compile.

The lines are from AWS's documentation and logs. Older releases write PARALLEL_COMPILE; newer ones write
NEURON_PARALLEL_COMPILE, and a process id before the level:

    2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total graphs: 2
    2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total successful compilations: 2
    2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total failed compilations: 0
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_TOTAL = re.compile(
    r"\|\|(?:NEURON_)?PARALLEL_COMPILE\|\|: "
    r"Total (graphs|successful compilations|failed compilations): (\d+)\s*$"
)
_WRITER = re.compile(r":\s+(\d+)\s+INFO \|\|")


@dataclass(frozen=True)
class Summary:
    """Numbers of graphs that neuron_parallel_compile found, compiled, and failed to compile."""

    graphs: int
    compiled: int
    failed: int

    @property
    def good(self) -> bool:
        """Whether every graph was compiled; there are none if the cache had all of them."""
        return self.failed == 0 and self.compiled == self.graphs

    def line(self) -> str:
        return f"{self.graphs} graphs: {self.compiled} compiled, {self.failed} failed"


def summaries(lines: Iterable[str]) -> list[Summary]:
    """Return the complete summaries in a log, in order; lines of several nodes may be mixed."""
    open_ones: dict[str, dict[str, int]] = {}
    found = []
    for line in lines:
        match = _TOTAL.search(line)
        if match is None:
            continue
        writer = _WRITER.search(line)
        counts = open_ones.setdefault(writer[1] if writer else "", {})
        if match[1] == "graphs":
            counts.clear()
        counts[match[1]] = int(match[2])
        if len(counts) == 3:
            graphs, compiled, failed = (
                counts[key] for key in ("graphs", "successful compilations", "failed compilations")
            )
            found.append(Summary(graphs, compiled, failed))
            counts.clear()
    return found


def together(found: Iterable[Summary]) -> Summary:
    """Return the sum of several nodes' summaries."""
    parts = list(found)
    return Summary(*(sum(getattr(part, key) for part in parts) for key in ("graphs", "compiled", "failed")))
