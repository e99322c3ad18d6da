"""What is read: documents, tokens, and what of them the model must guess."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from training.config.base import Count, Inside, Section

# 305 GB of English text in 1,024 files: huggingface.co/datasets/allenai/c4, configuration `en`.
C4 = (
    "hf://datasets/allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2/"
    "en/c4-train.{00000..01023}-of-01024.json.gz"
)


class Stream(Section):
    """Documents are read while training goes on, instead of being prepared first.

    The source's files are split into `lanes` (without it: as many as batch and files allow, at most 64),
    which the ranks share; each lane shuffles `shuffle_buffer` documents at a time. The tokenizer (`train`)
    and the held-out documents are made of the first `first_mb` megabytes of text, once; what is held out is
    never trained on, wherever it comes up.
    """

    lanes: Count | None = None
    shuffle_buffer: Count = 1000
    first_mb: Count = 32


class Data(Section):
    """Where documents come from and how they become tokens.

    `source` is a path, a URL, files of the hub, or a list of them; with `stream` it may be left out: C4.
    `packing` and the three keys after it are for fine-tuning: whether examples are packed into samples or
    each is padded; what becomes of examples longer than sequence_length; whether a row that cannot be used
    ends the preparation; and how chats are written: `auto` (the tokenizer's own template, or a plain one
    where it has none) or a Jinja file.
    """

    source: str = Field(min_length=1)
    text_field: str = Field(default="text", min_length=1)
    heldout_fraction: Inside = 0.02
    tokenizer: str = Field(default="train", min_length=1)
    packing: bool = True
    overlong: Literal["truncate", "drop", "split", "error"] = "truncate"
    bad_rows: Literal["error", "skip"] = "error"
    chat_template: str = Field(default="auto", min_length=1)
    stream: Stream | None = None

    @model_validator(mode="before")
    @classmethod
    def _source(cls, value: Any) -> Any:
        """A list of sources becomes one text, one a line; a stream without source is C4."""
        if not isinstance(value, dict):
            return value
        source = value.get("source")
        if source is None and value.get("stream") is not None:
            return {**value, "source": C4}
        if isinstance(source, list) and source and all(isinstance(part, str) for part in source):
            return {**value, "source": "\n".join(source)}
        return value


class Masking(Section):
    """Which tokens BERT must guess (Devlin et al. 2018, section 3.1): at most `most` of each sequence."""

    fraction: Inside = 0.15
    most: Count
    whole_words: bool = False
