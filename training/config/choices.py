"""What the trainer chooses itself, from the configuration alone, so that the planner and all ranks choose alike.

It does not import torch. What also depends on the machine is in training/device.
"""

from __future__ import annotations

from training.config import Config, Model
from training.config.base import divisor_near
from training.config.counting import flops_per_token, parameters

# FLOP after which a CPU in fp32 gets back the minute that compiling takes there: compiled blocks are 10 % faster.
# Measured with cpu/llama-tiny on two cores of an AMD EPYC without AVX-512, which compute 1e11 FLOP/s.
_WORTH_COMPILING = 5e13

# FLOP of evaluation after which a CPU gets back the time in which it compiles the forward pass. It is an estimate: a
# fifth of the above, because a forward pass compiles sooner.
_WORTH_COMPILING_EVALUATION = 1e13

# Queries that attend at once on a processor: see `attention_in_blocks` in training/models/causal.py.
ATTENTION_BLOCK = 128

# Logits of one chunk of the loss, at most. Each chunk adds to the head's whole gradient, so a card, which multiplies
# faster than it adds, gets larger ones.
_LOGITS_ON_A_CARD, _LOGITS_ON_A_CPU = 1 << 29, 1 << 25

# Parameters from which gathered weights and whole gradients take too much of a card's memory. Smaller models keep both
# for all micro batches of a step, which then needs one all-gather and one reduction.
_LARGE = 4_000_000_000


def compiles(config: Config, cpu_in_fp32: bool) -> bool:
    """Whether blocks are compiled, on a machine that can. Those of a short run on a CPU in fp32 are not."""
    if config.model.num_local_experts is not None or config.device.compile == "off":
        return False
    return config.device.compile == "on" or not cpu_in_fp32 or _worth_compiling(config)


def _worth_compiling(config: Config) -> bool:
    """Whether a run on a CPU in fp32 takes so long that compiling saves time, or needs the compiler for its memory."""
    if config.parallel.activation_budget is not None:
        return True
    tokens = config.train.steps * config.train.global_batch_size * config.sequence_length
    return tokens * flops_per_token(config.model, config.sequence_length, config.lora) >= _WORTH_COMPILING


def compiles_evaluation(config: Config) -> bool:
    """Whether a run evaluates so many tokens on a CPU that compiling the forward pass again saves time."""
    train = config.train
    tokens = (train.steps // train.eval_every + 1) * train.eval_sequences * config.sequence_length
    flops = tokens * flops_per_token(config.model, config.sequence_length) / 3
    return config.device.compile == "on" or flops >= _WORTH_COMPILING_EVALUATION


def attention_on_a_cpu(config: Config, compiled: bool) -> str:
    """`device.attention` on a CPU.

    Compiled plain attention is faster than SDPA up to 512 tokens, slower above (measured at 256, 512, 2048). Where it
    is not compiled, SDPA is 4 % faster at 256. In blocks a layer takes 9 % less time at 256.
    """
    if config.device.attention != "auto":
        return config.device.attention
    if not compiled or config.sequence_length > 512:
        return "sdpa"
    return "eager" if config.model.bert else "blocks"


def frees_early(model: Model) -> bool:
    """Whether gathered weights are freed after a forward pass, and each micro batch adds its gradients at once."""
    return parameters(model) >= _LARGE


def loss_chunk(tokens: int, words: int, on_a_card: bool) -> int:
    """Tokens whose logits exist at once: a divisor of all where one is near, so that all chunks have one shape."""
    most = max(1, (_LOGITS_ON_A_CARD if on_a_card else _LOGITS_ON_A_CPU) // words)
    even = divisor_near(tokens, most)
    return even if 2 * even >= min(most, tokens) else most
