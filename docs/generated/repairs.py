"""What a proof finds, with examples and repairs."""

from __future__ import annotations

import difflib
import textwrap

from docs.generated.markdown import escaped, head
from docs.links import slug
from tests.prove import planted
from tools.core import tables

FRAMEWORKS = {
    "any": "Any framework", "torch": "One process", "ddp": "DDP", "fsdp2": "FSDP2", "transformers": "HF Trainer",
    "accelerate": "accelerate", "lightning": "Lightning",
}  # fmt: skip


def page() -> str:
    """Return docs/reference/repairs.md: each finding of a proof with examples and its repairs."""
    remedies, examples = tables.load("prove/remedies.yaml"), dict[str, list[str]]()
    for script in planted.load().values():
        for one in script.defects:
            examples.setdefault(one.finding, []).append(_example(one, script.text()))
    parts, seen = [head("repairs").rstrip()], dict[str, str]()
    for number, (claim, row) in enumerate(tables.load("prove/claims.yaml")["claims"].items(), start=1):
        parts.append(f"## {number}. {row['title']}")
        for finding in row["findings"]:
            parts.append(f"### {claim}: {finding}")
            parts += examples.get(f"{claim}/{finding}", [])
            text = _repairs(remedies[f"{claim}/{finding}"])
            same = seen.setdefault(text, f"{claim}: {finding}")
            is_new = same == f"{claim}: {finding}"
            parts.append(text if is_new else f"The repairs are those of [{same}](#{slug(same)}).")
    return "\n\n".join(parts) + "\n"


def _repairs(row: str | dict[str, str]) -> str:
    texts = row if isinstance(row, dict) else {"any": row}
    names = {**FRAMEWORKS, "any": FRAMEWORKS["any"] if len(texts) == 1 else "Any other framework"}
    parts = []
    for name in [*(one for one in FRAMEWORKS if one in texts and one != "any"), "any"]:
        sentence, _, code = texts[name].rstrip().partition("\n")
        parts.append(f"**{names[name]}:** {escaped(sentence)}.")
        parts += [f"```python\n{code}\n```"] if code else []
    return "\n\n".join(parts)


def _example(one: planted.Defect, healthy: str) -> str:
    """Return what a planted defect changes in its script, as a diff without the lines around it."""
    rows = list(difflib.unified_diff(healthy.splitlines(), one.text().splitlines(), n=0, lineterm=""))[2:]
    rows = [row for row in rows if row[1:].strip() and not row.startswith("@@") and not row[1:].startswith("import ")]
    lines = textwrap.dedent("\n".join(row[1:] for row in rows)).splitlines()
    diff = [f"{row[0]} {line}" for row, line in zip(rows, lines, strict=True)]
    return "\n".join([f"A {one.state} in `{one.script}.py` ({one.name}):", "", "```diff", *diff, "```"])
