"""What the benchmark and the fault suite have measured and kept."""

from __future__ import annotations

import json
import textwrap

from docs.generated.markdown import head
from tests.bench import harness
from tests.faults import goals, suite


def performance_page() -> str:
    """Return docs/performance.md: the kept results of the benchmark, one table for each machine."""
    parts = [head("performance").rstrip()]
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(harness.RESULTS.glob("*.json"))]
    for one in kept:
        machine = one["machine"]
        versions = ", ".join(f"{name} {machine[name]}" for name in machine if name not in ("processor", "kind"))
        about = f"`{one['command']}`, commit {one['commit']}, {one['date']}. {versions}."
        parts += [f"## {machine['processor']}", textwrap.fill(about, 120), "\n".join(harness.table_lines(one["rows"]))]
        others = [
            f"{row['name']} ({row['commit']})"
            for row in one["rows"]
            if row.get("commit", one["commit"]) != one["commit"]
        ]
        parts += [textwrap.fill(f"Rows of earlier commits: {'; '.join(others)}.", 120)] if others else []
    if not any(one["command"] == "make bench-gpu" for one in kept):
        parts.append("## On a card\n\n`make bench-gpu` was not run on a card.")
    return "\n\n".join(parts) + "\n"


def faults_table() -> str:
    """Return what the fault suite has measured and kept."""
    if not suite.RESULTS.exists():
        return "\n".join(suite.table_lines(suite.rows_of(suite.read_table(), []))) + "\n"
    rows = json.loads(suite.RESULTS.read_text(encoding="utf-8"))["rows"]
    return "\n".join([*suite.sources(rows), "", *goals.lines(rows), "", *suite.table_lines(rows)]) + "\n"
