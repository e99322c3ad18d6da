"""The device memory that one process of a job needs, term by term.

A first formula. It follows what the trainer keeps (training/trainer/parallelize.py: fp32 weights and moments,
bf16 compute, FSDP2 or DDP) and estimates what it cannot know (the allocator, libraries). Nothing was measured
on a GPU. It rather overestimates: logits are counted in fp32, which a compiled loss may not write.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from training.config import Config
from training.models.counting import (
    expert_parameters,
    layer_parameters,
    outer_parameters,
    parameters,
    trainable_parameters,
)

GIB = 2**30
# training/trainer/parallelize.py: below this FSDP keeps the gathered weights from forward to backward.
KEEP_GATHERED_BELOW = 4_000_000_000
FULL, HALF, MOMENTS = 4, 2, 8  # bytes a parameter: fp32, bf16, Adam's two fp32 moments
LOGIT_BYTES = 8  # a logit in bf16 (2), in fp32 for the softmax (4), its gradient in bf16 (2)
LIBRARIES = int(1.5 * GIB)  # a CUDA or Neuron context, kernels, buffers of the collectives
FRAGMENTATION = 0.05  # of the device: what the allocator cannot use
INTERPRETER = int(0.9 * GIB)  # a process on a CPU: Python, torch, transformers, the compiler's results


@dataclass(frozen=True)
class Room:
    """What a process has: `nbytes` of `what` (GPU, core, process), with `processes` on each node."""

    processes: int
    nbytes: int
    what: str


@dataclass(frozen=True)
class Term:
    """One part of the need, in bytes, with the arithmetic that led there."""

    name: str
    nbytes: int
    how: str


@dataclass(frozen=True)
class Estimate:
    """The need of one process: `steady` terms always, and the larger of the two `peaks`."""

    steady: tuple[Term, ...]
    peaks: tuple[tuple[Term, ...], tuple[Term, ...]]
    room: Room

    @property
    def needed(self) -> int:
        return _sum(self.steady) + max(_sum(peak) for peak in self.peaks)

    @property
    def fits(self) -> bool:
        return self.needed <= self.room.nbytes

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms whose sum is `needed`."""
        return self.steady + max(self.peaks, key=_sum)

    @property
    def left_out(self) -> tuple[Term, ...]:
        """The terms of the smaller peak, which occurs at another time."""
        return min(self.peaks, key=_sum) if self.peaks[0] != self.peaks[1] else ()

    def summary(self) -> str:
        return f"{self.needed / GIB:.1f} GiB a {self.room.what} needed, {self.room.nbytes / GIB:.1f} there"


def estimate(config: Config, nodes: int, room: Room) -> Estimate:
    """Return what each process of a job on `nodes` nodes needs.

    Raises ConfigError when the batch cannot be divided over the processes.
    """
    world = nodes * room.processes
    need = _Need(config, world, config.accumulation(world))
    during = (need.activations(), need.logits())
    steady = (need.weights(), need.gradients(), need.optimizer(), need.copies(), need.accumulated())
    kept = tuple(term for term in (*steady, headroom(config, room)) if term.nbytes)
    return Estimate(kept, (during, (need.exchange(),)), room)


def headroom(config: Config, room: Room) -> Term:
    """Return what is not the model: libraries, collectives, fragmentation."""
    if config.device.type == "cpu":
        return Term("headroom", INTERPRETER, "Python, torch and what it compiled")
    share = int(FRAGMENTATION * room.nbytes)
    return Term("headroom", LIBRARIES + share, f"1.5 GiB of libraries, {FRAGMENTATION:.0%} of the device lost")


