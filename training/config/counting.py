"""Counts parameters and floating-point operations from the configuration.

It does not import torch: the tools use it to check disk space and sizes before anything starts. A test
compares it exactly with the parameters of the models that transformers builds.
"""

from __future__ import annotations

from training.config import Lora, Model


def parameters(model: Model) -> int:
    """Number of parameters; a tied output head counts once. BERT's include its two pre-training heads."""
    return model.num_hidden_layers * layer_parameters(model) + outer_parameters(model)


def layer_parameters(model: Model) -> int:
    """Number of parameters of one block, with all of its experts."""
    shapes = linear_shapes(model)
    weights = sum(inner * outer for inner, outer in shapes.values())
    if model.bert is not None:
        return weights + sum(outer for _, outer in shapes.values()) + 2 * 2 * model.hidden_size  # two norms
    weights += sum(shapes[name][1] for name in model.family.biased)
    return weights + sum(norm_widths(model).values()) + _router(model) + expert_parameters(model)


def expert_parameters(model: Model) -> int:
    """Number of parameters of all experts of one block; 0 without experts."""
    return (model.num_local_experts or 0) * 3 * model.hidden_size * model.intermediate_size


def active_parameters(model: Model) -> int:
    """Number of parameters that process one token: all but those of the experts that are not chosen."""
    if model.num_local_experts is None or model.num_experts_per_tok is None:
        return parameters(model)
    each = expert_parameters(model) // model.num_local_experts
    idle = model.num_local_experts - model.num_experts_per_tok
    return parameters(model) - model.num_hidden_layers * idle * each


def _router(model: Model) -> int:
    return (model.num_local_experts or 0) * model.hidden_size


def outer_parameters(model: Model) -> int:
    """Number of parameters outside the blocks: embeddings, the last norm, heads."""
    hidden, words = model.hidden_size, model.vocab_size * model.hidden_size
    if model.bert is None:
        return words * (1 if model.tie_word_embeddings else 2) + hidden
    norm = 2 * hidden
    transform = hidden * hidden + hidden + norm  # of the masked-word head, before the word table
    heads = transform + model.vocab_size + 2 * hidden + 2  # the words' bias; the next-sentence head
    if not model.tie_word_embeddings:
        heads += words
    pooler = hidden * hidden + hidden
    return words + _positions(model) + norm + pooler + heads


def linear_shapes(model: Model) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer of a block, by its name in transformers."""
    sizes = _sizes(model)
    return {name: (sizes[inner], sizes[outer]) for name, (inner, outer) in model.family.linears.items()}


def norm_widths(model: Model) -> dict[str, int]:
    """Number of parameters of each norm of a block, by its name in transformers."""
    sizes = _sizes(model)
    return {name: sizes[width] for name, width in model.family.norms.items()}


def _sizes(model: Model) -> dict[str, int]:
    """The sizes that training/config/families.py names."""
    queries, narrow = (n * model.head_size for n in (model.num_attention_heads, model.num_key_value_heads))
    return {
        "hidden": model.hidden_size, "inner": model.intermediate_size, "2*inner": 2 * model.intermediate_size,
        "head": model.head_size, "queries": queries, "narrow": narrow,
        "queries+2*narrow": queries + 2 * narrow,
    }  # fmt: skip


def adapter_parameters(model: Model, lora: Lora) -> int:
    """Number of parameters that LoRA trains: rank x (inputs + outputs) of adapted layers; saved modules."""
    shapes = linear_shapes(model)
    low_rank = model.num_hidden_layers * lora.rank * sum(sum(shapes[name]) for name in lora.target_modules)
    return low_rank + saved_parameters(model, lora)


def saved_parameters(model: Model, lora: Lora) -> int:
    """Number of parameters of the modules that are trained in full beside the adapters."""
    shapes = linear_shapes(model)
    biased = model.family.biased
    inside = {name: inner * outer + (outer if name in biased else 0) for name, (inner, outer) in shapes.items()}
    inside |= norm_widths(model)
    words = model.vocab_size * model.hidden_size
    outside = {"embed_tokens": words, "lm_head": words, "norm": model.hidden_size}
    return sum(
        outside[name] if name in outside else model.num_hidden_layers * inside[name] for name in lora.modules_to_save
    )


def trainable_parameters(model: Model, lora: Lora | None = None) -> int:
    """Number of parameters that receive gradients: those of the adapters if there are any, else all."""
    return parameters(model) if lora is None else adapter_parameters(model, lora)


def flops_per_token(model: Model, sequence_length: int, lora: Lora | None = None) -> int:
    """FLOP per token of forward and backward pass, in torchtitan's convention.

    6 x (parameters - input embedding) + 12 x layers x heads x head size x sequence length, without a discount
    for the causal mask (torchtitan, `torchtitan/models/utils.py`). Of the experts only those that process a
    token count. A layer with a sliding window counts the window where it is shorter than the sequence. A tied
    table is also the output head, so it stays in the count. A frozen base needs no weight gradients, so with
    LoRA its parameters count 4 each and those of the adapters 6 (NVIDIA NeMo's convention for LoRA). Modules that
    are trained in full stand in place of those of the base.
    """
    multiplied = active_parameters(model)
    if not model.tie_word_embeddings:
        multiplied -= model.vocab_size * model.hidden_size
    if model.bert is not None:
        multiplied -= _positions(model)
    seen = sum(min(window or sequence_length, sequence_length) for window in model.windows)
    attention = 12 * model.num_attention_heads * model.head_size * seen
    if lora is None:
        return 6 * multiplied + attention
    looked_up = model.vocab_size * model.hidden_size if "embed_tokens" in lora.modules_to_save else 0
    replaced = saved_parameters(model, lora) - looked_up
    return 4 * (multiplied - replaced) + 6 * (adapter_parameters(model, lora) - looked_up) + attention


def unlabelled_flops(model: Model, lora: Lora | None = None) -> int:
    """FLOP of `flops_per_token` that a token without a label does not need: those of the output head.

    0 for BERT, whose speed counts all tokens although its head predicts the masked ones only.
    """
    words = 0 if model.bert is not None else model.vocab_size * model.hidden_size
    return words * (6 if lora is None or "lm_head" in lora.modules_to_save else 4)


def _positions(model: Model) -> int:
    """Number of parameters of BERT's position and segment tables, which are only looked up."""
    if model.bert is None:
        return 0
    return (model.bert.max_position_embeddings + model.bert.type_vocab_size) * model.hidden_size
