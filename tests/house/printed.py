"""The commands that the pages print, and the test that runs each.

A command in a block marked `sh` must stand in exactly one table of printed.yaml. A new command without a test
fails tests/house/test_docs.py. The tests of AS_PRINTED take their commands from here and run them literally.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from docs import generate, links

FENCE = re.compile(r"^(?P<mark>`{3,})(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=mark)$", re.MULTILINE | re.DOTALL)
KINDS = {"sh", "text", "yaml", "json", "mermaid", "python", "diff"}
_TABLES = YAML(typ="safe", pure=True).load(Path(__file__).with_suffix(".yaml"))
AS_PRINTED: dict[str, list[str]] = _TABLES["as_printed"]
IN_OTHER_WORDS: dict[str, list[str]] = _TABLES["in_other_words"]
NOT_RUN: dict[str, str] = _TABLES["not_run"]
EXAMPLES = generate.COMMANDS  # its blocks are the examples of the help texts, which have their own test


@dataclass(frozen=True)
class Printed:
    """One command line of a page."""

    page: str
    line: str


def fences(page: Path) -> list[tuple[str, str]]:
    """Return kind and text of each fenced block of a page."""
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [(match["kind"], match["text"]) for match in found]


def lines(text: str) -> list[str]:
    """Return the commands of a block: continued lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", text)
    found = (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in joined.splitlines())
    return [line for line in found if line]


def printed(root: Path = generate.ROOT) -> list[Printed]:
    """Return the commands of all pages in the order in which a reader meets them."""
    pages = [page for page in links.pages(root) if page != EXAMPLES]
    first = ("tutorials/first-run", "tutorials/fine-tune", "weights")
    order = [links.README, *(f"{links.DOCS}/{name}.md" for name in first)]
    pages.sort(key=lambda page: order.index(page) if page in order else len(order))
    return [
        Printed(page, line)
        for page in pages
        for kind, text in fences(root / page)
        if kind == "sh"
        for line in lines(text)
    ]


def run_by(test: str) -> list[str]:
    """Return the commands that a test of AS_PRINTED has to run, each once, in the order of the pages."""
    mine = AS_PRINTED[test]
    return [line for line in dict.fromkeys(command.line for command in printed()) if line in mine]
