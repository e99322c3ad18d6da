"""Initial weights of BERT: all tensors of the model that the files contain; the heads may be missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch

from training.config import Config
from training.distributed.ranks import Ranks
from training.models.bert import PretrainingBert, build_on_meta, initialise
from training.models.causal import named_parameters
from training.run.directory import RunDir
from training.weights import Tensors, Weights, fill, open_weights
from training.weights.tensors import check_shapes

# Published encoders lack the heads of pre-training, and often the pooler.
HEADS = {
    "bert.pooler.": "the pooler",
    "cls.predictions.": "the masked-word head",
    "cls.seq_relationship.": "the next-sentence head",
}
_OLD_NORMS = {".gamma": ".weight", ".beta": ".bias"}  # TensorFlow's names
_COPIES = re.compile(r"(bert\.)?embeddings\.position_ids|cls\.predictions\.decoder\.(weight|bias)")


def open_for(config: Config, run: RunDir, ranks: Ranks | None, say: Callable[[str], None]) -> Weights | None:
    """Open `model.weights`, or return None without it; report the missing heads.

    Raises WeightsError and CheckpointError, see `open_weights`.
    """
    if config.model.weights is None:
        return None
    weights = open_weights(config, run, ranks, say, check)
    lacking = sorted(set(_heads_lacking(weights.tensors, config)))
    if lacking:
        say(f"{weights.directory} lacks {' and '.join(lacking)}: initialised at random from the seed")
    return weights


def load(model: PretrainingBert, weights: Weights, config: Config, device: torch.device) -> None:
    """Give memory and values to a model on meta: the stored ones, from the seed where there are none."""
    initialise(model, config, device)
    stored = stored_names(weights.tensors)
    fill({stored[name]: p for name, p in named_parameters(model) if name in stored}, weights.tensors)


def check(tensors: Tensors, config: Config) -> None:
    """Refuse tensors with another shape, unknown tensors, and an incomplete encoder."""
    stored = stored_names(tensors)
    wanted = {
        stored.get(name, name): tuple(parameter.shape)
        for name, parameter in named_parameters(build_on_meta(config, "eager"))
        if name in stored or _head_of(name) is None
    }
    check_shapes(wanted, tensors, ignored={name for name in tensors.kinds if _is_copy(name, config)})


def stored_names(tensors: Tensors) -> dict[str, str]:
    """The stored name of each parameter: a bare encoder has no prefix `bert.`, old norms have other names."""
    bare = not any(name.startswith(("bert.", "cls.")) for name in tensors.kinds)
    found = {}
    for name in tensors.kinds:
        own = f"bert.{name}" if bare else name
        for old, new in _OLD_NORMS.items():
            own = own.removesuffix(old) + new if own.endswith(old) else own
        found[own] = name
    return found


def _is_copy(name: str, config: Config) -> bool:
    """Whether a stored tensor is redundant: positions in order, or the second copy of a tied table."""
    untied = name == "cls.predictions.decoder.weight" and not config.model.tie_word_embeddings
    return bool(_COPIES.fullmatch(name)) and not untied


def _heads_lacking(tensors: Tensors, config: Config) -> Iterator[str]:
    stored = stored_names(tensors)
    for name, _ in named_parameters(build_on_meta(config, "eager")):
        head = _head_of(name)
        if name not in stored and head is not None:
            yield head


def _head_of(name: str) -> str | None:
    return next((head for prefix, head in HEADS.items() if name.startswith(prefix)), None)
