"""Exports a run's checkpoint in common formats: `python -m training.export --run DIR --to DIR [--merge]`.

A run that trained every weight becomes a Hugging Face directory. A run that trained adapters becomes a peft
adapter or, merged, a Hugging Face directory. The model of a base that is another run is beside its adapter, because
nothing else could load it. The directory appears as a whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedTokenizerBase

from training.checkpoint.copy import fetched
from training.checkpoint.errors import CheckpointError
from training.checkpoint.header import INDEX, SINGLE
from training.checkpoint.read import Checkpoint
from training.checkpoint.tensors import CODES
from training.config import Config, ConfigError
from training.data.errors import DataError
from training.data.run_tokenizer import dataset_directory, end_ids, load_tokenizer
from training.data.staging import commit, staging
from training.models import bert
from training.models.causal import build_on_meta
from training.models.lora import ADAPTER, adapter_name, base_name, peft_config
from training.run.directory import RunDir, why_not_new, write_json
from training.run.files import read_bounded
from training.run.signing import SigningError
from training.sample import checkpoint_of, config_of
from training.task import Trainable
from training.weights import Weights, WeightsError, open_weights
from training.weights.card import card
from training.weights.experts import file_name, file_names, row_of
from training.weights.source import RUN, is_run, pinned
from training.weights.tensors import CheckpointTensors, Kind, digest_of, hash_of
from training.weights.weights import CONFIG, FILES, GENERATION

Say = Callable[[str], None]
_LARGEST_TOKENIZER = 256 << 20  # bytes of one file
SHARD_BYTES = 4 << 30  # upper limit of one safetensors file, and so of the memory for weights
NUMBERS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ExportError(Exception):
    """The checkpoint cannot be exported, or not to this place. The message is one sentence."""


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    directory: str
    kind: str  # model | merged model | adapter
    step: int
    tensors: int
    nbytes: int
    digest: str  # over names, dtypes, shapes and bytes, the same as for `model.weights`
    loader: str  # the class of transformers or peft that loads it
    skipped: list[str] = field(default_factory=list)  # newer checkpoints, or the tokenizer, each with the reason


def export_run(
    run_directory: Path,
    to: Path,
    merge: bool = False,
    step: int | None = None,
    dtype: str = "float32",
    say: Say = lambda line: None,
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Write a run's newest good checkpoint, or that of `step`, to the directory `to`, with its tokenizer.

    `merge` adds the adapters to their base. Weights are written in `dtype`; fp32, in which they are trained,
    loses nothing. Adapters are always fp32. At most `shard_bytes` of weights are in memory at a time.

    Raises:
        ExportError: `to` exists or cannot be written, or there is nothing to merge.
        CheckpointError: there is no such checkpoint, or it is damaged.
        WeightsError: the base to merge with is gone or has changed.
    """
    run = RunDir(run_directory)
    if reason := why_not_new(to):
        raise ExportError(reason)
    skipped: list[str] = []
    checkpoint = checkpoint_of(run, step, skipped)
    config = config_of(checkpoint)
    if merge and config.lora is None:
        raise ExportError(f"{run.path} trained every weight, so there is nothing to merge; omit --merge")
    kind = "adapter" if config.lora is not None and not merge else "merged model" if merge else "model"
    tokenizer = _tokenizer(checkpoint, run, skipped)
    special: dict[str, int | None] = {}
    ends: list[int] = []
    if tokenizer is not None:
        loaded = load_tokenizer(checkpoint, run)
        special, ends = _special_tokens(loaded), _ends(tokenizer.parent, loaded, skipped)
    try:
        with staging(to.resolve().parent, to.name) as directory:
            has_base = False
            if kind == "adapter":
                has_base = _write_base(directory, checkpoint, config, run, dtype, say, shard_bytes)
                written = _write_adapter(directory, checkpoint, config, has_base)
            else:
                base = open_weights(config, run, say=say) if merge else None
                values = _Values(checkpoint, config, base, dtype)
                written = _write_weights(directory, values, say, shard_bytes)
                _write_configuration(directory, values, special, ends)
            if tokenizer is not None:
                _copy_tokenizer(tokenizer, directory)
            number = "float32" if kind == "adapter" else dtype
            text = card(run, checkpoint.step, checkpoint.meta, config, kind, number, has_base)
            (directory / "README.md").write_text(text, encoding="utf-8")
            for path in directory.iterdir():  # safetensors writes files that only this user may read
                path.chmod(0o644)
            directory.chmod(0o755)
            if not commit(directory, to.resolve()):
                raise ExportError(f"another process created {to} meanwhile")
    except (OSError, SafetensorError) as error:  # safetensors has its own error, also for a full disk
        raise ExportError(f"cannot write {to}: {getattr(error, 'strerror', None) or error}") from error
    causal = config.model.bert is None
    loader = "PeftModel" if kind == "adapter" else "AutoModelForCausalLM" if causal else "AutoModelForPreTraining"
    return Exported(str(to.resolve()), kind, checkpoint.step, *written, loader, skipped)


