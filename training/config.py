"""The trainer's configuration: three files, one owner per section, no unknown keys.

A cell's configuration directory holds `model.yaml`, `hardware.yaml` and `cell.yaml` (one ConfigMap each
on a cluster). Each top-level section belongs to exactly one of them, so no value is ever merged or
shadowed. Everything that is wrong with a configuration ends in one `ConfigError` that names file, key,
line and, for a misspelt key, the nearest known one.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

FILES = ("model", "hardware", "cell")
OWNER: dict[str, str] = {
    "model": "model",
    "sequence_length": "model",
    "data": "model",
    "train": "model",
    "sample": "model",
    "device": "hardware",
    "parallel": "cell",
    "checkpoint": "cell",
}


class ConfigError(Exception):
    """A configuration that cannot be used. The message is one sentence for a person."""


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is needed, not a boolean")
    return value


Count = Annotated[int, BeforeValidator(_not_bool), Field(strict=True, gt=0)]
Whole = Annotated[int, BeforeValidator(_not_bool), Field(strict=True, ge=0)]
Positive = Annotated[float, BeforeValidator(_not_bool), Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, BeforeValidator(_not_bool), Field(strict=True, ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_not_bool), Field(strict=True, ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RopeScaling(_Section):
    """Llama 3.1's frequency scaling (`rope_type: llama3` of transformers)."""

    rope_type: Literal["llama3"]
    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Count


