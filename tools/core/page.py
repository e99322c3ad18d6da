"""A page of HTML that needs no other file, runs no script and loads nothing. Every text is escaped and masked."""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from tools.core import output, secret_patterns

TEMPLATE = Path(__file__).with_name("page.html")


def page(title: str, body: str) -> str:
    """Return the page; `body` is HTML."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(title=text(title), body=body)


def text(value: Any) -> str:
    """Return a text for HTML. Characters that hide or reorder other text are shown."""
    return html.escape(output.visible(secret_patterns.mask(str(value)), keep="\n"))


def items(rows: Iterable[Any]) -> str:
    """Return a list of codes, empty without rows."""
    shown = "".join(f"<li><code>{text(row)}</code></li>" for row in rows)
    return f"<ul>{shown}</ul>" if shown else ""


def table(rows: Mapping[str, Any]) -> str:
    """Return a table of names and values."""
    cells = "".join(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>" if cells else "<p>None.</p>"


def grid(head: Sequence[str], rows: Iterable[Sequence[Any]], label: str) -> str:
    """Return a table with a line of names; a narrow screen, and the arrow keys, scroll it sideways."""
    cells = ["".join(f"<td>{text(cell)}</td>" for cell in row) for row in rows]
    if not cells:
        return "<p>None.</p>"
    first = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    around = f'<div class="wide" tabindex="0" role="region" aria-label="{text(label)}">'
    return f"{around}<table><tr>{first}</tr>{body}</table></div>"
