"""Curves of one run or several over each other: as text for a terminal, and as SVG without any library.

Text: one character for each column of steps, the letters a, b, c for the runs. SVG: one polyline a run, and a
dashed line where a run was restarted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tools.job.metrics import series
from tools.job.metrics.series import Record

LABELS = {"loss": "loss", "tokens_per_s": "tokens/s", "samples_per_s": "samples/s", "mfu": "MFU"}
MARKS = "abcdefghijklmnopqrstuvwxyz"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by the colour-blind
WIDTH, HEIGHT, MARGIN = 800, 240, 60


@dataclass(frozen=True)
class Run:
    """One run's records, under the name that it has in the plot."""

    name: str
    records: list[Record]


@dataclass(frozen=True)
class Grid:
    """The range of both axes."""

    left: float
    right: float
    low: float
    high: float

    def across(self, x: float) -> float:
        """Return where x lies between left (0) and right (1)."""
        return (x - self.left) / (self.right - self.left) if self.right > self.left else 0.5

    def up(self, y: float) -> float:
        """Return where y lies between low (0) and high (1)."""
        return (y / 2 - self.low / 2) / (self.high / 2 - self.low / 2) if self.high > self.low else 0.5


def known(runs: Sequence[Run]) -> list[str]:
    """Return what at least one run has values of, in the order in which it is plotted."""
    return [key for key in LABELS if any(any(series.curve(run.records, key)) for run in runs)]


def grid(runs: Sequence[Run], key: str) -> Grid | None:
    """Return the axes that hold all curves of `key`, None where there is no point."""
    points = [point for run in runs for point in series.curve(run.records, key)]
    if not points:
        return None
    steps, values = [x for x, _ in points], [y for _, y in points]
    return Grid(min(steps), max(steps), min(values), max(values))


def text(runs: Sequence[Run], key: str, width: int = 78, height: int = 14) -> list[str]:
    """Return one chart as lines, empty where no run has values of `key`."""
    axes = grid(runs, key)
    if axes is None:
        return []
    scale = [number(axes.high), number(axes.high / 2 + axes.low / 2), number(axes.low)]
    room = max(len(word) for word in scale)
    columns = max(10, width - room - 2)
    cells = [[" "] * columns for _ in range(height)]
    for index, run in enumerate(runs):
        mark = MARKS[index % len(MARKS)] if len(runs) > 1 else "*"
        for column, value in _columns(run, key, axes, columns):
            row = round((1 - axes.up(value)) * (height - 1))
            cells[row][column] = mark
        for gap in series.gaps(run.records):
            column = round(axes.across(gap.after) * (columns - 1))
            for row in range(height):
                if 0 <= column < columns and cells[row][column] == " ":
                    cells[row][column] = ":"
    labels = {0: scale[0], height // 2: scale[1], height - 1: scale[2]}
    lines = [f"{LABELS[key]}{_legend(runs)}"]
    lines += [f"{labels.get(row, ''):>{room}} |{''.join(cells[row]).rstrip()}" for row in range(height)]
    left, right = number(axes.left), number(axes.right)
    lines.append(f"{'':>{room}} +{'-' * columns}")
    lines.append(f"{'':>{room}}  {left}{'step':^{max(4, columns - len(left) - len(right))}}{right}")
    return lines


def _columns(run: Run, key: str, axes: Grid, columns: int) -> list[tuple[int, float]]:
    """Return one value a column: the median of the points that fall into it."""
    found: dict[int, list[float]] = {}
    for step, value in series.curve(run.records, key):
        found.setdefault(round(axes.across(step) * (columns - 1)), []).append(value)
    return [(column, statistics.median(values)) for column, values in sorted(found.items())]


def _legend(runs: Sequence[Run]) -> str:
    restarts = any(series.gaps(run.records) for run in runs)
    names = ", ".join(f"{MARKS[i % len(MARKS)]} {run.name}" for i, run in enumerate(runs))
    parts = [names if len(runs) > 1 else runs[0].name, *([": is a restart"] if restarts else [])]
    return f" ({'; '.join(parts)})"


def svg(runs: Sequence[Run], keys: Sequence[str]) -> str:
    """Return the charts of `keys` below each other as one SVG document."""
    height = (HEIGHT + MARGIN) * max(1, len(keys)) + 20 * len(runs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, run in enumerate(runs):
        y, colour = 16 + 20 * index, COLOURS[index % len(COLOURS)]
        parts.append(f'<text x="{MARGIN}" y="{y}" fill="{colour}">{_shown(run.name)}</text>')
    for index, key in enumerate(keys):
        parts += _chart(runs, key, 20 * len(runs) + index * (HEIGHT + MARGIN) + 20)
    return "\n".join([*parts, "</svg>", ""])


def _shown(name: str) -> str:
    """Return a name as XML can have it."""
    return escape("".join(one if one.isprintable() else "?" for one in name))


def _chart(runs: Sequence[Run], key: str, top: int) -> list[str]:
    axes = grid(runs, key)
    assert axes is not None
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 20
    bottom = top + height

    def at(x: float, y: float) -> tuple[float, float]:
        return MARGIN + axes.across(x) * width, bottom - axes.up(y) * height

    parts = [
        f'<rect x="{MARGIN}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
        f'<text x="{MARGIN}" y="{top - 5}">{escape(LABELS[key])}</text>',
        f'<text x="{MARGIN - 5}" y="{top + 10}" text-anchor="end">{number(axes.high)}</text>',
        f'<text x="{MARGIN - 5}" y="{bottom}" text-anchor="end">{number(axes.low)}</text>',
        f'<text x="{MARGIN}" y="{bottom + 15}">step {number(axes.left)}</text>',
        f'<text x="{MARGIN + width}" y="{bottom + 15}" text-anchor="end">{number(axes.right)}</text>',
    ]
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        for gap in series.gaps(run.records):
            if not axes.left <= gap.after <= axes.right:
                continue
            x, _ = at(gap.after, axes.low)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="{colour}" '
                f'stroke-dasharray="4 4"><title>restart at step {gap.after}</title></line>'
            )
        places = [at(*point) for point in series.curve(run.records, key)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        if len(places) == 1:  # a line of one point is not seen
            x, y = places[0]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    return parts


def number(value: float) -> str:
    """Return a number with three digits that count, whole ones whole."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    if float(value).is_integer():
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(8, max(0, digits))}f}"
