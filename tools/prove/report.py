"""The report of a proof: one HTML page that needs no other file, runs no script and loads nothing."""

import html
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from tools.core import UserError, output, repo, secret_patterns
from tools.prove.observed import TABLE
from tools.prove.proofs import Saved

TEMPLATE = Path(__file__).with_name("report.html")


def write(path: Path, proof: Saved) -> None:
    """Write the report of a proof, whole or not at all. Raises UserError where the file cannot be written."""
    try:
        repo.write(path, page(proof))
    except OSError as problem:
        raise UserError(f"--report {path}: {problem.strerror}") from None


def page(proof: Saved) -> str:
    """Return the report as HTML. Whatever comes from the script is escaped, and its secrets are masked."""
    words = proof.name.split(" ", 1) + proof.arguments
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=_text(proof.name),
        summary=_text(proof.summary()),
        date=_text(proof.date),
        command=_text(shlex.join(words)),
        claims="\n".join(map(_claim, proof.claims)),
        figures=_table(proof.figures),
        not_proven=_list(proof.not_proven) or "<p>All claims were tried on the devices that the script wants.</p>",
        versions=_table({**proof.versions, **({"image": proof.image} if proof.image else {})}),
    )


def _text(value: Any) -> str:
    """Return a text for HTML. Characters that hide or reorder other text are shown."""
    return html.escape(output.visible(secret_patterns.mask(str(value)), keep="\n"))


def _claim(one: Mapping[str, Any]) -> str:
    state, name = str(one["verdict"]), str(one["claim"])
    title = f"{one['number']}. {TABLE['claims'][name]['title']}"
    fix = f"<p>Fix:</p><pre>{_text(one['remedy'])}</pre>" if one.get("remedy") else ""
    head = f'<h3><b class="{_text(state)}">{_text(state)}</b>{_text(title)}</h3>'
    return f"<article>{head}<p>{_text(one['summary'])}</p>{_list(one['evidence'])}{fix}</article>"


def _list(rows: Iterable[Any]) -> str:
    items = "".join(f"<li><code>{_text(row)}</code></li>" for row in rows)
    return f"<ul>{items}</ul>" if items else ""


def _table(rows: Mapping[str, Any]) -> str:
    cells = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>" if cells else "<p>None.</p>"
