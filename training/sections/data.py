"""What is read: documents, tokens, and what of them the model must guess."""

from __future__ import annotations

from pydantic import Field

from training.sections.base import Count, Inside, Section


class Data(Section):
    """Where documents come from and how they become tokens."""

    source: str = Field(min_length=1)
    text_field: str = Field(default="text", min_length=1)
    heldout_fraction: Inside = 0.02
    tokenizer: str = Field(default="train", min_length=1)


class Masking(Section):
    """Which tokens BERT must guess (Devlin et al. 2018, section 3.1): at most `most` of each sequence."""

    fraction: Inside = 0.15
    most: Count
    whole_words: bool = False
