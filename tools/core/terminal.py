"""What a person at a terminal sees through rich: a bar, tables that fold, pages that are painted again.

Only `tools.core.output` uses it, and imports it at the first need, because rich takes 0.1 s. Each text arrives as
rich.text.Text, in which rich reads no markup, and without control characters.
"""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

GAP, SHORT = 2, 12  # columns between two cells, and of a cell that never folds
SPEED_SECONDS = 120.0  # the pace of the last two minutes tells how much time is left


def _console() -> Console:
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


class Bar(Progress):
    """A line that moves at the bottom of the terminal, and one below it with details. Lines are printed above it."""

    def __init__(self, title: str) -> None:
        columns = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            TaskProgressColumn("{task.percentage:.0f} %", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        ]
        self.detail = ""
        super().__init__(
            *columns, console=_console(), auto_refresh=False, speed_estimate_period=SPEED_SECONDS, transient=True,
            redirect_stdout=False, redirect_stderr=False, expand=True,
        )  # fmt: skip
        self._one = self.add_task(title, total=None)

    def get_renderables(self) -> Sequence[RenderableType]:
        """Return the bar and its details."""
        detail = Text(self.detail, style="dim", no_wrap=True, overflow="ellipsis")
        return [self.make_tasks_table(self.tasks), *([detail] if self.detail else [])]

    def move(self, title: str, detail: str, done: float | None, total: float | None) -> None:
        """Show where the work is. Without a total the bar only moves."""
        self.detail = detail
        self.update(self._one, description=title, completed=done, total=total, refresh=True)

    def line(self, text: RenderableType) -> None:
        """Print a line above the bar."""
        self.console.print(text, soft_wrap=True)


class Page:
    """Lines and tables that are painted over the ones before them."""

    def __init__(self) -> None:
        self._parts: list[RenderableType] | None = None
        self._shown: list[RenderableType] = []
        self._live = Live(
            console=_console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
            vertical_overflow="ellipsis",
        )  # fmt: skip
        self._live.start()

    def begin(self) -> None:
        """Collect what is printed next."""
        self._parts = []

    def paint(self) -> None:
        """Show what was collected in place of what is there."""
        self._shown, self._parts = self._parts or [], None
        self._live.update(Group(*self._shown, Text("q ends", style="dim")), refresh=True)

    def line(self, text: RenderableType) -> None:
        """Collect a line, or print it above the page."""
        if self._parts is None:
            self._live.console.print(text, soft_wrap=True)
        else:
            self._parts.append(text)

    def stop(self) -> None:
        """Leave what is shown."""
        self._live.update(Group(*self._shown))
        self._live.stop()


def table(rows: Sequence[Sequence[str]], indent: str, colours: Sequence[str | None]) -> Table:
    """Return rows as a table. The first row is its head. A column in which nothing is known is left out.

    Where the terminal is too narrow, what all rows have alike stands below, and only wide cells fold.
    """
    head, *body = rows
    kept = [at for at in range(len(head)) if not body or any(row[at] not in ("", "-") for row in body)]
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    alike: list[int] = []
    if len(indent) + sum(widths.values()) + GAP * len(kept) > _console().width and len(set(map(tuple, body))) > 1:
        alike = [at for at in kept if len({row[at] for row in body}) == 1]
        kept = [at for at in kept if at not in alike]
    below = ", ".join(f"{head[at]} {body[0][at]}" for at in alike)
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    made.caption, made.caption_justify = Text(indent + below) if below else None, "left"
    for number, at in enumerate(kept):
        made.add_column(Text(head[at] if number else indent + head[at]), overflow="fold", no_wrap=widths[at] <= SHORT)
    for row, colour in zip(body, [*colours, *[None] * len(body)], strict=False):
        cells = [row[at] if number else indent + row[at] for number, at in enumerate(kept)]
        made.add_row(*map(Text, cells), style=colour)
    return made


def show(part: RenderableType) -> None:
    """Print a table on standard output."""
    Console(markup=False, emoji=False, highlight=False).print(part)
