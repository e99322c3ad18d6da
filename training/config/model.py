"""The model: its architecture, the origin of its weights, its adapters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from training.config.base import Count, Fraction, NotNegative, Positive, Section, divisor_near, with_tuple, wrong
from training.config.families import FAMILIES, LINEARS, MODULES, OPTIONAL, Family

# The names are the registry's; mypy knows them as text.
if TYPE_CHECKING:
    Architecture = str
    LinearName = str
    ModuleName = str
else:
    Architecture, LinearName, ModuleName = (Literal[tuple(names)] for names in (FAMILIES, LINEARS, MODULES))
WEIGHTS = re.compile(r"/\S(?:.*\S)?|run:[a-z0-9][a-z0-9.-]*|[\w.-]+/[\w.-]+@[\w.-]+")
NOT_IN_BERT = {
    "rms_norm_eps": "use model.bert.layer_norm_eps",
    "rope_theta": "its positions are learned",
    "rope_scaling": "its positions are learned",
    "num_key_value_heads": "every head has its own",
}


class RopeScaling(Section):
    """Llama 3.1's frequency scaling (`rope_type: llama3` of transformers)."""

    rope_type: Literal["llama3"]
    """The kind of scaling; only Llama 3.1's is known."""

    factor: Positive
    """Factor by which low frequencies are divided."""

    low_freq_factor: Positive
    """Wavelengths above original_max_position_embeddings / low_freq_factor, in tokens, are scaled fully."""

    high_freq_factor: Positive
    """Wavelengths below original_max_position_embeddings / high_freq_factor, in tokens, are not scaled."""

    original_max_position_embeddings: Count
    """Context length, in tokens, that the model was trained with before scaling."""


class BertShape(Section):
    """Keys that only BERT has, named as in transformers' `BertConfig`."""

    max_position_embeddings: Count
    """Number of learned positions, in tokens: the upper limit of sequence_length."""

    type_vocab_size: Count = 2
    """Number of segment types: first sentence and second sentence."""

    layer_norm_eps: Positive = 1e-12
    """Constant added to the variance in each layer norm."""

    hidden_dropout: Fraction = 0.1
    """Probability, from 0 up to but not including 1, that a hidden value is dropped during training."""


