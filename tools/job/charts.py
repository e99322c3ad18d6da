"""Charts as SVG for a page of HTML: curves over steps, a heat map, a bar of parts.

Colours are those of the page's style, so that they follow light and dark. Each chart has a title for screen readers.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.core.page import text
from tools.job.metrics.plot import Grid, number

COLOURS = 6  # of the style: c0 to c5
WIDTH, HEIGHT, LEFT, BOTTOM = 520, 220, 64, 22
MOST_POINTS = 400  # of one curve: each is the median of its steps
LEVELS = 8  # of a heat map
MOST_ROWS, MOST_COLUMNS, CELL = 64, 80, 5

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A run's values over its steps, with the steps at which it was started again."""

    name: str
    points: Points
    restarts: Sequence[float] = ()


def curves(title: str, shown: Sequence[Curve]) -> str:
    """Return curves over each other, each in the colour of its place; empty without a point."""
    points = [point for curve in shown for point in curve.points]
    if not points:
        return ""
    steps, values = [x for x, _ in points], [y for _, y in points]
    axes = Grid(min(steps), max(steps), min(values), max(values))
    right, low = WIDTH - 8, HEIGHT - BOTTOM
    parts = [f'<rect class="frame" x="{LEFT}" y="8" width="{right - LEFT}" height="{low - 8}"/>']
    for at, value in ((8, axes.high), ((low + 8) / 2, axes.high / 2 + axes.low / 2), (low, axes.low)):
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.0f}" text-anchor="end">{number(value)}</text>')
    for at, step, anchor in ((LEFT, axes.left, "start"), (right, axes.right, "end")):
        parts.append(f'<text x="{at}" y="{HEIGHT - 6}" text-anchor="{anchor}">step {number(step)}</text>')
    for index, curve in enumerate(shown):
        places = [
            (LEFT + axes.across(x) * (right - LEFT), low - axes.up(y) * (low - 8)) for x, y in _thinned(curve.points)
        ]
        told = f"{curve.name}: {number(curve.points[-1][1])} at the end" if curve.points else curve.name
        parts.append(f'<g class="c{index % COLOURS}"><title>{text(told)}</title>{_drawn(places)}')
        for step in curve.restarts:
            if axes.left <= step <= axes.right:
                x = LEFT + axes.across(step) * (right - LEFT)
                parts.append(
                    f'<path class="restart" d="M{x:.1f} 8V{low}"><title>restart at step {step:g}</title></path>'
                )
        parts.append("</g>")
    return _figure(title, WIDTH, HEIGHT, "".join(parts))


def _drawn(places: Points) -> str:
    if len(places) == 1:  # a line of one point is invisible
        return f'<circle class="dot" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3"/>'
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="curve" points="{line}"/>'


def _thinned(points: Points) -> Points:
    """Return at most MOST_POINTS points: medians of values that follow each other."""
    each = -(-len(points) // MOST_POINTS)
    groups = [points[at : at + each] for at in range(0, len(points), max(1, each))]
    return [(group[-1][0], statistics.median(y for _, y in group)) for group in groups]


def heat(title: str, rows: Sequence[Sequence[float]], first: float, last: float) -> str:
    """Return a row for each rank and a column for steps from `first` to `last`: the larger, the darker."""
    values = sorted(value for row in rows for value in row)
    if not values:
        return ""
    high, low = values[int(0.99 * len(values))], values[0]
    each, together = -(-len(rows[0]) // MOST_COLUMNS), -(-len(rows) // MOST_ROWS)
    cells: dict[int, list[str]] = {}
    for y, group in enumerate(_groups(rows, together)):
        columns = [max(max(row[at : at + each]) for row in group) for at in range(0, len(rows[0]), each)]
        for x, value in enumerate(columns):
            level = min(LEVELS - 1, int(LEVELS * (value - low) / (high - low))) if high > low else 0
            cells.setdefault(level, []).append(f"M{x * CELL} {y * CELL}h{CELL}v{CELL}h-{CELL}z")
    across, down = len(columns) * CELL, -(-len(rows) // together) * CELL
    paths = "".join(
        f'<path class="area" fill-opacity="{(level + 1) / LEVELS:.2f}" d="{"".join(found)}"/>'
        for level, found in sorted(cells.items())
    )
    inner = f'<svg x="{LEFT}" y="4" width="{WIDTH - LEFT - 8}" height="{_tall(down)}" viewBox="0 0 {across} {down}" '
    inner += f'preserveAspectRatio="none"><g class="c0">{paths}</g></svg>'
    bottom = _tall(down) + 18
    inner += f'<text x="{LEFT - 6}" y="14" text-anchor="end">rank 0</text>'
    if len(rows) > 1:
        inner += f'<text x="{LEFT - 6}" y="{max(28, _tall(down))}" text-anchor="end">rank {len(rows) - 1}</text>'
    inner += f'<text x="{LEFT}" y="{bottom}">step {number(first)}</text>'
    inner += f'<text x="{WIDTH - 8}" y="{bottom}" text-anchor="end">step {number(last)}</text>'
    return _figure(f"{title}: {number(low)} s (light) to {number(high)} s (dark)", WIDTH, bottom + 6, inner)


def _tall(down: int) -> int:
    return max(32, min(200, 2 * down))


def _groups(rows: Sequence[Sequence[float]], size: int) -> Iterator[Sequence[Sequence[float]]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def bar(title: str, parts: Mapping[str, float]) -> str:
    """Return parts of a whole beside each other, each with its name and share where there is room, and as a title."""
    whole = sum(parts.values())
    if not whole:
        return ""
    shown, left = [], 0.0
    for place, (name, value) in enumerate(parts.items()):
        width = 2 * WIDTH * value / whole
        label = f"{name}: {value / whole:.1%}"
        shown.append(
            f'<g class="c{place % COLOURS}"><title>{text(label)}</title><rect class="area" fill-opacity="0.75" '
            f'x="{left:.1f}" y="0" width="{width:.1f}" height="28"/></g>'
        )
        if width > 7 * len(label):
            shown.append(f'<text x="{left + 4:.1f}" y="44">{text(label)}</text>')
        left += width
    return _figure(title, 2 * WIDTH, 50, "".join(shown))


def _figure(title: str, width: int, height: int, inner: str) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(title)}">'
    return f"<figure><figcaption>{text(title)}</figcaption>{head}{inner}</svg></figure>"


def legend(names: Sequence[str]) -> str:
    """Return the names of runs in their colours."""
    marks = (f'<span class="c{place % COLOURS}">&#9632;</span> {text(name)}' for place, name in enumerate(names))
    return f"<p>{' &nbsp; '.join(marks)}</p>" if len(names) > 1 else ""


def waits(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return what each rank waited for the slowest one, from the times of all ranks in each step."""
    slowest = [max(column) for column in zip(*rows, strict=True)]
    return [[most - own for most, own in zip(slowest, row, strict=True)] for row in rows]


def longest_run(records: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return the newest rows that have as many ranks as the last one."""
    same = itertools.takewhile(lambda row: len(row) == len(records[-1]), reversed(records))
    return list(same)[::-1]
