"""Parameters and floating-point operations, counted from the configuration alone.

Light on purpose (no torch): the tools use it to check disk space and sizes before anything starts. A test
holds it, to the unit, against the parameters of the model that transformers builds.
"""

from __future__ import annotations

from training.config import Model


def parameters(model: Model) -> int:
    """Number of trainable parameters, a tied output head counted once."""
    head = model.hidden_size // model.num_attention_heads
    attention = 2 * model.hidden_size * model.num_attention_heads * head  # q and o
    attention += 2 * model.hidden_size * model.num_key_value_heads * head  # k and v
    feed_forward = 3 * model.hidden_size * model.intermediate_size  # gate, up, down
    layer = attention + feed_forward + 2 * model.hidden_size  # two RMS norms
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    return model.num_hidden_layers * layer + embeddings + model.hidden_size


def flops_per_token(model: Model, sequence_length: int) -> int:
    """FLOP per token of forward and backward in torchtitan's convention.

    6 x (parameters - input embedding) + 12 x layers x hidden size x sequence length, with no discount for
    the causal mask (torchtitan, `torchtitan/models/utils.py`). A tied head still multiplies, so with tied
    embeddings the one matrix stays in the count.
    """
    multiplied = parameters(model)
    if not model.tie_word_embeddings:
        multiplied -= model.vocab_size * model.hidden_size
    return 6 * multiplied + 12 * model.num_hidden_layers * model.hidden_size * sequence_length
