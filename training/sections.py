"""The sections of the trainer's configuration: each key with its type, its default and what it must fit."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

PRETRAIN, FINETUNE, BERT = "training.pretrain", "training.finetune", "training.bert"


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


# The linear layers of a Llama or Qwen2 block, in transformers' names.
LinearName = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WEIGHTS = re.compile(r"/\S+|run:[a-z0-9][a-z0-9.-]*|[\w.-]+/[\w.-]+@[\w.-]+")
NOT_IN_BERT = {
    "rms_norm_eps": "model.bert.layer_norm_eps is its like",
    "rope_theta": "its positions are learned",
    "rope_scaling": "its positions are learned",
    "num_key_value_heads": "every head has its own",
}


def _wrong(key: str, message: str) -> PydanticCustomError:
    """An error that belongs to a dotted key, which may stand in another section than the one checked."""
    return PydanticCustomError("key", "{message}", {"key": key, "message": message})


def _with_tuple(value: Any, key: str) -> Any:
    """Give a YAML list as the tuple that a frozen section holds."""
    if isinstance(value, dict) and isinstance(value.get(key), list):
        return {**value, key: tuple(value[key])}
    return value


class Section(BaseModel):
    """One mapping of the configuration: no unknown keys, no silent conversion, no change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RopeScaling(Section):
    """Llama 3.1's frequency scaling (`rope_type: llama3` of transformers)."""

    rope_type: Literal["llama3"]
    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Count


class BertShape(Section):
    """What only BERT has, in the names of transformers' `BertConfig`."""

    max_position_embeddings: Count
    type_vocab_size: Count = 2
    layer_norm_eps: Positive = 1e-12
    hidden_dropout: Fraction = 0.1


class Model(Section):
    """Architecture, in the names of transformers' `LlamaConfig`, `Qwen2Config` and `BertConfig`.

    `weights` is where training starts: a directory with safetensors (`/shared/models/...`), the newest
    checkpoint of another run (`run:<job>`), or a pinned Hugging Face revision
    (`<organisation>/<name>@<revision>`). Without it every weight is drawn from the seed.
    """

    architecture: Literal["llama", "qwen2", "bert"]
    weights: str | None = None
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
    bert: BertShape | None = None

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_architecture(cls, value: Any) -> Any:
        """BERT has no key/value heads, no rotary positions, no RMS norm; the others have no `bert` keys."""
        if not isinstance(value, dict):
            return value
        if value.get("architecture") != "bert":
            if value.get("bert") is not None:
                raise _wrong("model.bert", "model.bert is for architecture bert only")
            return value
        for key, instead in NOT_IN_BERT.items():
            if key in value:
                raise _wrong(f"model.{key}", f"architecture bert has no {key}; {instead}")
        if value.get("bert") is None:
            raise _wrong("model.architecture", "architecture bert needs the section model.bert")
        return {**value, "num_key_value_heads": value.get("num_attention_heads")}

    @model_validator(mode="after")
    def _weights(self) -> Self:
        if self.weights is not None and not WEIGHTS.fullmatch(self.weights):
            raise _wrong(
                "model.weights",
                f"model.weights is {self.weights!r}: write an absolute directory, run:<job>, "
                "or <organisation>/<name>@<revision>",
            )
        if self.architecture == "qwen2" and self.weights is None:
            raise _wrong(
                "model.architecture", "architecture qwen2 is fine-tuned only: model.weights is missing"
            )
        return self

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.architecture != "bert" and self.hidden_size // self.num_attention_heads % 2:
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


class Lora(Section):
    """Low-rank adapters in the names of peft's `LoraConfig`: only they are trained, the base is frozen."""

    rank: Count
    alpha: Count
    dropout: Fraction = 0.0
    target_modules: tuple[LinearName, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _target_modules(cls, value: Any) -> Any:
        return _with_tuple(value, "target_modules")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.target_modules)) < len(self.target_modules):
            raise ValueError("target_modules names a module twice")
        return self


