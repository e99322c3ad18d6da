"""The report of a proof: one HTML page that needs no other file."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from tools.core import repo
from tools.core.page import items, page, table, text
from tools.prove.observed import TABLE
from tools.prove.proofs import Saved

TEMPLATE = Path(__file__).with_name("report.html")


def write(path: Path, proof: Saved) -> None:
    """Write the report of a proof, whole or not at all. Raises OSError."""
    repo.write(path, shown(proof))


def shown(proof: Saved) -> str:
    """Return the report as HTML. Whatever comes from the script is escaped, and its secrets are masked."""
    words = proof.name.split(" ", 1) + proof.arguments
    body = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=text(proof.name),
        summary=text(proof.summary()),
        date=text(proof.date),
        command=text(shlex.join(words)),
        claims="\n".join(map(_claim, proof.claims)),
        figures=table(proof.figures),
        not_proven=items(proof.not_proven) or "<p>All claims were tried on the devices that the script wants.</p>",
        versions=table({**proof.versions, **({"image": proof.image} if proof.image else {})}),
    )
    return page(f"Proof of {proof.name}", body)


def _claim(one: Mapping[str, Any]) -> str:
    state, name = str(one["verdict"]), str(one["claim"])
    title = f"{one['number']}. {TABLE['claims'][name]['title']}"
    fix = f"<p>Fix:</p><pre>{text(one['remedy'])}</pre>" if one.get("remedy") else ""
    head = f'<h3><b class="{text(state)}">{text(state)}</b>{text(title)}</h3>'
    return f"<article>{head}<p>{text(one['summary'])}</p>{items(one['evidence'])}{fix}</article>"