class Model(_Section):
    """Architecture, in the names of transformers' `LlamaConfig`."""

    architecture: Literal["llama"]
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    rms_norm_eps: Positive = 1e-5
    rope_theta: Positive = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_dropout: Fraction = 0.0
    initializer_range: Positive = 0.02

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError(
                f"hidden_size / num_attention_heads is {self.hidden_size // self.num_attention_heads}, "
                "but rotary embeddings need an even head size"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        return self


class Data(_Section):
    """Where documents come from and how they become tokens."""

    source: str = Field(min_length=1)
    text_field: str = Field(default="text", min_length=1)
    heldout_fraction: Annotated[float, BeforeValidator(_not_bool), Field(strict=True, gt=0, lt=1)] = 0.02
    tokenizer: str = Field(default="train", min_length=1)


class Train(_Section):
    """The recipe. Batch sizes are in samples (sequences), steps are optimizer steps."""

    seed: Whole
    steps: Count
    global_batch_size: Count
    learning_rate: Positive
    min_learning_rate_ratio: Annotated[float, BeforeValidator(_not_bool), Field(strict=True, ge=0, le=1)] = (
        0.1
    )
    warmup_steps: Whole = 0
    weight_decay: NotNegative = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: Positive = 1e-8
    gradient_clip: Positive = 1.0
    eval_every: Count
    eval_sequences: Count

    @model_validator(mode="after")
    def _warmup(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below steps {self.steps}")
        return self


class Sample(_Section):
    """Continuations printed when training ends; no prompts, no samples."""

    prompts: tuple[str, ...] = ()
    max_new_tokens: Count = 48
    temperature: NotNegative = 0.8

    @model_validator(mode="before")
    @classmethod
    def _prompts(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("prompts"), list):
            return {**value, "prompts": tuple(value["prompts"])}
        return value


class Device(_Section):
    """What the machine is. `auto` is resolved at start, on every rank alike."""

    type: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    attention: Literal["auto", "eager", "sdpa", "flex_attention"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    log_every: Count = 1


class Parallel(_Section):
    """What only the pair of hardware and model can know."""

    micro_batch_size: Count
    sharding: Literal["ddp", "fsdp"] = "ddp"
    activation_checkpointing: Literal["none", "full"] = "none"


class Checkpoint(_Section):
    """How often the run commits its state (in steps) and how many it keeps."""

    every: Count
    keep: Annotated[int, BeforeValidator(_not_bool), Field(strict=True, ge=2)] = 2


class Config(_Section):
    """A whole, checked configuration."""

    model: Model
    sequence_length: Count
    data: Data
    train: Train
    sample: Sample = Sample()
    device: Device = Device()
    parallel: Parallel
    checkpoint: Checkpoint

    @model_validator(mode="after")
    def _micro_batch(self) -> Self:
        if self.train.global_batch_size % self.parallel.micro_batch_size:
            raise ValueError(
                f"train.global_batch_size {self.train.global_batch_size} is not a multiple of "
                f"parallel.micro_batch_size {self.parallel.micro_batch_size}"
            )
        return self

    def accumulation(self, world_size: int) -> int:
        """Micro batches per rank and step: global batch / (micro batch x world size), exactly.

        Raises:
            ConfigError: when the global batch cannot be divided so.
        """
        per_pass = self.parallel.micro_batch_size * world_size
        steps, rest = divmod(self.train.global_batch_size, per_pass)
        if rest or not steps:
            raise ConfigError(
                f"train.global_batch_size {self.train.global_batch_size} cannot be divided into micro batches"
                f" of {self.parallel.micro_batch_size} on {world_size} ranks "
                f"({self.parallel.micro_batch_size} x {world_size} = {per_pass}); "
                f"{self._nearest_batch(world_size)}"
            )
        return steps

    def _nearest_batch(self, world_size: int) -> str:
        per_rank, rest = divmod(self.train.global_batch_size, world_size)
        if rest:
            return f"nearest train.global_batch_size: {max(1, per_rank) * world_size}"
        micro = max(
            m for m in range(1, min(per_rank, self.parallel.micro_batch_size) + 1) if not per_rank % m
        )
        return f"nearest parallel.micro_batch_size: {micro}"

    def digest(self) -> str:
        """SHA-256 (hex) of the whole configuration in canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def load(directory: str | Path) -> Config:
    """Read and check the three files of a configuration directory.

    Raises:
        ConfigError: a file is missing or anything in it is wrong.
    """
    directory = Path(directory)
    texts = {}
    for layer in FILES:
        path = directory / f"{layer}.yaml"
        try:
            texts[layer] = (str(path), path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: no such file; a configuration directory holds {', '.join(FILES)}.yaml"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
    return load_texts(texts)


def load_texts(texts: Mapping[str, tuple[str, str]]) -> Config:
    """Check a configuration given as `{layer: (file name for messages, YAML text)}`."""
    merged: dict[str, Any] = {}
    lines: dict[tuple[Any, ...], tuple[str, int]] = {}
    for layer in FILES:
        name, text = texts[layer]
        for key, value in _parse(layer, name, text).items():
            merged[key] = _plain(value)
        _collect_lines(_parse(layer, name, text), name, (), lines)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        # A misspelt key says more than the missing one it was meant to be.
        errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ConfigError(_message(errors[0], texts, lines)) from None


def apply_override(texts: Mapping[str, tuple[str, str]], assignment: str) -> dict[str, tuple[str, str]]:
    """Set one key (`train.steps=50`) in the text of the file that owns it; comments are kept.

    Values are read as YAML. Raises ConfigError when the assignment has no `=`, the key is unknown, or it
    names a whole section.
    """
    key, separator, value = assignment.partition("=")
    where = f"--set {assignment}"
    if not separator or not key.strip():
        raise ConfigError(f"{where}: write key=value, for example train.steps=50")
    path = key.strip().split(".")
    _check_key(path, where)
    layer = OWNER[path[0]]
    name, text = texts[layer]
    yaml = _yaml()
    document = yaml.load(text) or CommentedMap()
    try:
        parsed = _yaml().load(value) if value.strip() else None
    except YAMLError:
        raise ConfigError(f"{where}: the value is not YAML") from None
    node = document
    for part in path[:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = CommentedMap()
        node = node[part]
    node[path[-1]] = parsed
    out = io.StringIO()
    yaml.dump(document, out)
    return {**texts, layer: (f"{name} (with {where})", out.getvalue())}


def _check_key(path: list[str], where: str) -> None:
    section: Any = Config
    for depth, part in enumerate(path):
        if section is None:
            raise ConfigError(f"{where}: {'.'.join(path[:depth])} is a value and has no keys below it")
        known = section.model_fields
        if part not in known:
            raise ConfigError(
                f"{where}: unknown key {'.'.join(path[: depth + 1])}{_nearest(part, section, path[:depth])}"
            )
        section = _section_of(known[part].annotation)
    if section is not None and path[-1] != "rope_scaling":
        raise ConfigError(
            f"{where}: {'.'.join(path)} is a section; set one of {', '.join(section.model_fields)}"
        )


def _section_of(annotation: Any) -> Any:
    options = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, _Section)), None)


def _nearest(part: str, section: Any, prefix: list[str]) -> str:
    close = difflib.get_close_matches(part, list(section.model_fields), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {'.'.join([*prefix, close[0]])}?"
    elsewhere = [
        f"{top}.{part}" for top, field in Config.model_fields.items()
        if (inner := _section_of(field.annotation)) is not None and part in inner.model_fields
    ]  # fmt: skip
    return (
        f"; did you mean {elsewhere[0]}?" if elsewhere else f"; known here: {', '.join(section.model_fields)}"
    )


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.allow_duplicate_keys = False
    yaml.width = 4096
    return yaml


def _parse(layer: str, name: str, text: str) -> CommentedMap:
    try:
        document = _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem or error.context}") from None
    except YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    if document is None:
        document = CommentedMap()
    if not isinstance(document, CommentedMap):
        raise ConfigError(f"{name}:1: a mapping of sections is needed")
    for key in document:
        line = document.lc.key(key)[0] + 1
        if key not in OWNER:
            raise ConfigError(f"{name}:{line}: unknown key {key}{_nearest(str(key), Config, [])}")
        if OWNER[key] != layer:
            raise ConfigError(
                f"{name}:{line}: {key} belongs in {OWNER[key]}.yaml, not in {layer}.yaml; "
                "each key has one owner"
            )
    return document


def _plain(value: Any) -> Any:
    """ruamel's round-trip types as plain ones, so that strict types can be checked."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _collect_lines(
    node: Any, name: str, path: tuple[Any, ...], lines: dict[tuple[Any, ...], tuple[str, int]]
) -> None:
    if isinstance(node, CommentedMap):
        for key, value in node.items():
            lines[(*path, key)] = (name, node.lc.key(key)[0] + 1)
            _collect_lines(value, name, (*path, key), lines)
    elif isinstance(node, CommentedSeq):
        for index, value in enumerate(node):
            lines[(*path, index)] = (name, node.lc.item(index)[0] + 1)
            _collect_lines(value, name, (*path, index), lines)


def _message(
    error: ErrorDetails,
    texts: Mapping[str, tuple[str, str]],
    lines: Mapping[tuple[Any, ...], tuple[str, int]],
) -> str:
    loc = tuple(error["loc"])
    key = ".".join(str(part) for part in loc)
    if error["type"] == "missing":
        name = texts[OWNER[str(loc[0])]][0]
        at = lines.get(loc[:-1])
        return f"{name}{f':{at[1]}' if at else ''}: {key} is missing"
    at_name, at_line = next((lines[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in lines), ("", 0))
    where = f"{at_name}:{at_line}: " if at_name else ""
    if error["type"] == "extra_forbidden":
        section = Config
        for part in loc[:-1]:
            section = _section_of(section.model_fields[str(part)].annotation)
        return f"{where}unknown key {key}{_nearest(str(loc[-1]), section, [str(p) for p in loc[:-1]])}"
    reason = error["msg"].removeprefix("Value error, ")
    if not loc:
        return f"{texts['cell'][0]} and {texts['model'][0]}: {reason}"
    if error["type"] == "value_error":
        return f"{where}{key}: {reason}"
    hint = ""
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        options = [
            o.strip("'")
            for o in str(error.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
        ]
        close = difflib.get_close_matches(error["input"], options, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
    return f"{where}{key} is {error['input']!r}: {reason[0].lower()}{reason[1:]}{hint}"
