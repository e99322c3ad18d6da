"""Bounds of YAML that a stranger wrote, counted on the parser's events before anything is built."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

DEEPEST = 100  # mappings and lists in each other; people write ten
MOST_VALUES = 200_000  # of a file, with its keys; a rendered cell has a few hundred
MOST_DOCUMENTS = 10_000
MOST_ALIASED = 100_000  # values that all aliases of a file stand for
LONGEST_NUMBER = 100  # characters
_NUMBER = re.compile(r"[-+]?(?:[0-9_]+|0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+)")


class UnboundedError(ValueError):
    """A text that stands for more than a program should build; `line` counts from 1."""

    def __init__(self, event: Any, reason: str) -> None:
        super().__init__(reason)
        self.line = event.start_mark.line + 1


def check(events: Iterable[Any]) -> None:
    """Consume the events of PyYAML or ruamel.yaml; raise UnboundedError at the first one above a bound."""
    parents: list[tuple[str | None, int]] = []  # the anchor of each open collection, and the values before it
    sizes: dict[str, int] = {}  # values that an alias of this anchor stands for
    values = aliased = documents = 0
    for event in events:
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        if kind == "AliasEvent":
            if anchor in (name for name, _ in parents):
                raise UnboundedError(event, f"*{anchor} is part of the value that it stands for")
            values += sizes.get(str(anchor), 1)
            aliased += sizes.get(str(anchor), 1)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            parents.append((anchor, values))
            values += 1
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            name, before = parents.pop()
            if name is not None:
                sizes[name] = values - before
        elif kind == "DocumentStartEvent":
            documents += 1
        elif kind == "ScalarEvent":
            values += 1
            if anchor is not None:
                sizes[anchor] = 1
            if len(event.value) > LONGEST_NUMBER and event.implicit[0] and _NUMBER.fullmatch(event.value):
                raise UnboundedError(event, f"a number of {len(event.value)} characters")
        if len(parents) > DEEPEST:
            raise UnboundedError(event, f"more than {DEEPEST} mappings and lists in each other")
        if aliased > MOST_ALIASED:
            raise UnboundedError(event, f"the aliases stand for more than {MOST_ALIASED} values")
        if documents > MOST_DOCUMENTS:
            raise UnboundedError(event, f"more than {MOST_DOCUMENTS} documents")
        if values > MOST_VALUES:
            raise UnboundedError(event, f"more than {MOST_VALUES} values")
