"""The first lines of the manifests in corpus/: what is wrong, and which rules say so."""

import re
from pathlib import Path


def header(path: Path) -> tuple[str, str, set[str]]:
    """Return the header of a manifest: its fault, its rule, and other rules that report the same fault."""
    head = re.match(
        r"# (?:fault|open): (.*(?:\n#   .*)*)\n# rule: (\S+)(?:\n# also: (.*))?\n",
        path.read_text(encoding="utf-8"),
    )
    assert head, f"{path.name} needs a header: # fault: (or # open:), # rule:, and # also: if there are more"
    return head[1], head[2], set(head[3].split(", ")) if head[3] else set()
