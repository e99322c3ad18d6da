"""Checks of a ledger that hold for every run."""

from __future__ import annotations

import itertools

from training.run.ledger import Ledger


def accounted(found: Ledger) -> int:
    """Assert that each rank's times follow each other, and that all categories are the wall time; return it in ms."""
    for spans in found.ranks.values():
        assert all(span.start < span.end for span in spans)
        assert all(before.end == after.start for before, after in itertools.pairwise(spans))
    assert sum(found.totals.values()) == found.wall
    return found.wall


def doing(found: Ledger, moment: float) -> set[str]:
    """The categories of all ranks at a moment, in seconds since the epoch."""
    at = round(moment * 1000)
    return {span.category for spans in found.ranks.values() for span in spans if span.start <= at < span.end}
