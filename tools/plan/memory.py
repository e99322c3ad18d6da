"""The device memory that one process of a run needs, term by term.

It follows what the trainer keeps (training/trainer/parallelize.py: fp32 weights and moments, bf16 compute, FSDP2
or DDP) and estimates what it cannot know (the allocator, libraries).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tools.facts.instances import Instance
from tools.plan.layout import FULL, HALF, Layout, Shape
from training.config import Config

GIB, MIB = 2**30, 2**20
CARDS = ("GPU", "core")
LIBRARIES = int(1.5 * GIB)  # a CUDA or Neuron context, kernels, buffers of the collectives
FRAGMENTATION = 0.05  # of the device: what the allocator cannot use
INTERPRETER = int(0.9 * GIB)  # a process on a CPU: Python, torch, transformers, the compiler's results


@dataclass(frozen=True)
class Room:
    """What a process has: `nbytes` of `what` (GPU, core, process), with `processes` on each node."""

    processes: int
    nbytes: int
    what: str

    @classmethod
    def on(cls, instance: Instance, pod_mib: int) -> "Room":
        """Return the memory of each process on a machine: of its share of an accelerator, or of the pod."""
        if not instance.accelerators:
            return cls(1, pod_mib * MIB, "pod")
        what = "GPU" if instance.cores_per_accelerator == 1 else "core"
        each = instance.accelerator_memory_mib * MIB // instance.cores_per_accelerator
        return cls(instance.processes, each, what)


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
    return of_layout(Shape.of(config), Layout.of(config, nodes, room.processes), room)


def of_layout(shape: Shape, layout: Layout, room: Room) -> Estimate:
    """Return what each process of a layout needs."""
    need = _Need(shape, layout)
    on_card = room.what in CARDS
    # A shard's gradients exist from the first exchange on; those of a replica stay in their buckets. On a card the
    # allocator keeps their memory reserved from one step to the next, and that of a block that is computed again.
    early = layout.shard == 1 or (layout.sync_each and layout.accumulation > 1) or on_card
    whole, block, gradients = layout.recompute == "none", need.block(), need.gradients()
    steady = [need.weights(), need.optimizer(), *([gradients] if early else [])] if not layout.offload else []
    steady += [need.copies(), need.accumulated(), need.kept(), headroom(room)]
    during = [need.logits(), block] if on_card else [max(need.logits(), block, key=lambda term: term.nbytes)]
    later = [need.exchange(), *([] if early else [gradients])]
    (during if whole else steady).append(need.activations())
    parts = (tuple(term for term in terms if term.nbytes) for terms in (steady, during, later))
    kept, first, second = parts
    return Estimate(kept, (first, second), room)


def headroom(room: Room) -> Term:
    """Return what is not the model: libraries, collectives, fragmentation."""
    if room.what not in CARDS:
        return Term("headroom", INTERPRETER, "Python, torch and what it compiled")
    share = int(FRAGMENTATION * room.nbytes)
    return Term("headroom", LIBRARIES + share, f"1.5 GiB of libraries, {FRAGMENTATION:.0%} of the device lost")


@dataclass(frozen=True)
class _Need:
    """The terms of a layout: N parameters, t of them trained, on one of its ranks."""

    shape: Shape
    layout: Layout

    @property
    def whole(self) -> bool:
        """Whether the computation is in fp32."""
        return self.layout.precision == "fp32"

    @property
    def width(self) -> int:
        """Bytes of a value of the computation."""
        return FULL if self.whole else HALF

    @property
    def total(self) -> int:
        return self.shape.parameters

    @property
    def trained(self) -> int:
        return self.total if self.layout.trained is None else self.layout.trained

    @property
    def frozen(self) -> int:
        """Parameters of a base under LoRA, which stay in bf16."""
        return 0 if self.layout.trained is None else self.total

    def _held(self, count: int, width: int, ranks: int) -> int:
        """Bytes of one rank's share of `count` parameters of `width` bytes: FSDP2 never cuts an expert."""
        shape, experts = self.shape, self.shape.experts
        each = shape.layers * shape.expert
        if experts == 1 or count < each:
            return count * width // ranks // self.layout.model_ranks
        most = -(-experts // ranks)
        return ((count - each) * width // ranks + each * most // experts * width) // self.layout.model_ranks

    def _divided(self, ranks: int) -> str:
        whole = self.shape.experts > 1 and self.shape.experts % ranks
        text = f"{ranks}{f', whole experts / {min(self.shape.experts, ranks)}' if whole else ''}"
        return text if self.layout.model_ranks == 1 else f"{text} / {self.layout.model_ranks} of tensor and pipeline"

    def weights(self) -> Term:
        layout = self.layout
        nbytes = self._held(self.trained, layout.weight, layout.shard) + self._held(self.frozen, HALF, layout.shard)
        base = f" + {_billions(self.frozen)} frozen x {HALF} B" if self.frozen else ""
        how = f"({_billions(self.trained)} x {layout.weight} B{base}) / {self._divided(layout.shard)}"
        return Term("weights", nbytes, how)

    def gradients(self) -> Term:
        layout = self.layout
        how = f"{_billions(self.trained)} x {layout.weight} B / {self._divided(layout.shard)}"
        return Term("gradients", self._held(self.trained, layout.weight, layout.shard), how)

    def optimizer(self) -> Term:
        layout = self.layout
        how = (
            f"{_billions(self.trained)} x {layout.moments} B / {self._divided(layout.state_ranks)}: Adam's two moments"
        )
        return Term("optimizer", self._held(self.trained, layout.moments, layout.state_ranks), how)

    def copies(self) -> Term:
        """Whole weights in bf16: FSDP's gathered groups, or what autocast keeps of a replicated model."""
        shape, layout = self.shape, self.layout
        ranks = layout.model_ranks
        if layout.shard == 1:
            count = 0 if layout.precision == "fp32" else self.trained
            return Term("bf16 copies", HALF * count // ranks, f"{_billions(count)} x {HALF} B, kept by autocast")
        if layout.gathers == 1:
            how = f"{_billions(self.total)} x {self.width} B, gathered and kept"
            return Term("gathered weights", self.width * self.total // ranks, how)
        outer, block = _billions(shape.outer), _billions(shape.block)
        how = f"({outer} outside the blocks + 2 blocks of {block}) x {self.width} B, gathered"
        return Term("gathered weights", self.width * (shape.outer + 2 * shape.block) // layout.tensor, how)

    def accumulated(self) -> Term:
        """FSDP2 without exchange between micro batches keeps whole gradients, in the exchange's precision."""
        layout = self.layout
        if layout.shard == 1 or layout.accumulation == 1 or layout.sync_each:
            return Term("accumulated gradients", 0, "one micro batch a step")
        how = f"{_billions(self.trained)} x {FULL} B, whole until the last of {layout.accumulation} micro batches"
        return Term("accumulated gradients", FULL * self.trained // layout.model_ranks, how)

    def kept(self) -> Term:
        """The buffer of the last exchange, that of the embeddings and the head, which FSDP2 keeps until the next."""
        outer = self.shape.outer if self.layout.shard > 1 and self.layout.trained is None else 0
        how = f"{_billions(outer)} outside the blocks x {self.layout.reduced} B, kept from the last exchange"
        return Term("exchange buffer", self.layout.reduced * outer // self.layout.tensor, how)

    def activations(self) -> Term:
        """What all blocks keep for their backward pass."""
        layout, layers = self.layout, self.shape.layers // self.layout.pipeline
        kept, share = self._stream(), _kept_share(layout.recompute)
        if layout.recompute == "offload":
            layers, kept = min(layers, 2), self._whole()
        elif layout.recompute == "selective":
            kept = self._selected()
        else:
            kept += int(share * (self._whole() - kept))
        how = f"{layout.tokens:,} tokens x {layers} layers x {kept:,} B"
        return Term("activations", layout.tokens * layers * kept, how)

    def block(self) -> Term:
        """The block that is computed again in the backward pass."""
        layout, whole = self.layout, self._whole()
        again = layout.recompute not in ("none", "offload")
        how = f"{layout.tokens:,} tokens x {whole:,} B"
        return Term("recomputed block", layout.tokens * whole * again, how)

    def logits(self) -> Term:
        layout, vocabulary = self.layout, self.shape.vocab
        width, tokens = layout.logit, layout.chunk or layout.tokens
        how, nbytes = f"{tokens:,} tokens x {vocabulary:,} x {width} B", tokens * vocabulary * width
        if layout.chunk:  # the forward pass leaves both gradients behind
            head = 0 if layout.trained is not None else vocabulary * (FULL + self.width)
            nbytes += self.shape.hidden * (head + layout.tokens * self.width)
            how = f"a chunk of {how}, and the gradients of the head and of its inputs"
        return Term("logits", nbytes // layout.tensor, how)

    def exchange(self) -> Term:
        """The largest group's gradients, and in the exchange's format in the send buffer."""
        shape, layout = self.shape, self.layout
        if layout.shard == 1:
            return Term("gradient exchange", 0, "in place")
        whole = layout.trained is None
        largest = max(shape.block if whole else self.trained // shape.layers, shape.outer if whole else 0)
        there = whole and largest == shape.outer  # the buffer that is kept from the last exchange
        width = self.width + (0 if there else layout.reduced)
        how = f"{_billions(largest)} in the largest group x {width} B"
        return Term("gradient exchange", width * largest // layout.tensor, how)

    def _stream(self) -> int:
        """A block's input: in bf16 where FSDP casts everything, in fp32 in autocast's residual stream."""
        layout = self.layout
        width = self.width if layout.shard > 1 or layout.weight == HALF else FULL
        return self.shape.hidden * width // self._between

    @property
    def _between(self) -> int:
        """Ranks that divide what lies between the products."""
        return self.layout.tensor if self.layout.sequence else 1

    def _selected(self) -> int:
        """torchtitan's operators: the input, attention's output and every second matrix product's."""
        shape = self.shape
        products = shape.queries + shape.narrow + shape.inner * shape.chosen + shape.hidden
        return self._stream() + self.width * (shape.queries + products) // self.layout.tensor

    def _whole(self) -> int:
        """What one block keeps of a token for its backward pass, in bytes.

        Llama: the inputs of both norms; their outputs, the queries, keys, values and the attention's output;
        gate, up and their product, for each chosen expert. No attention scores: flash and flex attention
        compute them again. Eager kernels also keep the normalised values, keys and values repeated for each
        query head, a contiguous copy of the attention's output and the activated gate. BERT: 34 x hidden size
        + 5 x heads x length (Korthikanti et al. 2022, arXiv 2205.05198, equation 2).
        """
        shape, layout = self.shape, self.layout
        if not shape.causal:
            return 34 * shape.hidden + 5 * shape.heads * layout.length
        between, values = 2 * shape.hidden, 2 * (shape.queries + shape.narrow) + 3 * shape.chosen * shape.inner
        if layout.kernels == "eager":
            # bf16: FSDP's norms keep their input in fp32; autocast gives each linear layer a copy of its input.
            norms = 4 if self.whole else 6 if layout.shard > 1 else 9
            between, values = norms * shape.hidden, 5 * shape.queries + 4 * shape.chosen * shape.inner
        between = self.width * between // self._between
        return 2 * self._stream() + between + (self.width * values + self._scores()) // layout.tensor

    def _scores(self) -> int:
        """Plain attention keeps its scores before and after the softmax, and again after the cast."""
        plain = self.layout.attention == "eager"
        return self.shape.heads * self.layout.length * (FULL + FULL + HALF) if plain else 0


def _kept_share(recompute: str) -> float:
    """Return the share of a block's activations that is kept, beside its input."""
    if recompute.startswith("budget:"):
        return float(recompute.partition(":")[2])
    return {"none": 1, "selective-layer": 0.5}.get(recompute, 0)


def _sum(terms: Iterable[Term]) -> int:
    return sum(term.nbytes for term in terms)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} G" if count >= 1e9 else f"{count / 1e6:.1f} M"
