"""A configuration's examples: finds their tokenizer, prepares them, and shows one to a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from training.config import Config, ConfigError
from training.data.errors import DataError
from training.data.examples.encode import Encoded
from training.data.examples.example import Example
from training.data.examples.formats import BadRow
from training.data.examples.packing import cut
from training.data.examples.prepare_examples import ExampleSettings, Plan, plan_of, prepare_examples
from training.data.run_tokenizer import dataset_directory
from training.distributed.ranks import Ranks
from training.run.directory import RunDir, read_json
from training.weights.broadcast import Broadcast
from training.weights.source import RUN, is_run, locate_directory

BASE = "base"  # data.tokenizer: the one of model.weights
LEARNED = "[[", "]]"

Say = Callable[[str], None]


def tokenizer_of(config: Config, run: RunDir, ranks: Ranks | None, say: Say) -> str:
    """Return the directory of the tokenizer in `data.tokenizer`; collective, because it may download a base.

    Raises:
        ConfigError: data.tokenizer is `train` although the model has a tokenizer, or the base has none yet.
    """
    wanted, weights = config.data.tokenizer, config.model.weights
    assert weights is not None  # fine-tuning always has them
    if wanted == "train":
        raise ConfigError(
            "data.tokenizer is train, but model.weights has a tokenizer already: write base or a directory"
        )
    if wanted != BASE:
        return wanted
    if not is_run(weights):
        return str(locate_directory(weights, run, Broadcast(ranks), say))
    other = run.other(weights.removeprefix(RUN))
    if not other.run.exists():
        raise ConfigError(f"model.weights: {other.path} is not a run yet; train it first")
    return str(dataset_directory(read_json(other.run), other) / "tokenizer")


def settings_of(config: Config, tokenizer: str) -> ExampleSettings:
    """The settings of the configuration's dataset, with the tokenizer at this path."""
    data = config.data
    return ExampleSettings(
        source=data.source,
        text_field=data.text_field,
        heldout_fraction=data.heldout_fraction,
        tokenizer=tokenizer,
        chat_template=data.chat_template,
        vocab_size=config.model.vocab_size,
        sequence_length=config.sequence_length,
        packing=data.packing,
        overlong=data.overlong,
        bad_rows=data.bad_rows,
        format=data.format,
        columns={str(name): column for name, column in (data.columns or {}).items()},
        learn=data.learn,
    )


def prepare_for(config: Config, root: Path, run: RunDir, say: Say) -> Path:
    """Return the directory of the configuration's dataset under `root`; create it if it is missing."""
    return prepare_examples(settings_of(config, tokenizer_of(config, run, None, say)), root, say)


def show_example(config: Config, run: RunDir, say: Say) -> str:
    """Return the first example as the model reads it, with its learned parts in double brackets.

    Raises:
        DataError: there is no example, or its row is bad.
    """
    plan = plan_of(settings_of(config, tokenizer_of(config, run, None, say)))
    skipped: Counter[str] = Counter()
    for example in plan.examples(skipped):
        encoded = plan.encoder.encode([example])[0]
        if isinstance(encoded, BadRow):
            plan.bad(encoded, skipped)
        else:
            return _shown(example, encoded, plan)
    raise DataError(f"data source {config.data.source}: no example")


def _shown(example: Example, encoded: Encoded, plan: Plan) -> str:
    length, overlong, where = plan.settings.sequence_length, plan.settings.overlong, example.where
    title = f"{where} (format {example.format}, {example.evidence}): {len(encoded.tokens):,} tokens"
    if len(encoded.tokens) <= length:
        return f"{title}, {_marked(encoded, plan)}"
    title += f", more than sequence_length {length:,} (data.overlong: {overlong})"
    return "\n\n".join([title, *(_marked(part, plan) for part in cut(where, encoded, length, overlong))])


def _marked(part: Encoded, plan: Plan) -> str:
    decode = plan.tokenizer.tokenizer.decode
    runs = groupby(zip(part.tokens.tolist(), part.learned.tolist(), strict=True), key=lambda pair: pair[1])
    text = ""
    for is_learned, pairs in runs:
        piece = decode([token for token, _ in pairs], skip_special_tokens=False)
        text += f"{LEARNED[0]}{piece}{LEARNED[1]}" if is_learned else piece
    return f"{int(part.learned.sum()):,} of {len(part.tokens):,} are learned, in {' '.join(LEARNED)}:\n{text}"
