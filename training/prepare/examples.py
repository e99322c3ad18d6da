"""A configuration's examples: with which tokenizer they are prepared, and one of them shown to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from training.config import Config, ConfigError
from training.data.errors import DataError
from training.data.examples.encode import Encoded
from training.data.examples.example import BadRow
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
    """Where the tokenizer lies that `data.tokenizer` names; all ranks together, for a base may be downloaded.

    Raises:
        ConfigError: a tokenizer would be trained for a model that has one, or the base has none yet.
    """
    wanted, weights = config.data.tokenizer, config.model.weights
    assert weights is not None  # this is what makes it fine-tuning
    if wanted == "train":
        raise ConfigError(
            "data.tokenizer is train, but model.weights knows its tokens already: write base, or a directory"
        )
    if wanted != BASE:
        return wanted
    if not is_run(weights):
        return str(locate_directory(weights, run, Broadcast(ranks), say))
    other = RunDir(run.path.resolve().parent / weights.removeprefix(RUN))
    if not other.run.exists():
        raise ConfigError(f"model.weights: {other.path} is no run yet; train it first")
    return str(dataset_directory(read_json(other.run), other) / "tokenizer")


def settings_of(config: Config, tokenizer: str) -> ExampleSettings:
    """What the configuration's dataset is made of, with the tokenizer that lies there."""
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
    )


def prepare_for(config: Config, root: Path, run: RunDir, say: Say) -> Path:
    """Directory of the configuration's dataset under `root`, made when it is not there yet."""
    return prepare_examples(settings_of(config, tokenizer_of(config, run, None, say)), root, say)


def show_example(config: Config, run: RunDir, say: Say) -> str:
    """The first example as the model reads it, with what it learns in double brackets.

    Raises:
        DataError: there is none, or its row is a bad one.
    """
    plan = plan_of(settings_of(config, tokenizer_of(config, run, None, say)))
    skipped: Counter[str] = Counter()
    for example in plan.examples(skipped):
        encoded = plan.encoder.encode([example])[0]
        if isinstance(encoded, BadRow):
            plan.bad(encoded, skipped)
        else:
            return _shown(example.where, encoded, plan)
    raise DataError(f"data source {config.data.source}: no example")


def _shown(where: str, encoded: Encoded, plan: Plan) -> str:
    length, overlong = plan.settings.sequence_length, plan.settings.overlong
    title = f"{where}: {len(encoded.tokens):,} tokens"
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
