"""The causal language model: transformers' model built on meta, our initial values, its loss.

The model's family is a row of training/config/families.py. Its class is looked up in transformers by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import repeat_kv
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from training.config import Config, ConfigError
from training.config.choices import ATTENTION_BLOCK
from training.config.counting import layer_parameters, parameters
from training.config.families import OPTIONAL
from training.models.experts import follow_autocast
from training.models.head import IGNORE, HeadLoss
from training.models.init import fill_normal
from training.task import Trainable

# transformers makes no mask for an implementation of this name, so torch takes its kernels for causal attention.
_WITHOUT_MASK = "sdpa_without_mask"
AttentionInterface.register(_WITHOUT_MASK, sdpa_attention_forward)


def attention_in_blocks(
    _module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor,
    scaling: float, dropout: float = 0.0, **_more: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Plain causal attention, in which a block of queries multiplies only the keys up to its end.

    query [batch, heads, sequence, head size]; key and value the same with fewer heads; mask, additive, [batch, 1,
    sequence, sequence]. Returns [batch, sequence, heads, head size].
    """
    length, shared = query.shape[2], query.shape[1] // key.shape[1]
    key, value = (repeat_kv(each, shared) for each in (key, value))
    blocks = []
    for first in range(0, length, ATTENTION_BLOCK):
        end = min(first + ATTENTION_BLOCK, length)
        scores = query[:, :, first:end] @ key[:, :, :end].transpose(2, 3) * scaling + mask[:, :, first:end, :end]
        shares = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
        blocks.append(functional.dropout(shares, dropout) @ value[:, :, :end])
    return torch.cat(blocks, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register("blocks", attention_in_blocks)


def hf_config(config: Config, attention: str = "eager") -> PreTrainedConfig:
    """transformers' configuration of the section `model`."""
    model = config.model
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": model.rope_theta}
    longest = config.sequence_length
    if model.rope_scaling is not None:
        rope = {**model.rope_scaling.model_dump(), "rope_theta": model.rope_theta}
        longest = int(model.rope_scaling.original_max_position_embeddings * model.rope_scaling.factor)
    built: PreTrainedConfig = getattr(transformers, model.family.config)(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        rms_norm_eps=model.rms_norm_eps,
        tie_word_embeddings=model.tie_word_embeddings,
        attention_dropout=model.attention_dropout,
        initializer_range=model.initializer_range,
        max_position_embeddings=max(longest, config.sequence_length),
        use_cache=False,
        attn_implementation=attention,
        **{"rope_parameters": rope, **_of_the_family(config)},
    )
    return built


def _of_the_family(config: Config) -> dict[str, object]:
    """The arguments that only some families have.

    `pad_token_id` of some has a default, whose row of the token table would then never be trained.
    """
    model, keys = config.model, config.model.family.keys
    found = {key: getattr(model, key) for key in OPTIONAL if key in keys} | {"pad_token_id": None}
    if "head_dim" in keys:
        found["head_dim"] = model.head_size
    if model.sliding_window_pattern is None:
        return found
    del found["sliding_window_pattern"], found["rope_local_base_freq"]
    names = ["full_attention" if window is None else "sliding_attention" for window in model.windows]
    bases = {"full_attention": model.rope_theta, "sliding_attention": model.rope_local_base_freq}
    rope = {name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()}
    return {
        **found, "layer_types": names, "rope_parameters": rope, "query_pre_attn_scalar": model.head_size
    }  # fmt: skip


class CausalLM(Trainable):
    """A causal language model that returns its summed loss, so that head and loss are compiled together."""

    def __init__(self, config: Config, attention: str) -> None:
        super().__init__()
        self.attention = _WITHOUT_MASK if attention == "sdpa" and config.plainly_causal else attention
        self.model, self.masks_documents = config.model, config.data.document_mask
        self.hf = getattr(transformers, config.model.family.model)(hf_config(config, self.attention))
        if config.model.num_local_experts is not None:
            for block in self.blocks():
                follow_autocast(block.get_submodule("mlp.experts"))
        self.head_loss = HeadLoss()
        self.block_mask = create_block_mask

    def blocks(self) -> list[nn.Module]:
        return list(self.hf.model.layers)

    def compile_outside(self) -> None:
        self.head_loss.compile()
        self.block_mask = torch.compile(create_block_mask)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        position_ids: torch.Tensor,
        document_ids: torch.Tensor,
        labelled: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum of the cross-entropy in nats over positions with a label, fp32 [1].

        The other arguments are int64 [batch, sequence]; labels are the next tokens or IGNORE. `labelled`, int64
        [positions], has every position with a label, counted through the batch; others get no logits. In training, a
        mixture of experts adds its balancing loss for each label, so that the mean contains it once.
        """
        if not self.masks_documents:
            document_ids, position_ids = _as_one_document(document_ids)
        routed = self.training and self.model.num_local_experts is not None
        with self.keeping():
            found = self.hf.model(
                input_ids=input_ids, attention_mask=self._masks(document_ids), position_ids=position_ids,
                use_cache=False, **({"output_router_logits": True} if routed else {}),
            )  # fmt: skip
        head = self.hf.lm_head.weight
        head = head.to_local() if isinstance(head, DTensor) else head  # this rank's words
        loss = self.head_loss(found.last_hidden_state, head, labels, labelled)
        if routed:
            loss = loss + self._balance(found.router_logits) * (labels != IGNORE).sum()
        return torch.stack([loss])  # FSDP warns of views

    def _balance(self, router_logits: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The weighted loss that balances the experts (Fedus et al. 2021, arXiv 2101.03961, equation 4)."""
        model = self.model
        assert model.router_aux_loss_coef is not None
        loss = load_balancing_loss_func(router_logits, model.num_local_experts, model.num_experts_per_tok)
        return torch.as_tensor(loss) * model.router_aux_loss_coef

    def _masks(self, document_ids: torch.Tensor) -> Any:
        """The attention mask; for layers of two kinds one for each kind."""
        if self.attention == _WITHOUT_MASK:
            return None
        mask = document_mask(document_ids, self.attention, self.model.sliding_window, self.block_mask)
        if self.model.sliding_window_pattern is None:
            return mask
        everything = document_mask(document_ids, self.attention, None, self.block_mask)
        return {"sliding_attention": mask, "full_attention": everything}

    def logits(self, input_ids: torch.Tensor, position_ids: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
        """Logits [batch, sequence, vocabulary]."""
        if not self.masks_documents:
            document_ids, position_ids = _as_one_document(document_ids)
        return self.hf(
            input_ids=input_ids, attention_mask=self._masks(document_ids), position_ids=position_ids,
            use_cache=False,
        ).logits  # fmt: skip


def _as_one_document(document_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Document and position numbers, int64 [batch, sequence], of samples that are one document each."""
    positions = torch.arange(document_ids.shape[1], device=document_ids.device)
    return torch.zeros_like(document_ids), positions.expand_as(document_ids)


def document_mask(
    document_ids: torch.Tensor,
    attention: str,
    window: int | None = None,
    create: Callable[..., Any] = create_block_mask,
) -> Any:
    """The attention mask: a position may attend to itself and to earlier positions of the same document.

    With a `window` it attends to that many positions, its own included.
    Returns an additive mask for eager and blocks, a boolean one for sdpa, both [batch, 1, sequence, sequence], and a
    block mask for flex_attention by `create`, which does not hold all pairs of positions where it is compiled.
    """
    batch, length = document_ids.shape
    span = length if window is None else window
    if attention == "flex_attention":
        return _block_mask(document_ids, batch, length, span, create)
    positions = torch.arange(length, device=document_ids.device)
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    allowed = same & (positions[:, None] >= positions[None, :])
    if span < length:
        allowed &= positions[:, None] - positions[None, :] < span
    if attention == "sdpa":
        return allowed
    blocked = torch.finfo(torch.bfloat16).min
    return torch.zeros(allowed.shape, device=document_ids.device).masked_fill_(~allowed, blocked)


def _block_mask(document_ids: torch.Tensor, batch: int, length: int, span: int, create: Callable[..., Any]) -> Any:
    def allowed(b: torch.Tensor, _h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (document_ids[b, q] == document_ids[b, k])

    def near(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return allowed(b, h, q, k) & (q - k < span)

    return create(near if span < length else allowed, batch, None, length, length, device=str(document_ids.device))


def build_on_meta(config: Config, attention: str) -> CausalLM:
    """Build the model without memory, and check its parameter count against the configuration's."""
    with torch.device("meta"):
        model = CausalLM(config, attention)
    check_count(model, config)
    return model


def check_count(model: Trainable, config: Config) -> None:
    """Check a model's parameter count against the configuration's.

    Raises:
        ConfigError: they differ, so sizes, memory and FLOP of this architecture would be wrong everywhere.
    """
    built, counted = sum(p.numel() for p in model.parameters()), parameters(config.model)
    if built != counted:
        block = sum(p.numel() for p in model.blocks()[0].parameters())
        raise ConfigError(
            f"model.architecture {config.model.architecture}: the model has {built:,} parameters "
            f"({block:,} per block), but training/config/counting.py counts {counted:,} "
            f"({layer_parameters(config.model):,} per block)"
        )


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters under transformers' names, whatever wraps the model; a tied one appears once."""
    for name, parameter in model.named_parameters():
        yield name.removeprefix("module.").removeprefix("hf.").replace("_orig_mod.", ""), parameter


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The named parameters that receive gradients."""
    return ((name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad)


def initialise(model: CausalLM, config: Config, device: torch.device) -> None:
    """Give memory and values to every parameter and buffer of a model on meta, sharded or not.

    Matrices are normal with `initializer_range`; the two projections back into the residual stream are
    divided by sqrt(2 x layers) (Radford et al. 2019, section 2.3). The output head's deviation is at most
    1 / (2 sqrt(hidden size)), which keeps the first logits' deviation near one half and so the first loss
    within about one percent of ln(vocabulary). Norms are 1 (0 where the model multiplies by 1 + weight),
    biases 0.
    """
    materialise(model, config, device)
    with torch.no_grad():
        for name, parameter in named_parameters(model):
            if name.endswith("norm.weight"):
                parameter.fill_(config.model.family.norm_start)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                fill_normal(name, parameter, config.train.seed, _deviation(name, config))


@torch.no_grad()
def materialise(model: Trainable, config: Config, device: torch.device) -> None:
    """Give memory to a model on meta, sharded or not, and transformers' values to its buffers."""
    model.to_empty(device=device)
    if config.model.tie_word_embeddings:  # leaving meta gives each module its own tensor
        model.hf.lm_head.weight = model.hf.model.embed_tokens.weight
    for module in model.modules():
        _fill_buffers(module)


def _deviation(name: str, config: Config) -> float:
    base = config.model.initializer_range
    if name.removesuffix(".weight").endswith(("o_proj", "down_proj")):  # a tensor of experts has no suffix
        return base / math.sqrt(2 * config.model.num_hidden_layers)
    if name == "lm_head.weight" or (name == "model.embed_tokens.weight" and config.model.tie_word_embeddings):
        return min(base, 0.5 / math.sqrt(config.model.hidden_size))
    return base


def _fill_buffers(module: nn.Module) -> None:
    own = dict(module.named_buffers(recurse=False))
    if not own:
        return
    if own.keys() == {"embed_scale"}:  # Gemma's
        own["embed_scale"].fill_(float(module.scalar_embed_scale))  # type: ignore[arg-type]
        return
    if not type(module).__name__.endswith("RotaryEmbedding"):
        raise AssertionError(f"{type(module).__name__} has buffers {sorted(own)} that no rule initialises")
    fresh = type(module)(module.config)
    for name, value in fresh.named_buffers(recurse=False):
        own[name].copy_(value)
