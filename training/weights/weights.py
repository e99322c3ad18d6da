"""Base weights: checked against the configuration, identified by a digest, loaded by each rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.checkpoint.dcp import METADATA
from training.checkpoint.verify import balanced
from training.config import Config
from training.data.run_tokenizer import dataset_directory
from training.distributed.ranks import Ranks
from training.models import lora
from training.models.causal import build_on_meta, materialise, named_parameters
from training.run.directory import RunDir, read_json
from training.task import Trainable
from training.weights.architecture import check_architecture, check_same_model
from training.weights.broadcast import Broadcast
from training.weights.dcp import DcpModel
from training.weights.errors import WeightsError
from training.weights.experts import joined
from training.weights.source import RUN, commit_of, is_run, locate_directory, open_run
from training.weights.tensors import (
    CheckpointTensors,
    SafetensorsDirectory,
    Tensors,
    check_shapes,
    digest_of,
    fill,
    hashes,
    read_object,
    whole,
)

Say = Callable[[str], None]
HEAD, WORDS = "lm_head.weight", "model.embed_tokens.weight"
CONFIG, GENERATION, FILES = "config.json", "generation_config.json", "base_files"
_TELL_EVERY_S = 5.0


class Weights:
    """Checked base weights. `open_weights` creates them."""

    def __init__(self, tensors: Tensors, directory: Path, tokenizer: Path | None, origin: dict[str, Any]) -> None:
        self.tensors = tensors
        """All tensors, by name."""
        self.directory = directory
        """The directory of the files: the given one, the hub's snapshot, or the checkpoint."""
        self.tokenizer = tokenizer
        """A directory with the base's tokenizer, None if it has none."""
        self.origin = origin
        """The base's origin, for run.json and each checkpoint: `weights` is the digest, `base_step` the step
        of another run, `base_commit` the commit on the hub, `base_files` the content of its config.json and
        generation_config.json."""

    @property
    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes of the tensors, however files divide them."""
        return str(self.origin["weights"])

    def load(self, model: Trainable, config: Config, device: torch.device) -> None:
        """Give memory and values to every parameter and buffer of a causal model on meta, sharded or not.

        Each rank reads only the rows that it keeps. Adapters get their initial values.
        """
        materialise(model, config, device)
        lora.initialise(model, config.train.seed)
        self.fill(model)

    def fill(self, model: nn.Module) -> None:
        """Fill all parameters that the base has; the others do not change."""
        for name, parameter in named_parameters(model):
            stored = lora.base_name(name)
            if stored is not None:
                fill({stored: parameter}, self.tensors)

    def full(self, name: str) -> torch.Tensor:
        """A whole tensor on the CPU, in its own dtype."""
        return whole(self.tensors, name)


def open_weights(
    config: Config,
    run: RunDir,
    ranks: Ranks | None = None,
    say: Say = lambda line: None,
    check: Callable[[Tensors, Config], None] | None = None,
) -> Weights:
    """Find `model.weights`, check them against the configuration, and identify them by their content.

    All `ranks` call it together, or one process alone. A run that began with other weights, by its run.json,
    is refused. `check` refuses wrong tensors; the default refuses everything but the causal model's.

    Raises:
        WeightsError: no access, no such revision, directory or run; another architecture; missing, unexpected
            or misshapen tensors; other weights than the run began with.
        CheckpointError: files are damaged or cannot be read.
    """
    named = config.model.weights
    assert named is not None
    broadcast = Broadcast(ranks)
    began: dict[str, Any] = broadcast.first(lambda: _began_with(run))
    if is_run(named):
        checkpoint = open_run(named, run, began.get("base_step"), broadcast, say)
        _check_run(checkpoint.recorded("config"), config, named)
        stored: Tensors = CheckpointTensors(checkpoint)
        directory = checkpoint.directory
        origin = {"base_step": checkpoint.step, FILES: checkpoint.meta.get(FILES, {})}
        tokenizer = dataset_directory(checkpoint.meta, RunDir(checkpoint.directory.parent.parent)) / "tokenizer"
    else:
        directory = locate_directory(named, run, broadcast, say)
        _refuse_adapter(directory)
        check_architecture(directory, config.model)
        present = (name for name in (CONFIG, GENERATION) if (directory / name).exists())
        files = {name: read_object(directory / name) for name in present}
        origin = {FILES: files, **commit_of(named, directory)}
        stored = DcpModel(directory) if (directory / METADATA).exists() else SafetensorsDirectory(directory)
        tokenizer = directory
    tensors = joined(stored)
    (check or check_causal)(tensors, config)
    digest = _digest(stored, config, broadcast, say)
    if began and began["weights"] != digest:
        raise WeightsError(
            f"{run.path} began with weights {began['weights'][:12]}, but {named} now contains {digest[:12]}. "
            "Restore them, or start from scratch with --fresh or another name"
        )
    has_tokenizer = (tokenizer / "tokenizer.json").exists()
    return Weights(tensors, directory, tokenizer if has_tokenizer else None, {"weights": digest, **origin})


def _refuse_adapter(directory: Path) -> None:
    """Refuse an adapter, also with its base beside it, as `export_run` writes it: the base alone would be used."""
    if (directory / "adapter_config.json").exists():
        raise WeightsError(f"{directory} contains an adapter, not a model; merge it into its base first")


def check_causal(tensors: Tensors, config: Config) -> None:
    """Refuse tensors that are not exactly the causal model's. Raises WeightsError with their names."""
    wanted = {name: tuple(p.shape) for name, p in named_parameters(build_on_meta(config, "eager"))}
    try:
        check_shapes(wanted, tensors, ignored=_ignored(tensors, config))
    except WeightsError as error:
        untied = HEAD not in tensors.kinds and not config.model.tie_word_embeddings
        hint = f"; without {HEAD} the head is the token table: set model.tie_word_embeddings: true"
        raise WeightsError(f"{error}{hint if untied else ''}") from None


