"""Curves of one run or several over each other: in the terminal with plotext, or as SVG without a library."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tools.job.metrics import series
from tools.job.metrics.series import RunMetrics

LABELS = {"loss": "loss", "tokens_per_s": "tokens/s", "samples_per_s": "samples/s", "mfu": "MFU"}
MARKS = "abcdefghijklmnopqrstuvwxyz"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # safe for colour-blind readers
WIDTH, HEIGHT, MARGIN = 800, 240, 60
NARROWEST = 40  # columns of a chart in a terminal


@dataclass(frozen=True)
class Grid:
    """The range of both axes."""

    left: float
    right: float
    low: float
    high: float

    def across(self, x: float) -> float:
        """Return the position of x between left (0) and right (1)."""
        return (x - self.left) / (self.right - self.left) if self.right > self.left else 0.5

    def up(self, y: float) -> float:
        """Return the position of y between low (0) and high (1). Halves keep the largest floats finite."""
        return (y / 2 - self.low / 2) / (self.high / 2 - self.low / 2) if self.high > self.low else 0.5


def known(runs: Sequence[RunMetrics]) -> list[str]:
    """Return the keys that at least one run has values of, in plotting order."""
    return [key for key in LABELS if any(any(series.curve(run.records, key)) for run in runs)]


def grid(runs: Sequence[RunMetrics], key: str) -> Grid | None:
    """Return the axes that contain all curves of `key`, None if there is no point."""
    points = [point for run in runs for point in series.curve(run.records, key)]
    if not points:
        return None
    steps, values = [x for x, _ in points], [y for _, y in points]
    return Grid(min(steps), max(steps), min(values), max(values))


def text(runs: Sequence[RunMetrics], key: str, width: int = 80, height: int = 17) -> list[str]:
    """Return one chart as lines without colours, empty if no run has values of `key`.

    The mark of a run is `*`, or a letter if there are several. Each column shows the median of its steps.
    """
    import plotext  # type: ignore[import-untyped]

    axes = grid(runs, key)
    if axes is None:
        return []
    width = max(width, NARROWEST)
    plotext.clear_figure()
    plotext.plot_size(width, height)
    plotext.xlim(0, 1)
    plotext.ylim(0, 1)
    for gap in (gap for run in runs for gap in series.gaps(run.records)):
        if axes.left <= gap.after <= axes.right:
            plotext.vertical_line(axes.across(gap.after))
    for index, run in enumerate(runs):
        columns: dict[int, list[float]] = {}
        for step, value in series.curve(run.records, key):
            columns.setdefault(round(axes.across(step) * width), []).append(axes.up(value))
        places = [column / width for column in columns]
        mark = MARKS[index % len(MARKS)] if len(runs) > 1 else "*"
        plotext.scatter(places, [statistics.median(values) for values in columns.values()], marker=mark)
    values = (axes.low, axes.low / 2 + axes.high / 2, axes.high)
    plotext.yticks([axes.up(value) for value in values], [number(value) for value in values])
    steps = (axes.left, axes.right)
    plotext.xticks([axes.across(step) for step in steps], [number(step) for step in steps])
    plotext.xlabel("step")
    chart = plotext.uncolorize(plotext.build())
    return [f"{LABELS[key]}{_legend(runs)}", *(line.rstrip() for line in chart.splitlines())]


def _legend(runs: Sequence[RunMetrics]) -> str:
    restarts = any(series.gaps(run.records) for run in runs)
    names = ", ".join(f"{MARKS[i % len(MARKS)]} {run.name}" for i, run in enumerate(runs))
    parts = [names if len(runs) > 1 else runs[0].name, *(["│ marks a restart"] if restarts else [])]
    return f" ({'; '.join(parts)})"


def svg(runs: Sequence[RunMetrics], keys: Sequence[str]) -> str:
    """Return the charts of `keys`, one below the other, as one SVG document."""
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
    """Return a name with only the characters that XML allows."""
    return escape("".join(one if one.isprintable() else "?" for one in name))


def _chart(runs: Sequence[RunMetrics], key: str, top: int) -> list[str]:
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
        if len(places) == 1:  # a line of one point is invisible
            x, y = places[0]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    return parts


def number(value: float) -> str:
    """Return a number with three significant digits; a whole number with all of them."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    if float(value).is_integer():
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(8, max(0, digits))}f}"
