"""Where a document's sentences end."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Behind one of these marks, also one inside closing quotes or brackets, and before a capital or a digit.
_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]?[A-Z0-9])""")


def sentences_of(text: str) -> Iterator[str]:
    """Yield a document's sentences in their order.

    A line's end is a sentence's end, as in the one-sentence-a-line files of BERT's own recipe and in source
    code; within a line one ends at its punctuation mark. "e.g. Paris" is cut too: what matters is that two
    neighbours are neighbours in the document.
    """
    for line in text.splitlines():
        for sentence in _END.split(line):
            if sentence := sentence.strip():
                yield sentence