def _ignored(tensors: Tensors, config: Config) -> set[str]:
    """Redundant tensors: old files contain rotary tables, and a tied head twice."""
    ignored = {name for name in tensors.kinds if name.endswith(".rotary_emb.inv_freq")}
    return ignored | ({HEAD} if config.model.tie_word_embeddings and HEAD in tensors.kinds else set())


def _began_with(run: RunDir) -> dict[str, Any]:
    """The base in run.json, empty before the run has begun."""
    if not run.run.exists():
        return {}
    first = read_json(run.run)
    return {key: first[key] for key in ("weights", "base_step") if key in first}


def _check_run(theirs: dict[str, Any], config: Config, named: str) -> None:
    if theirs.get("lora") is not None:
        name = named.removeprefix(RUN)
        raise WeightsError(
            f"model.weights: {named} trained adapters, so it has no complete model; "
            f"create one with yard checkpoint export {name} --merge --to DIRECTORY"
        )
    check_same_model(theirs.get("model", {}), config.model, f"model.weights: {named}")


def _digest(tensors: Tensors, config: Config, broadcast: Broadcast, say: Say) -> str:
    """The content's digest; each tensor is read by one rank. A tied head must equal the token table."""
    ignored = _ignored(tensors, config)
    names = sorted(name for name in tensors.kinds if name not in ignored or name == HEAD)
    sizes = {name: tensors.kinds[name].nbytes for name in names}
    mine = balanced(sizes, broadcast.rank, broadcast.size)
    progress = _Progress(sum(sizes[name] for name in mine), say)
    parts: list[dict[str, str]] = broadcast.gather(lambda: hashes(tensors, mine, progress.add))
    hashed = {name: sha for part in parts for name, sha in part.items()}
    if HEAD in ignored and hashed.pop(HEAD) != hashed[WORDS]:
        raise WeightsError(
            f"{tensors.place}: {HEAD} differs from {WORDS}, but with model.tie_word_embeddings they must be "
            "equal: set it to false"
        )
    return digest_of(tensors.kinds, hashed)


class _Progress:
    """Reports a line every few seconds during a long read."""

    def __init__(self, total: int, say: Say) -> None:
        self._total, self._say = total, say
        self._done, self._told = 0, time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._told > _TELL_EVERY_S:
            self._told = time.monotonic()
            self._say(f"identifying the base weights: {self._done >> 20:,} of {self._total >> 20:,} MiB")