def _tokenizer(checkpoint: Checkpoint, run: RunDir, skipped: list[str]) -> Path | None:
    """The directory of the run's tokenizer; None, with a line in `skipped`, if its dataset is not here.

    Shards of masked samples come without one.
    """
    try:
        found = dataset_directory(checkpoint.meta, run) / "tokenizer"
    except CheckpointError as error:
        skipped.append(f"exported without a tokenizer: {error}")
        return None
    return found if found.exists() else None


class _Values:
    """The tensors of the exported model by their public names, computed one at a time."""

    def __init__(self, checkpoint: Checkpoint, config: Config, base: Weights | None, dtype: str) -> None:
        self.checkpoint, self.config, self.dtype = checkpoint, config, NUMBERS[dtype]
        self.model = _on_meta(config).hf
        self._base = base
        self._shapes = {name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()}
        self._parts: dict[str, tuple[str, int, slice]] = {}  # of a parameter that is divided among tensors
        self._whole: dict[str, str] = {}
        self._trained = {
            stored: name for name in checkpoint.names()
            if name.startswith("model.") and (stored := base_name(name.removeprefix("model."))) is not None
        }  # fmt: skip

    def kinds(self) -> dict[str, Kind]:
        """The kinds of the exported tensors, by name: the model's parameters; a tied one appears once."""
        stored = self._trained if self._base is None else None
        return {
            name: Kind(CODES[self.dtype], shape)
            for parameter, whole in self._shapes.items()
            if stored is None or parameter in stored
            for name, shape in self._files(parameter, whole)
        }

    def _files(self, parameter: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The tensors of files that hold a parameter, with their shapes."""
        parts = file_names(parameter, shape)
        self._parts |= {name: (parameter, *place) for name, place in parts.items()}
        if parts:
            yield from ((name, (rows.stop - rows.start, *shape[2:])) for name, (_, rows) in parts.items())
        else:
            self._whole[file_name(parameter)] = parameter
            yield file_name(parameter), shape

    @torch.no_grad()
    def value(self, name: str) -> torch.Tensor:
        """The tensor in the exported type: the trained one, or the base's with its adapter added in fp32."""
        if name in self._parts:
            parameter, row, rows = self._parts[name]
            return self._row(parameter, row)[rows].to(self.dtype)
        name = self._whole[name]
        if name in self._trained:
            return self.checkpoint.full(self._trained[name]).to(self.dtype)
        assert self._base is not None
        whole = self._base.full(name)
        lora, (module, _, last) = self.config.lora, name.rpartition(".")
        a, b = (f"model.{module}.lora_{side}.{ADAPTER}.weight" for side in "AB")
        if lora is None or last != "weight" or a not in self.checkpoint.tensors:
            return whole.to(self.dtype)
        delta = self.checkpoint.full(b) @ self.checkpoint.full(a) * (lora.alpha / lora.rank)
        return (whole.float() + delta).to(self.dtype)

    def _row(self, parameter: str, row: int) -> torch.Tensor:
        """One expert of a parameter: adapters are never on these."""
        if parameter in self._trained:
            return row_of(CheckpointTensors(self.checkpoint), parameter, row)
        assert self._base is not None
        return row_of(self._base.tensors, parameter, row)


def _on_meta(config: Config) -> Trainable:
    if config.model.architecture == "bert":
        return bert.build_on_meta(config, "eager")
    return build_on_meta(config, "eager")


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    return {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _ends(dataset: Path, tokenizer: PreTrainedTokenizerBase, skipped: list[str]) -> list[int]:
    """The tokens that the run has learned to end a text with; none, with a line in `skipped`, if that is unknown."""
    try:
        return [token for token in end_ids(dataset, tokenizer) if token is not None]
    except DataError as error:
        skipped.append(f"exported with the tokenizer's end-of-text token alone: {error}")
        return []


def _with_ends(given: object, ends: list[int]) -> dict[str, object]:
    """The key `eos_token_id` with the `given` tokens and all ends of texts: a chat may end with another token."""
    known = given if isinstance(given, list) else [] if given is None else [given]
    every = [*known, *(end for end in ends if end not in known)]
    return {} if every == known else {"eos_token_id": every if len(every) > 1 else every[0]}


def _write_weights(directory: Path, values: _Values, say: Say, shard_bytes: int) -> tuple[int, int, str]:
    """Write the tensors as safetensors; return their number, bytes and digest."""
    kinds = values.kinds()
    files = _divide(kinds, shard_bytes)
    hashed: dict[str, str] = {}
    for number, (file, names) in enumerate(files.items(), 1):
        tensors = {name: values.value(name).contiguous() for name in names}
        hashed |= {name: hash_of(tensor) for name, tensor in tensors.items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        if len(files) > 1:
            say(f"{number} of {len(files)} files written")
    total = sum(kind.nbytes for kind in kinds.values())
    if len(files) > 1:
        places = {name: file for file, names in files.items() for name in names}
        write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    return len(kinds), total, digest_of(kinds, hashed)


def _divide(kinds: Mapping[str, Kind], shard_bytes: int) -> dict[str, list[str]]:
    """Names of the tensors of each file, in order; only a single tensor can exceed `shard_bytes`."""
    groups: list[list[str]] = []
    filled = shard_bytes
    for name, kind in kinds.items():
        if filled + kind.nbytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += kind.nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{at:05d}-of-{len(groups):05d}.safetensors": names for at, names in enumerate(groups, 1)}


def _write_configuration(directory: Path, values: _Values, special: dict[str, int | None], ends: list[int]) -> None:
    """Write config.json and generation_config.json: the base's if it has them, else the trained model's.

    The latter also has the tokens that the run has learned to end a text with: `generate` and vLLM stop at these.
    """
    said: dict[str, Any] = values.checkpoint.meta.get(FILES, {})
    name = str(values.dtype).removeprefix("torch.")
    if CONFIG in said:
        kept = {key: value for key, value in said[CONFIG].items() if key not in ("torch_dtype", "auto_map")}
        architectures = {"architectures": [type(values.model).__name__]}
        write_json(directory / CONFIG, {**kept, **architectures, "dtype": name})
    else:
        ours = values.model.config
        ours.update({**special, "use_cache": True, "dtype": name})
        ours.architectures = [type(values.model).__name__]
        ours.save_pretrained(directory)
    if GENERATION in said:
        found = said[GENERATION]
        write_json(directory / GENERATION, {**found, **_with_ends(found.get("eos_token_id"), ends)})
    elif values.model.can_generate():
        learned = {**special, **_with_ends(special.get("eos_token_id"), ends)}
        GenerationConfig(**learned).save_pretrained(directory)


def _write_base(
    directory: Path, checkpoint: Checkpoint, config: Config, run: RunDir, dtype: str, say: Say, shard_bytes: int
) -> bool:
    """Write the model of a base that is another run; return whether that was needed and possible.

    transformers takes the base from a directory that has a config.json beside its adapter.
    """
    weights = config.model.weights or ""
    if not is_run(weights):
        return False
    base = directory / "base"
    try:
        trained, step = run.other(weights.removeprefix(RUN)).path, checkpoint.meta.get("base_step")
        written = export_run(trained, base, step=step, dtype=dtype, say=say, shard_bytes=shard_bytes)
        if dtype == "float32" and written.digest != checkpoint.meta.get("weights"):
            raise WeightsError(f"{weights} is not the model that this run began with")
        for path in base.iterdir():
            if path.suffix == ".safetensors" or path.name in (CONFIG, GENERATION, INDEX):
                path.rename(directory / path.name)
    except (CheckpointError, WeightsError) as problem:
        say(f"the adapter is exported without its base: {problem}")
        return False
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return True


def _write_adapter(directory: Path, checkpoint: Checkpoint, config: Config, has_base: bool) -> tuple[int, int, str]:
    """Write a peft adapter; return number of tensors, bytes and digest."""
    assert config.lora is not None
    assert config.model.weights is not None
    names = [name for name in checkpoint.names() if name.startswith("model.")]
    tensors = {adapter_name(name.removeprefix("model.")): checkpoint.full(name) for name in names}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    base, revision = (".", "") if has_base else pinned(config.model.weights)
    settings = peft_config(config.lora, base_model_name_or_path=base, revision=revision or None, inference_mode=True)
    settings.save_pretrained(str(directory))
    kinds = {name: Kind(CODES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    hashed = {name: hash_of(tensor) for name, tensor in tensors.items()}
    return len(tensors), sum(kind.nbytes for kind in kinds.values()), digest_of(kinds, hashed)


def _copy_tokenizer(source: Path, directory: Path) -> None:
    for path in sorted(source.iterdir()):
        (directory / path.name).write_bytes(read_bounded(path, _LARGEST_TOKENIZER))


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: the result as JSON; exit 2 with one line on standard error on failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="run directory, or s3://bucket/prefix/run")
    parser.add_argument("--to", required=True, type=Path, help="directory to create")
    parser.add_argument("--merge", action="store_true", help="add adapters to their base")
    parser.add_argument("--step", type=int, help="checkpoint of this step instead of the newest")
    parser.add_argument("--dtype", choices=sorted(NUMBERS), default="float32")
    given = parser.parse_args(None if arguments is None else list(arguments))

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        there = given.run.startswith("s3://")
        with fetched(given.run, given.step) if there else nullcontext(Path(given.run)) as run:
            written = export_run(run, given.to, given.merge, given.step, given.dtype, say)
    except (ExportError, CheckpointError, ConfigError, SigningError) as error:
        say(f"error: {error}")
        sys.exit(2)
    print(json.dumps(asdict(written)))


if __name__ == "__main__":
    main()
