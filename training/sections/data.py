"""What is read: documents, tokens, and what of them the model must guess."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from training.sections.base import Count, Inside, Section


class Data(Section):
    """Where documents come from and how they become tokens.

    The last four keys are for fine-tuning: whether examples are packed into samples or each is padded; what
    becomes of examples longer than sequence_length; whether a row that cannot be used ends the preparation;
    and how chats are written: `auto` (the tokenizer's own template, or a plain one where it has none) or a
    Jinja file.
    """

    source: str = Field(min_length=1)
    text_field: str = Field(default="text", min_length=1)
    heldout_fraction: Inside = 0.02
    tokenizer: str = Field(default="train", min_length=1)
    packing: bool = True
    overlong: Literal["truncate", "drop", "split", "error"] = "truncate"
    bad_rows: Literal["error", "skip"] = "error"
    chat_template: str = Field(default="auto", min_length=1)


class Masking(Section):
    """Which tokens BERT must guess (Devlin et al. 2018, section 3.1): at most `most` of each sequence."""

    fraction: Inside = 0.15
    most: Count
    whole_words: bool = False
