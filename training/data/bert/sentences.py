"""Splits a document into sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

# After one of these marks, optionally followed by a closing quote or bracket, and before a capital or digit.
_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]?[A-Z0-9])""")


def sentences_of(text: str) -> Iterator[str]:
    """Yield a document's sentences in order.

    A sentence ends at the line's end, as in source code and in the files of BERT's own recipe with one
    sentence per line, and within a line at its punctuation mark. "e.g. Paris" is cut too: what matters is
    only that neighbours are neighbours in the document.
    """
    for line in text.splitlines():
        for sentence in _END.split(line):
            if sentence := sentence.strip():
                yield sentence
