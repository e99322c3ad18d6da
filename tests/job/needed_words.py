"""Words without which a pattern cannot match."""

from __future__ import annotations

import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from typing import Any

SHORTEST = 3  # letters of a word that tells lines apart
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}


def of(pattern: str) -> frozenset[str]:
    """Return words in small letters of which each match of a pattern has one; empty if they are not known."""
    return _words(parser.parse(pattern))


def _words(items: Any) -> frozenset[str]:
    """Return the words of the part that says the most: even the shortest of them is long."""
    return max(_parts(items), key=lambda words: min(map(len, words), default=0), default=frozenset())


def _parts(items: Any) -> Iterator[frozenset[str]]:
    """Yield the words of each part that no match lacks."""
    run = ""
    for code, value in [*items, (None, None)]:
        if code is codes.LITERAL:
            run += chr(value)
            continue
        if len(run) >= SHORTEST:
            yield frozenset([run.casefold()])
        run = ""
        if code is codes.BRANCH and all(each := [_words(branch) for branch in value[1]]):
            yield frozenset().union(*each)
        if code is codes.SUBPATTERN or (code in REPEATS and value[0]):
            yield _words(value[-1])
