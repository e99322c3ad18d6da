"""Watch all jobs: phase, step, loss, speed, time left, price, and the cause where one does not train."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from tools.cli.job import _options
from tools.core import output
from tools.job import top
from tools.kube import Kubectl
from tools.kube.kubectl import CANNOT_SEE

if TYPE_CHECKING:  # rich takes 0.1 s, and only this command needs it
    from rich.console import Console
    from rich.table import Table


@_options.cluster
def command(kubectl: Kubectl, everywhere: bool, every: int, once: bool, as_json: bool) -> int:
    found, unseen = top.rows(kubectl, everywhere)
    if as_json:
        output.data({"jobs": [asdict(row) for row in found], "not_seen": unseen})
        return CANNOT_SEE if unseen else 0
    from rich.console import Console

    console = Console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        output.table([top.HEAD, *(tuple(row.cells()) for row in found)], indent="") if found else output.line("no job")
    else:
        _watch(console, kubectl, everywhere, every, found)
    for what, reason in unseen.items():
        output.note(f"not seen: {what}: {reason}")
    return CANNOT_SEE if unseen else 0


def _watch(console: Console, kubectl: Kubectl, everywhere: bool, every: int, found: list[top.Row]) -> None:
    """Repaint the table until Ctrl-C."""
    from rich.live import Live

    with Live(table(found), console=console, auto_refresh=False) as live:
        while True:
            live.refresh()
            time.sleep(every)
            found, _ = top.rows(kubectl, everywhere)
            live.update(table(found))


def table(found: list[top.Row]) -> Table:
    """Return the jobs for a terminal: those with a cause in another colour."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold", caption=f"{len(found)} jobs, Ctrl-C ends")
    for name in top.HEAD:
        shown.add_column(name, overflow="fold")
    for row in found:
        shown.add_row(*(Text(cell) for cell in row.cells()), style="yellow" if row.cause else None)
    return shown