class Model(Section):
    """The architecture; keys are named as in a config.json of transformers."""

    architecture: Architecture
    """The family of models: `model_type` of a config.json."""

    weights: str | None = None
    """Where the initial weights are: a directory with safetensors (/shared/models/...), the newest checkpoint
    of another run (run:<job>), or a pinned Hugging Face revision (<organisation>/<name>@<revision>); without
    it all weights are random, drawn from train.seed."""

    vocab_size: Count
    """Number of tokens in the vocabulary."""

    hidden_size: Count
    """Width of the model: values per token between the layers."""

    intermediate_size: Count
    """Width of each layer's MLP, in values per token."""

    num_hidden_layers: Count
    """Number of transformer layers."""

    num_attention_heads: Count
    """Number of query heads in each layer; a divisor of hidden_size."""

    num_key_value_heads: Count
    """Number of key/value heads in each layer; a divisor of num_attention_heads, and not a key of BERT."""

    rms_norm_eps: Positive = 1e-5
    """Constant added to the mean square in each RMS norm; not a key of BERT."""

    rope_theta: Positive = 10000.0
    """Base of the rotary position embeddings' wavelengths; not a key of BERT."""

    rope_scaling: RopeScaling | None = None
    """Scaling of the rotary position embeddings for a longer context; not a key of BERT."""

    tie_word_embeddings: bool = False
    """Whether the output layer uses the same table as the token embeddings."""

    attention_dropout: Fraction = 0.0
    """Probability, from 0 up to but not including 1, that an attention weight is dropped during training."""

    initializer_range: Positive = 0.02
    """Standard deviation of the random initial weights."""

    head_dim: Count | None = None
    """Width of an attention head; without it hidden_size / num_attention_heads; a key of llama, qwen3,
    mistral, gemma, gemma3_text and mixtral."""

    sliding_window: Count | None = None
    """Number of tokens, its own included, to which a token attends; without it all earlier ones; a key of
    mistral, mixtral, phi3 and gemma3_text."""

    sliding_window_pattern: Count | None = None
    """Every layer whose number is a multiple of this attends to all earlier tokens, the others within
    sliding_window; a key of gemma3_text."""

    rope_local_base_freq: Positive | None = None
    """Base of the wavelengths, as rope_theta, in the layers with a sliding window; a key of gemma3_text."""

    num_local_experts: Count | None = None
    """Number of experts in each layer; a key of mixtral."""

    num_experts_per_tok: Count | None = None
    """Number of experts that process a token; a key of mixtral."""

    router_aux_loss_coef: NotNegative | None = None
    """Weight of the loss that balances the experts, in training; held-out losses are without it; a key of
    mixtral."""

    bert: BertShape | None = None
    """Keys that only BERT has; required for it, and an error for the others."""

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_architecture(cls, value: Any) -> Any:
        """BERT has no key/value heads, no rotary positions, no RMS norm; the others have no `bert` keys."""
        if not isinstance(value, dict):
            return value
        if value.get("architecture") != "bert":
            if value.get("bert") is not None:
                raise wrong("model.bert", "model.bert is for architecture bert only")
            _check_keys(value)
            return value
        for key, instead in NOT_IN_BERT.items():
            if key in value:
                raise wrong(f"model.{key}", f"architecture bert has no {key}; {instead}")
        if value.get("bert") is None:
            raise wrong("model.architecture", "architecture bert needs the section model.bert")
        return {**value, "num_key_value_heads": value.get("num_attention_heads")}

    @model_serializer(mode="wrap")
    def _only_keys_of_the_architecture(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that validation refuses for BERT, so that a saved configuration can be read."""
        values: dict[str, Any] = dumped(self)
        known = {key: v for key, v in values.items() if v is not None or key not in OPTIONAL}
        return {key: v for key, v in known.items() if self.bert is None or key not in NOT_IN_BERT}

    @property
    def family(self) -> Family:
        """The architecture's row of the registry."""
        return FAMILIES[self.architecture]

    @property
    def head_size(self) -> int:
        """Width of an attention head, in values per token."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def windows(self) -> list[int | None]:
        """For each layer the number of tokens to which a token attends; None for all earlier ones."""
        every = self.sliding_window_pattern
        return [
            None if every and layer % every == 0 else self.sliding_window
            for layer in range(1, self.num_hidden_layers + 1)
        ]

    @model_validator(mode="after")
    def _weights(self) -> Self:
        if self.weights is not None and not WEIGHTS.fullmatch(self.weights):
            raise wrong(
                "model.weights",
                f"model.weights is {self.weights!r}: write an absolute directory, run:<job>, "
                "or <organisation>/<name>@<revision>",
            )
        return self

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}; "
                f"nearest value: {divisor_near(self.hidden_size, self.num_attention_heads)}"
            )
        if self.architecture != "bert" and self.head_size % 2:
            said = "head_dim" if self.head_dim else "hidden_size / num_attention_heads"
            raise ValueError(f"{said} is {self.head_size}, but rotary embeddings need an even head size")
        if (self.num_experts_per_tok or 0) > (self.num_local_experts or 0):
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is above num_local_experts {self.num_local_experts}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}; "
                f"nearest value: {divisor_near(self.num_attention_heads, self.num_key_value_heads)}"
            )
        return self


def _check_keys(value: dict[str, Any]) -> None:
    """Refuse keys that the architecture does not have, and name those that it lacks."""
    name = value.get("architecture")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        return  # the type of `architecture` is refused with the known names
    for key in (*OPTIONAL, "rope_scaling"):
        if value.get(key) is not None and key not in family.keys:
            raise wrong(f"model.{key}", f"architecture {name} has no {key}")
        if value.get(key) is None and key in family.needs:
            raise wrong("model.architecture", f"architecture {name} needs model.{key}")


class Lora(Section):
    """Low-rank adapters, named as in peft's `LoraConfig`: only they are trained, the base is frozen."""

    rank: Count
    """Rank of the adapters' two matrices."""

    alpha: Count
    """Numerator of the adapters' scale: their output is multiplied by alpha / rank."""

    dropout: Fraction = 0.0
    """Probability, from 0 up to but not including 1, that an input value of an adapter is dropped during
    training."""

    target_modules: tuple[LinearName, ...] = Field(min_length=1)
    """The linear layers that get an adapter in every block."""

    modules_to_save: tuple[ModuleName, ...] = ()
    """Modules that are trained in full; their copies are saved with the adapters."""

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
