"""Curves of one run or several over each other, in the terminal with plotext."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tools.job.metrics import series
from tools.job.metrics.series import RunMetrics

LABELS = {
    "loss": "loss", "heldout": "held-out loss", "lr": "learning rate", "grad_norm": "gradient norm",
    "tokens_per_s": "tokens/s", "samples_per_s": "samples/s", "mfu": "MFU",
}  # fmt: skip
MARKS = "abcdefghijklmnopqrstuvwxyz"
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
    return [key for key in LABELS if any(any(run.curve(key)) for run in runs)]


def grid(runs: Sequence[RunMetrics], key: str) -> Grid | None:
    """Return the axes that contain all curves of `key`, None if there is no point."""
    points = [point for run in runs for point in run.curve(key)]
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
        for step, value in run.curve(key):
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