class Masking(Section):
    """Which tokens BERT must guess (Devlin et al. 2018, section 3.1): at most `most` of each sequence."""

    fraction: Annotated[float, BeforeValidator(_not_bool), Field(strict=True, gt=0, lt=1)] = 0.15
    most: Count
    whole_words: bool = False


class Data(Section):
    """Where documents come from and how they become tokens."""

    source: str = Field(min_length=1)
    text_field: str = Field(default="text", min_length=1)
    heldout_fraction: Annotated[float, BeforeValidator(_not_bool), Field(strict=True, gt=0, lt=1)] = 0.02
    tokenizer: str = Field(default="train", min_length=1)


class Train(Section):
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


class Sample(Section):
    """Continuations printed when training ends; no prompts, no samples."""

    prompts: tuple[str, ...] = ()
    max_new_tokens: Count = 48
    temperature: NotNegative = 0.8

    @model_validator(mode="before")
    @classmethod
    def _prompts(cls, value: Any) -> Any:
        return _with_tuple(value, "prompts")


class Device(Section):
    """What the machine is. `auto` is resolved at start, on every rank alike."""

    type: Literal["auto", "cpu", "cuda", "neuron"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    attention: Literal["auto", "eager", "sdpa", "flex_attention"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    log_every: Count = 1


class Parallel(Section):
    """What only the pair of hardware and model can know."""

    micro_batch_size: Count
    sharding: Literal["ddp", "fsdp"] = "ddp"
    activation_checkpointing: Literal["none", "full"] = "none"


class Checkpoint(Section):
    """How often the run commits its state (in steps) and how many it keeps."""

    every: Count
    keep: Annotated[int, BeforeValidator(_not_bool), Field(strict=True, ge=2)] = 2


class Config(Section):
    """A whole, checked configuration."""

    model: Model
    sequence_length: Count
    lora: Lora | None = None
    masking: Masking | None = None
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

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        bert = self.model.bert
        if (bert is None) != (self.masking is None):
            if bert is None:
                raise _wrong("masking", "masking is for architecture bert only")
            raise _wrong("model.architecture", "architecture bert needs the section masking")
        if bert is not None and self.sequence_length > bert.max_position_embeddings:
            raise _wrong(
                "sequence_length",
                f"sequence_length {self.sequence_length} is above model.bert.max_position_embeddings "
                f"{bert.max_position_embeddings}",
            )
        if self.masking is not None and self.masking.most > self.sequence_length:
            raise _wrong(
                "masking.most",
                f"masking.most {self.masking.most} is above sequence_length {self.sequence_length}",
            )
        if self.lora is None:
            return self
        if bert is not None:
            raise _wrong("lora", "lora is for causal models only: architecture is bert")
        if self.model.weights is None:
            raise _wrong("lora", "lora adapts a trained model: model.weights is missing")
        return self

    @property
    def task(self) -> str:
        """The module that trains this: training.pretrain, training.finetune or training.bert."""
        if self.model.architecture == "bert":
            return BERT
        return PRETRAIN if self.model.weights is None else FINETUNE

    def require_task(self, module: str) -> None:
        """Refuse a configuration of another entry point, or for a device that this one has no code for.

        Raises:
            ConfigError: names the module that this configuration is for, and the key that says so.
        """
        if self.task == module:
            if module == PRETRAIN and self.device.type == "neuron":
                raise ConfigError(f"device.type is neuron, and {module} trains on cpu and cuda")
            return
        reason = {
            BERT: "model.architecture is bert",
            FINETUNE: "model.weights is set",
            PRETRAIN: "model.weights is missing",
        }[self.task]
        raise ConfigError(f"{module} does not train this configuration, {self.task} does: {reason}")

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
        wanted = self.parallel.micro_batch_size
        if not rest:
            micro = max(m for m in range(1, min(per_rank, wanted) + 1) if not per_rank % m)
            return f"nearest parallel.micro_batch_size: {micro}"
        passes = max(1, round(self.train.global_batch_size / (wanted * world_size)))
        return f"nearest train.global_batch_size: {passes * wanted * world_size}"

    def digest(self) -> str:
        """SHA-256 (hex) of the whole configuration in canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