@dataclass(frozen=True)
class _Need:
    """The terms that follow from the configuration: N parameters, t of them trained, W processes."""

    config: Config
    world: int
    accumulation: int

    @property
    def shards(self) -> int:
        return self.world if self.config.parallel.sharding == "fsdp" else 1

    @property
    def sharded(self) -> bool:
        return self.config.parallel.sharding == "fsdp" and self.world > 1

    @property
    def total(self) -> int:
        return parameters(self.config.model)

    @property
    def trained(self) -> int:
        return trainable_parameters(self.config.model, self.config.lora)

    @property
    def frozen(self) -> int:
        """Parameters of a base under LoRA, which stay in bf16."""
        return 0 if self.config.lora is None else self.total

    @property
    def tokens(self) -> int:
        return self.config.parallel.micro_batch_size * self.config.sequence_length

    def _held(self, count: int, width: int) -> int:
        """Bytes of one process's share of `count` parameters of `width` bytes: FSDP2 never cuts an expert."""
        model = self.config.model
        experts, each = model.num_local_experts or 0, model.num_hidden_layers * expert_parameters(model)
        if not experts or count < each:
            return count * width // self.shards
        most = -(-experts // self.shards)
        return (count - each) * width // self.shards + each * most // experts * width

    @property
    def _divided(self) -> str:
        experts = self.config.model.num_local_experts or 0
        whole = experts and experts % self.shards
        return f"{self.shards}{f', whole experts / {min(experts, self.shards)}' if whole else ''}"

    def weights(self) -> Term:
        nbytes = self._held(self.trained, FULL) + self._held(self.frozen, HALF)
        base = f" + {_billions(self.frozen)} frozen x {HALF} B" if self.frozen else ""
        return Term("weights", nbytes, f"({_billions(self.trained)} x {FULL} B{base}) / {self._divided}")

    def gradients(self) -> Term:
        how = f"{_billions(self.trained)} x {FULL} B / {self._divided}"
        return Term("gradients", self._held(self.trained, FULL), how)

    def optimizer(self) -> Term:
        how = f"{_billions(self.trained)} x {MOMENTS} B / {self._divided}: Adam's two moments"
        return Term("optimizer", self._held(self.trained, MOMENTS), how)

    def copies(self) -> Term:
        """Whole weights in bf16: FSDP's gathered groups, or what autocast keeps of a replicated model."""
        model = self.config.model
        if not self.sharded:
            count = 0 if self.config.device.precision == "fp32" else self.trained
            return Term("bf16 copies", HALF * count, f"{_billions(count)} x {HALF} B, kept by autocast")
        if self.total < KEEP_GATHERED_BELOW:
            return Term("bf16 copies", HALF * self.total, f"{_billions(self.total)} x {HALF} B, gathered and kept")
        outer, layer = outer_parameters(model), layer_parameters(model)
        how = f"({_billions(outer)} outside the blocks + 2 blocks of {_billions(layer)}) x {HALF} B, gathered"
        return Term("bf16 copies", HALF * (outer + 2 * layer), how)

    def accumulated(self) -> Term:
        """FSDP2 without exchange between micro batches keeps whole gradients, in the exchange's precision."""
        if not self.sharded or self.accumulation == 1:
            return Term("accumulated gradients", 0, "one micro batch a step")
        how = f"{_billions(self.trained)} x {FULL} B, whole until the last of {self.accumulation} micro batches"
        return Term("accumulated gradients", FULL * self.trained, how)

    def activations(self) -> Term:
        layers = self.config.model.num_hidden_layers
        kept, whole = self._kept_per_token(), self._activations_per_token()
        if self.config.parallel.activation_checkpointing == "full":
            how = f"{self.tokens:,} tokens x ({layers} layers x {kept:,} B + one layer's {whole:,} B)"
            return Term("activations", self.tokens * (layers * kept + whole), how)
        how = f"{self.tokens:,} tokens x {layers} layers x {whole:,} B"
        return Term("activations", self.tokens * layers * whole, how)

    def logits(self) -> Term:
        vocabulary = self.config.model.vocab_size
        how = f"{self.tokens:,} tokens x {vocabulary:,} x {LOGIT_BYTES} B"
        return Term("logits", self.tokens * vocabulary * LOGIT_BYTES, how)

    def exchange(self) -> Term:
        """The largest group's gradients in bf16, and in fp32 in the send buffer."""
        if not self.sharded:
            return Term("gradient exchange", 0, "in place")
        model, lora = self.config.model, self.config.lora
        layer = layer_parameters(model) if lora is None else self.trained // model.num_hidden_layers
        largest = max(layer, outer_parameters(model) if lora is None else 0)
        how = f"{_billions(largest)} in the largest group x {HALF + FULL} B"
        return Term("gradient exchange", (HALF + FULL) * largest, how)

    def _kept_per_token(self) -> int:
        """A block's input: in bf16 where FSDP casts everything, in fp32 in autocast's residual stream."""
        return self.config.model.hidden_size * (HALF if self.sharded else FULL)

    def _activations_per_token(self) -> int:
        """What one block keeps of a token for its backward pass, in bytes.

        Llama: the inputs of both norms; their outputs, the queries, keys, values and the attention's output;
        gate, up and their product, for each chosen expert. No attention scores: flash and flex attention
        compute them again. BERT: 34 x hidden size + 5 x heads x length (Korthikanti et al. 2022, arXiv
        2205.05198, equation 2).
        """
        model = self.config.model
        chosen = model.num_experts_per_tok or 1
        if model.bert is not None:
            return 34 * model.hidden_size + 5 * model.num_attention_heads * self.config.sequence_length
        heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
        inner = HALF * (2 * model.hidden_size + heads * model.head_size + 3 * chosen * model.intermediate_size)
        return 2 * self._kept_per_token() + inner + self._scores_per_token()

    def _scores_per_token(self) -> int:
        """Plain attention keeps its scores before and after the softmax, and again after the cast."""
        attention, length = self.config.device.attention, self.config.sequence_length
        plain = attention == "eager" or (attention == "auto" and self.config.device.type == "cpu" and length <= 512)
        return self.config.model.num_attention_heads * length * (FULL + FULL + HALF) if plain else 0


def _sum(terms: Iterable[Term]) -> int:
    return sum(term.nbytes for term in terms)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} G" if count >= 1e9 else f"{count / 1e6:.1f} M"
