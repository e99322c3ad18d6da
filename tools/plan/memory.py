"""The device memory that one process of a run needs, term by term.

It follows what the trainer keeps (training/trainer/parallelize.py: fp32 weights and moments, bf16 compute, FSDP2
or DDP) and estimates what it cannot know (the allocator, libraries).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tools.facts.instances import Instance
from tools.plan.layout import FULL, HALF, Layout, Shape
from training.config import Config

GIB, MIB = 2**30, 2**20
CARDS = ("GPU", "core")
LIBRARIES = int(1.5 * GIB)  # a CUDA or Neuron context, kernels, buffers of the collectives
FRAGMENTATION = 0.05  # of the device: what the allocator cannot use
GATHERED = 2  # blocks whose weights exist at once: the one that computes and the next
INTERPRETER = int(0.9 * GIB)  # a process on a CPU: Python, torch, transformers, the compiler's results


@dataclass(frozen=True)
class Room:
    """What a process has: `nbytes` of `what` (GPU, core, process), 0 if unknown, with `processes` on each node."""

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
    """The need of one process: `steady` terms always, and the largest of the `moments` of a step."""

    steady: tuple[Term, ...]
    moments: tuple[tuple[Term, ...], ...]
    room: Room

    @property
    def needed(self) -> int:
        return _sum(self.steady) + max(map(_sum, self.moments))

    @property
    def fits(self) -> bool:
        return self.needed <= self.room.nbytes or not self.room.nbytes

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms whose sum is `needed`."""
        return self.steady + max(self.moments, key=_sum)

    @property
    def left_out(self) -> tuple[Term, ...]:
        """The terms of the other moments."""
        return tuple(dict.fromkeys(term for one in self.moments for term in one if term not in self.terms))

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; null is unknown."""
        return {
            "needed": self.needed,
            "there": self.room.nbytes or None,
            "fits": self.fits if self.room.nbytes else None,
            "terms": [{"name": one.name, "bytes": one.nbytes, "how": one.how} for one in self.terms],
        }

    def summary(self) -> str:
        there = f"{self.room.nbytes / GIB:.1f}" if self.room.nbytes else "unknown"
        return f"{self.needed / GIB:.1f} GiB a {self.room.what} needed, {there} there"


def estimate(config: Config, nodes: int, room: Room) -> Estimate:
    """Return what each process needs, of an elastic job at its fewest nodes.

    Raises ConfigError if the batch cannot be divided.
    """
    return of_layout(Shape.of(config), Layout.of(config, fewest(config, nodes), room.processes), room)


def fewest(config: Config, nodes: int) -> int:
    """Return the nodes with which a job on `nodes` nodes needs the most memory: the fewest that it may have."""
    return min(config.nodes.min, nodes) if config.nodes else nodes


def of_layout(shape: Shape, layout: Layout, room: Room) -> Estimate:
    """Return what each process of a layout needs."""
    need = _Need(shape, layout)
    # A shard's gradients exist from the first exchange on; those of a replica stay in their buckets. On a card they
    # are made in the stream of the exchange, whose memory the allocator does not give to the others.
    on_card = room.what in CARDS
    several = layout.accumulation > 1
    early = on_card or (several and layout.sync_each) or (not layout.sharded and (several or layout.gpus > 1))
    away = layout.offload and not layout.on_cpu
    gradients, gathered = need.gradients(), need.copies()
    steady = [need.weights(), need.optimizer(), *([gradients] if early else [])] if not away else []
    forward = [gathered, need.accumulated(), need.activations(), need.positions()]
    head = need.head_gradient()
    loss = [*forward, need.last_norm(), need.logits()]
    loss += [head] if layout.kernels == "compiled" and not layout.chunk else []
    backward = [need.copies(backward=True), *forward[1:], need.head_gradient(early), need.block(), need.sent(early)]
    exchange = [need.exchange(), *([] if early or away else [need.gradients(blocks=True)])]
    moments = loss, backward, exchange
    return Estimate(_some([*steady, headroom(room)]), tuple(map(_some, moments)), room)


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
            table = self._table if count == self.total else 0
            return ((count - table) // self.layout.model_ranks + table) * width // ranks
        most = -(-experts // ranks)
        return ((count - each) * width // ranks + each * most // experts * width) // self.layout.model_ranks

    @property
    def _table(self) -> int:
        """Parameters that ranks of `tensor` do not divide: the trainer's table of tokens."""
        return self.shape.vocab * self.shape.hidden if self.layout.tensor > 1 and not self.layout.sequence else 0

    @property
    def _outer(self) -> int:
        """Parameters outside the blocks, of one rank of `tensor`."""
        return (self.shape.outer - self._table) // self.layout.tensor + self._table

    def _divided(self, ranks: int) -> str:
        whole = self.shape.experts > 1 and self.shape.experts % ranks
        text = f"{ranks}{f', whole experts / {min(self.shape.experts, ranks)}' if whole else ''}"
        return text if self.layout.model_ranks == 1 else f"{text} / {self.layout.model_ranks} of tensor and pipeline"

    def weights(self) -> Term:
        layout = self.layout
        nbytes = self._held(self.trained, layout.weight, layout.shard)
        nbytes += self._held(self.frozen, self.width, layout.shard)
        base = f" + {_billions(self.frozen)} frozen x {self.width} B" if self.frozen else ""
        how = f"({_billions(self.trained)} x {layout.weight} B{base}) / {self._divided(layout.shard)}"
        return Term("weights", nbytes, how)

    def gradients(self, blocks: bool = False) -> Term:
        """The rank's share of all gradients, or of those of the blocks alone."""
        layout = self.layout
        count = self.trained - self.shape.outer * (blocks and layout.trained is None)
        how = f"{_billions(count)} x {layout.weight} B / {self._divided(layout.shard)}"
        return Term("gradients", self._held(count, layout.weight, layout.shard), how)

    def optimizer(self) -> Term:
        layout = self.layout
        how = (
            f"{_billions(self.trained)} x {layout.moments} B / {self._divided(layout.state_ranks)}: Adam's two moments"
        )
        return Term("optimizer", self._held(self.trained, layout.moments, layout.state_ranks), how)

    def copies(self, backward: bool = False) -> Term:
        """Whole weights in bf16: FSDP's gathered groups, or what autocast keeps of a replicated model."""
        shape, layout = self.shape, self.layout
        ranks = layout.model_ranks
        if not layout.sharded:
            again = layout.recompute not in ("none", "offload") and layout.trained is None
            count = 0 if self.whole else shape.outer + shape.block if again else self.trained
            return Term("bf16 copies", HALF * count // ranks, f"{_billions(count)} x {HALF} B, kept by autocast")
        if layout.gathers == 1:
            twice = 0 if backward or layout.on_cpu else shape.block  # what the last exchange received
            count = (self.total - self._table + twice) // ranks + self._table
            how = f"{_billions(count)} kept{', one block twice,' if twice else ''} x {self.width} B, gathered"
            return Term("gathered weights", self.width * count, how)
        outer, block = self._outer, shape.block // layout.tensor
        how = f"({_billions(outer)} outside the blocks + {GATHERED} blocks of {_billions(block)}) x {self.width} B"
        return Term("gathered weights", self.width * (outer + GATHERED * block), how)

    def accumulated(self) -> Term:
        """Whole gradients between micro batches without an exchange: beside FSDP2's shards, or beside DDP's buckets."""
        layout = self.layout
        alone = not layout.sharded and layout.gpus == 1
        if layout.accumulation == 1 or alone or (layout.sharded and layout.sync_each):
            return Term("accumulated gradients", 0, "one micro batch a step")
        how = f"{_billions(self.trained)} x {FULL} B, whole until the last of {layout.accumulation} micro batches"
        return Term("accumulated gradients", FULL * self.trained // layout.model_ranks, how)

    @property
    def _each(self) -> int:
        """Bytes that a block keeps of a token."""
        stream, how = self._stream(), self.layout.recompute
        if how == "selective":
            return self._selected()
        if how == "offload":  # each product and norm keeps a copy of its own
            copies = (4 * self.width + 2 * FULL) * self.shape.hidden
            return self._whole() + copies if self.layout.on_cpu else 0
        kept = int(_kept_share(how) * (self._whole() - stream))
        return stream + (min(kept, self._products()) if how.startswith("budget:") else kept)

    def activations(self) -> Term:
        """What all blocks keep for their backward pass."""
        layout, layers = self.layout, self.shape.layers // self.layout.pipeline
        how = f"{layout.tokens:,} tokens x {layers} layers x {self._each:,} B"
        return Term("activations", layout.tokens * layers * self._each, how)

    def positions(self) -> Term:
        """What all blocks share: sines and cosines of the positions, identifiers, and a mask for torch's own kernel."""
        shape, layout = self.shape, self.layout
        mask = layout.length * ((1 + FULL) if layout.plain_attention else layout.attention == "sdpa")
        each = (mask + 2 * FULL * shape.queries // shape.heads + 32) * shape.causal
        return Term("positions and masks", layout.tokens * each, f"{layout.tokens:,} tokens x {each:,} B")

    def block(self) -> Term:
        """The block whose backward pass runs: what is computed again, and the gradients of its MLP's values."""
        layout, shape, whole = self.layout, self.shape, self._whole()
        inner = self.width * shape.chosen * shape.inner // layout.tensor
        kept = self._selected() - self._stream() - self.width * shape.hidden // layout.tensor
        known = {"none": 0, "selective": whole - kept, "offload": 4 * inner}
        again, moved = known.get(layout.recompute, whole - self._each + self._stream()), 2 * inner
        how = f"{layout.tokens:,} tokens x ({again:,} B computed again or fetched + {moved:,} B of gradients)"
        return Term("backward pass of a block", layout.tokens * (again + moved), how)

    def last_norm(self) -> Term:
        """What the norm before the head keeps, its input in fp32 and the normalised values; in BERT the embeddings'."""
        each = FULL + self.width if self.shape.causal else 3 * FULL
        width = each * self.shape.hidden * (self.layout.recompute != "offload" or self.layout.on_cpu)
        how = f"{self.layout.tokens:,} tokens x {width:,} B"
        return Term("last norm", self.layout.tokens * width, how)

    def logits(self) -> Term:
        """All logits at once, or a chunk's: its fp32 values, or its product that the head's gradient adds."""
        layout, vocabulary, hidden = self.layout, self.shape.vocab, self.shape.hidden
        if not layout.chunk:
            how = f"{layout.predicted:,} tokens x {vocabulary:,} x {layout.logit} B"
            return Term("logits", layout.predicted * vocabulary * layout.logit // layout.tensor, how)
        width, words = self.width, vocabulary // layout.tensor
        cast = FULL * layout.on_cpu  # a CPU casts the product before it adds it
        eager, product = layout.kernels == "eager", 0 if self.whole or layout.trained is not None else width + cast
        values = max(3 * FULL * layout.chunk if eager else 0, product * hidden)
        head = 0 if layout.trained is not None else FULL * hidden
        nbytes = words * (values + width * layout.chunk + head) + 2 * width * layout.tokens * hidden
        how = f"a chunk of {layout.chunk:,} tokens x {words:,}, the gradients of the head and of its inputs"
        return Term("logits", nbytes, how)

    def head_gradient(self, early: bool | None = None) -> Term:
        """The gradients of the head and its inputs; later the head's alone, a replica's in fp32 or in its bucket."""
        layout, later = self.layout, early is not None
        words = 0 if layout.trained is not None else self.shape.vocab // layout.tensor
        width = self.width if layout.sharded or not later else 0 if early else FULL
        tokens = 0 if later else layout.tokens
        how = f"({words:,} words x {width} B + {tokens:,} tokens x {self.width} B) x {self.shape.hidden:,}"
        return Term("gradient of the head", self.shape.hidden * (words * width + tokens * self.width), how)

    def exchange(self) -> Term:
        """The largest group's gradients, and in the exchange's format in the send buffer."""
        shape, layout = self.shape, self.layout
        if not layout.sharded:
            return Term("gradient exchange", 0, "in place")
        block = shape.block // layout.tensor
        largest = max(block, self._outer) if layout.trained is None else self.trained // shape.layers
        passes = layout.accumulation > 1 and not layout.sync_each
        width = (FULL if passes else self.width) + layout.reduced
        how = f"{_billions(largest)} in the largest group x {width} B"
        return Term("gradient exchange", width * largest, how)

    def sent(self, early: bool) -> Term:
        """The gradients of the block before, beyond the activations it freed, and of this one's widest product.

        The first block has those of the head's inputs instead. On a CPU gloo sums a copy. Without
        `early`, a replica makes the gradients of each block in turn, and keeps them while it frees activations.
        """
        shape, layout = self.shape, self.layout
        first = self.width * layout.tokens * shape.hidden
        behind = (shape.layers - 1) * (FULL * shape.block - layout.tokens * self._each)
        if not early and not layout.sharded and layout.trained is None and behind > first:
            how = f"{shape.layers - 1} blocks x {_billions(shape.block)} x {FULL} B less their activations"
            return Term("gradients on their way", behind, how)
        if not layout.sharded or layout.trained is not None:
            how = f"{layout.tokens:,} tokens x {shape.hidden:,} x {self.width} B"
            return Term("gradients on their way", first, how)
        before = max(first, layout.reduced * shape.block // layout.tensor - layout.tokens * self._each)
        own = self.width * shape.hidden * shape.inner // layout.tensor
        own += layout.on_cpu * layout.reduced * shape.block // layout.tensor
        how = f"{_billions(shape.block)} x {layout.reduced} B less its activations, and {_billions(own)} B beside them"
        return Term("gradients on their way", before + own, how)

    def _stream(self) -> int:
        """A block's input: in bf16 where FSDP casts everything, in fp32 in autocast's residual stream."""
        layout = self.layout
        width = self.width if layout.sharded or layout.weight == HALF else FULL
        return self.shape.hidden * width // self._between

    @property
    def _between(self) -> int:
        """Ranks that divide what lies between the products."""
        return self.layout.tensor if self.layout.sequence else 1

    def _selected(self) -> int:
        """torchtitan's operators: the input, attention's output, every second matrix product's but those of experts."""
        shape = self.shape
        last = shape.hidden * (self.layout.kernels == "eager")  # the compiler sees that nothing reads it again
        products = shape.queries + shape.narrow + (shape.inner + last if shape.experts == 1 else 0)
        return self._stream() + self.width * (shape.queries + products) // self.layout.tensor

    def _products(self) -> int:
        """The most that the compiler keeps of a token under a budget, beside a block's input.

        It keeps the results of products and attention and, for torch's kernel, the keys that it repeats. It computes
        again whatever is cheap: norms, rotations, the activation, gate times up.
        """
        shape, layout = self.shape, self.layout
        repeated = (shape.queries - shape.narrow) * (layout.attention == "sdpa")
        products = 2 * (shape.queries + shape.narrow + shape.chosen * shape.inner) + shape.hidden + repeated
        return self.width * products // layout.tensor

    def _whole(self) -> int:
        """What one block keeps of a token for its backward pass, in bytes.

        Llama: the inputs of both norms; their outputs, the queries, keys, values and the attention's output;
        gate, up and their product, for each chosen expert. No attention scores: flash and flex attention
        compute them again. Eager kernels also keep the normalised values and the activated gate.
        """
        shape, layout = self.shape, self.layout
        if not shape.causal:
            return self._of_bert()
        between, values = 2 * shape.hidden, 2 * (shape.queries + shape.narrow) + 3 * shape.chosen * shape.inner
        if layout.kernels == "eager":
            # bf16: FSDP's norms keep their input in fp32; autocast gives each linear layer a copy of its input.
            # A frozen norm does not keep its normalised values.
            norms = (4 if self.whole else 6 if layout.sharded else 9) - 2 * (layout.trained is not None)
            between, values = norms * shape.hidden, 2 * (shape.queries + shape.narrow) + 4 * shape.chosen * shape.inner
        # What each chosen expert reads of a token, in the order of the experts, and what it returns, to be weighted.
        values += 2 * shape.chosen * shape.hidden * (shape.experts > 1)
        between = self.width * between // self._between
        return 2 * self._stream() + between + (self.width * values + self._scores()) // layout.tensor

    def _of_bert(self) -> int:
        """What a block of BERT keeps of a token.

        Queries, keys, values; attention's output; masks of two dropouts; what both norms read and give; the MLP's
        inner values before and after the activation. Under autocast the norms' outputs exist in fp32 and, for each
        product that reads them, in bf16. Attention without a fused kernel keeps its scores: after the softmax, after
        dropout, and the mask in the scores' format. torch's own kernel on a CPU is fused unless there is dropout, which
        it computes in fp32.
        """
        shape, layout = self.shape, self.layout
        values = (10 if self.whole else 14) * shape.hidden + 2 * shape.inner
        after = FULL + self.width if layout.dropout else 0 if self.whole else HALF
        score = {"eager": FULL + after, "sdpa": 3 * FULL * layout.dropout}.get(layout.attention, 0)
        inputs = 3 * (FULL - self.width) * shape.hidden * (layout.attention == "sdpa" and layout.dropout)
        return self.width * values + inputs + score * shape.heads * layout.length

    def _scores(self) -> int:
        """Attention's own, with keys and values repeated for each query head.

        Plain attention keeps its scores after the softmax, in bf16 also after the cast. torch's kernel with a mask
        keeps the mask.
        """
        shape, layout = self.shape, self.layout
        if not layout.plain_attention and layout.attention != "sdpa":
            return 0
        repeated = 2 * self.width * (shape.queries - shape.narrow)
        score = (FULL if self.whole else FULL + HALF) * shape.heads * layout.plain_attention
        return repeated + int((score or self.width) * layout.length)


def _kept_share(recompute: str) -> float:
    """Return the share of a block's activations that is kept, beside its input."""
    if recompute.startswith("budget:"):
        return float(recompute.partition(":")[2])
    return {"none": 1, "selective-layer": 0.5}.get(recompute, 0)


def _some(terms: Iterable[Term]) -> tuple[Term, ...]:
    return tuple(term for term in terms if term.nbytes)


def _sum(terms: Iterable[Term]) -> int:
    return sum(term.nbytes for term in terms)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} G" if count >= 1e9 else f"{count / 1e6:.1f} M"
