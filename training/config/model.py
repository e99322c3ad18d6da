"""What is trained: architecture, where its weights come from, adapters."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from training.config.base import Count, Fraction, Positive, Section, with_tuple, wrong

# The linear layers of a Llama or Qwen2 block, in transformers' names.
LinearName = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# What can be trained whole beside the adapters.
ModuleName = Literal[
    "embed_tokens", "lm_head", "norm", "input_layernorm", "post_attention_layernorm",
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
]  # fmt: skip
WEIGHTS = re.compile(r"/\S+|run:[a-z0-9][a-z0-9.-]*|[\w.-]+/[\w.-]+@[\w.-]+")
NOT_IN_BERT = {
    "rms_norm_eps": "model.bert.layer_norm_eps is its like",
    "rope_theta": "its positions are learned",
    "rope_scaling": "its positions are learned",
    "num_key_value_heads": "every head has its own",
}


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
                raise wrong("model.bert", "model.bert is for architecture bert only")
            return value
        for key, instead in NOT_IN_BERT.items():
            if key in value:
                raise wrong(f"model.{key}", f"architecture bert has no {key}; {instead}")
        if value.get("bert") is None:
            raise wrong("model.architecture", "architecture bert needs the section model.bert")
        return {**value, "num_key_value_heads": value.get("num_attention_heads")}

    @model_serializer(mode="wrap")
    def _only_keys_of_the_architecture(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written down can be read again."""
        values: dict[str, Any] = dumped(self)
        return {key: v for key, v in values.items() if self.bert is None or key not in NOT_IN_BERT}

    @model_validator(mode="after")
    def _weights(self) -> Self:
        if self.weights is not None and not WEIGHTS.fullmatch(self.weights):
            raise wrong(
                "model.weights",
                f"model.weights is {self.weights!r}: write an absolute directory, run:<job>, "
                "or <organisation>/<name>@<revision>",
            )
        if self.architecture == "qwen2" and self.weights is None:
            raise wrong(
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
    """Low-rank adapters in the names of peft's `LoraConfig`: only they are trained, the base is frozen.

    `modules_to_save` are trained whole, in copies of their own that are saved with the adapters.
    """

    rank: Count
    alpha: Count
    dropout: Fraction = 0.0
    target_modules: tuple[LinearName, ...] = Field(min_length=1)
    modules_to_save: tuple[ModuleName, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        return with_tuple(with_tuple(value, "target_modules"), "modules_to_save")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for key in ("target_modules", "modules_to_save"):
            if len(set(getattr(self, key))) < len(getattr(self, key)):
                raise ValueError(f"{key} names a module twice")
        for name in self.modules_to_save:
            if name in self.target_modules:
                raise ValueError(f"modules_to_save and target_modules both name {name}")
        return self
