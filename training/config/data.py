"""The data: documents, how they become tokens, and which tokens BERT has to predict."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from training.config.base import Count, Inside, Section

# 305 GB of English text in 1,024 files: huggingface.co/datasets/allenai/c4, configuration `en`.
C4 = "hf://datasets/allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2/en/c4-train.{00000..01023}-of-01024.json.gz"


Column = Literal[
    "messages", "tools", "prompt", "completion", "instruction", "input", "output", "history", "system",
    "conversations", "role", "content", "from", "value",
]  # fmt: skip


class Stream(Section):
    """Reads documents during training instead of preparing them first.

    A held-out document is never trained on, wherever it appears in the source.
    """

    lanes: Count | None = None
    """Number of parts that the source's files are split into and the ranks share; it divides
    train.global_batch_size, and by default is the largest such number up to the number of files, with a limit
    of 8 where there are fewer files and of 64 where there are more."""

    shuffle_buffer: Count = 1000
    """Number of documents that each lane shuffles at a time."""

    first_mb: Count = 32
    """Size of the first part of the text, in megabytes, that the held-out documents and the tokenizer
    `train` are made from."""


class Data(Section):
    """Where documents come from and how they become tokens.

    `format`, `columns`, `learn`, `packing`, `overlong`, `bad_rows` and `chat_template` apply to fine-tuning
    only.
    """

    source: str = Field(min_length=1)
    """A file, directory, glob, URL or hf://datasets/... of the Hugging Face hub, python-stdlib or
    python-help, or a list of them; with `stream` the default is C4."""

    text_field: str = Field(default="text", min_length=1)
    """The field that holds a row's text in JSONL and Parquet files."""

    heldout_fraction: Inside = 0.02
    """Fraction of the documents, between 0 and 1, that is kept out of training and measures the held-out
    loss."""

    tokenizer: str = Field(default="train", min_length=1)
    """`train` (a new one from these documents), `base` (the one of model.weights), a directory with a
    tokenizer.json, such a file, or <organisation>/<name>@<commit> of the Hugging Face hub."""

    format: Literal["messages", "prompt-completion", "alpaca", "sharegpt", "text"] | None = None
    """The format of the rows; without it, each row's format is recognised by its fields."""

    columns: dict[Column, Annotated[str, Field(min_length=1)]] | None = None
    """The names of a format's fields in the rows where they differ, for example {input: context}."""

    learn: Literal["last", "reasoning", "answer"] | None = None
    """Which tokens of a chat are learned. Without this key these are all turns of the assistant, else its `last` turn,
    the last turn's `reasoning` and answer, or only the last turn's `answer`, whose reasoning is read."""

    packing: bool = True
    """Whether several examples share one sample; if false, each example is padded to sequence_length."""

    document_mask: bool = True
    """Whether a token attends only to its own document's earlier tokens. If false, it attends to all earlier tokens of
    its sample, as with the defaults of HF Trainer and torchtitan. That is faster on cards."""

    overlong: Literal["truncate", "drop", "split", "error"] = "truncate"
    """What happens to an example of more tokens than sequence_length: it is cut off, left out, split into
    several samples, or an error."""

    bad_rows: Literal["error", "skip"] = "error"
    """What happens to a row that is not a usable example: it is an error, or it is skipped and counted."""

    chat_template: str = Field(default="auto", min_length=1)
    """How chats become text: `auto` (the tokenizer's own template, or a plain one if it has none) or the
    path of a Jinja file."""

    stream: Stream | None = None
    """Read documents during training; without this section they are prepared as token shards first."""

    @model_validator(mode="before")
    @classmethod
    def _source(cls, value: Any) -> Any:
        """Join a list of sources to one text with one per line; use C4 for a stream without a source."""
        if not isinstance(value, dict):
            return value
        source = value.get("source")
        if source is None and value.get("stream") is not None:
            return {**value, "source": C4}
        if isinstance(source, list) and source and all(isinstance(part, str) for part in source):
            return {**value, "source": "\n".join(source)}
        return value


class Masking(Section):
    """Which tokens BERT has to predict (Devlin et al. 2018, section 3.1)."""

    fraction: Inside = 0.15
    """Fraction of a sequence's tokens, between 0 and 1, that the model has to predict."""

    most: Count
    """Upper limit of the tokens to predict in one sequence."""

    whole_words: bool = False
    """Whether all pieces of a word are masked together."""
