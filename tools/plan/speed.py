"""The time of a step, term by term."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.plan.layout import FULL, HALF, Layout, Machine, Shape

# Bytes that kernels move between the blocks' matrix products, for each token: per value of the residual stream, of
# queries and keys, of the MLP's inner width; forward, backward. Compiled: each norm reads the stream and the residual
# and writes both; rotary positions read and write; SwiGLU reads two and writes one, its backward reads three and
# writes two. Eager: each operation of RMSNorm and of the rotation is a kernel of its own, in fp32.
MOVED = {
    ("compiled", True): ((16, 16), (4, 4), (6, 12)),
    ("compiled", False): ((16, 16), (0, 0), (4, 6)),
    ("eager", True): ((84, 152), (20, 20), (10, 18)),
    ("eager", False): ((20, 24), (4, 4), (4, 6)),
}
LOGIT = {"compiled": 10, "eager": 28}  # bytes moved for each logit: cast, softmax, its gradient
WEIGHT = 16  # bytes moved for each weight and pass: gathered weights and gradients copied in and out
OPTIMIZER = 32  # bytes moved for each weight and step: AdamW reads four and writes three, clipping reads one
# Bytes moved for each value that becomes fp8: maximum, cast, transpose; Transformer Engine casts in the kernel before.
QUANTISED = {"fp8": 4, "fp8-rowwise": 4, "fp8-te": 1}
# FlashAttention in Triton is slower than FlashAttention 2: by 1.3 to 2.5 (Dao 2023, arXiv 2307.08691).
FIRST_FLASH = 1.3
# Processors, by torch 2.15's profiler in the CPU cells on an AMD EPYC with AVX2, two ranks of one core. Products are
# slower with a narrow side: d / (d + 32) of the full speed, so a fifth with the rank 8 of an adapter.
CPU_NARROW = 32
# Between the products, a processor computes more than it moves: FLOP of products in the time of one value, forward and
# backward. Values of the residual stream, of SwiGLU, of GELU, scores of plain attention, logits.
CPU_VALUES = {"stream": 1070, "gated": 380, "GELU": 535, "score": 275, "logit": 460}
CPU_FORWARD = 0.4  # share of the forward pass in them
# SDPA's fused kernel on a processor: FLOP of products in the time of one score, by the width of a head, and the tokens
# that a row's start costs; the forward pass takes 0.29 of it. Measured beside products, one thread, all pairs of 64 to
# 2,048 tokens, heads 32 to 128 wide: within 11 %, but 19 % for 64 tokens with heads of 128. Masks save nothing. Causal
# rows without one skip blocks of 512 keys, which is not counted: above 512 tokens their plan is too long.
CPU_FUSED, CPU_FUSED_FORWARD = {"width": 15, "score": 240, "row": 32}, 0.29
CPU_TENSOR = 0.15e-3  # seconds a step for each trained tensor: gradient hooks, clipping, the optimizer, their Python
# Share of the forward pass that is computed again: (matrix products, attention, the rest).
AGAIN = {
    "none": (0, 0, 0),
    "selective": (0.5, 0, 1),
    "selective-layer": (0.5, 0.5, 0.5),
    "full": (1, 1, 1),
    "offload": (0, 0, 0),
}


@dataclass(frozen=True)
class Step:
    """One part of a step: its seconds, the arithmetic, and the fitted constants in it."""

    name: str
    seconds: float
    how: str
    constants: tuple[str, ...]


def used(layout: Layout, machine: Machine) -> set[str]:
    """Return the fitted constants that a run depends on: without a source for one, nothing is predicted."""
    card = machine.card.efficiency
    names = {f"matmul {card}", *([] if layout.plain_attention or card == "CPU" else [_kernel(layout, machine)])}
    if layout.precision.startswith("fp8") or (layout.precision == "fp32" and not layout.on_cpu):
        names.add(layout.precision)
    rowwise = layout.precision == "fp8-rowwise" and not machine.card.rowwise
    if layout.precision.startswith("fp8") and (rowwise or machine.card.peak_fp8 is None):
        names.add(f"{layout.precision} on {machine.card.name}, which has no unit for it")
    if layout.offload or layout.recompute == "offload":
        names.add("offload")
    if layout.tensor > 1:
        names.add("async tensor" if layout.async_tensor else "tensor")
    return names


def _again(recompute: str) -> tuple[float, float, float]:
    """Return the shares that are computed again; of a budget what it does not keep."""
    if recompute.startswith("budget:"):
        share = 1 - float(recompute.partition(":")[2])
        return share, share, share
    return AGAIN[recompute]


def _kernel(layout: Layout, machine: Machine) -> str:
    name = "flash2" if layout.attention in ("flash1", "sdpa") else layout.attention
    return f"{name} {machine.card.efficiency}"


@dataclass(frozen=True)
class Clock:
    """The time of a step of a run, with the fitted constants."""

    shape: Shape
    layout: Layout
    machine: Machine
    fitted: Mapping[str, float]

    @property
    def _bandwidth(self) -> float:
        return self.machine.card.bandwidth * self.fitted["bandwidth"]

    @property
    def _on_cpu(self) -> bool:
        return self.machine.card.efficiency == "CPU"

    @property
    def _rate(self) -> float:
        return self.machine.card.peak * self.fitted[f"matmul {self.machine.card.efficiency}"]

    def _product(self, rows: float, inner: float, outer: float, fp8: bool = False) -> float:
        """A matrix product: its FLOP at the card's rate, and the share of its reads that is not hidden."""
        rate = self._rate * (self.fitted[self.layout.precision] if fp8 else 1)
        if self._on_cpu:
            narrow = min(rows, inner, outer)
            rate *= narrow / (narrow + CPU_NARROW)
        moved = HALF * (rows * inner + inner * outer + rows * outer)
        return 2 * rows * inner * outer / rate + self.fitted["matmul reads"] * moved / self._bandwidth

    def _products(self) -> dict[str, tuple[float, float]]:
        """Seconds of the blocks' products in the forward and in the backward pass of one micro batch, by kind."""
        layout, found = self.layout, dict[str, tuple[float, float]]()
        scale = self.shape.layers / layout.pipeline
        for kind, inner, outer, times in self.shape.linears:
            fp8 = layout.precision.startswith("fp8")
            one = scale * times * self._product(layout.tokens, inner, outer / layout.tensor, fp8)
            forward, backward = found.get(kind, (0.0, 0.0))
            back = self._products_again(kind) + (1 if layout.trained is not None else 2)
            found[kind] = forward + one, backward + one * back
        if layout.rank:
            adapter = scale * self._product(layout.tokens, layout.targets / layout.tensor, layout.rank)
            found["adapters"] = adapter, adapter * (2 + self._products_again("adapters"))
        return found

    def _products_again(self, kind: str) -> float:
        """Return the share of a kind's products that is computed again; `selective` keeps none of experts."""
        if kind == "MLP" and self.shape.experts > 1 and self.layout.recompute == "selective":
            return 1
        return _again(self.layout.recompute)[0]

    def _head(self) -> tuple[float, float]:
        layout = self.layout
        one = self._product(layout.predicted, self.shape.hidden, self.shape.vocab / layout.tensor) / layout.pipeline
        return one, one * (1 if layout.trained is not None else 2)

    def _attention(self) -> tuple[float, float]:
        """Queries on keys and probabilities on values: half of it under a causal mask; backward 2.5 times."""
        layout, shape = self.layout, self.shape
        if layout.plain_attention:
            return self._plain_attention()
        if self._on_cpu:
            return self._fused_on_cpu()
        rate = self.machine.card.peak * self.fitted[_kernel(layout, self.machine)]
        rate /= FIRST_FLASH if layout.attention == "flash1" else 1
        windows = shape.windows or (None,) * shape.layers
        forward = 0.0
        for window in windows:
            seen = min(window or layout.length, layout.length)
            share = 0.5 if shape.causal and seen == layout.length else 1
            slow = 1 + self.fitted["short rows"] / seen
            forward += 4 * layout.tokens * seen * shape.queries * share * slow / rate
        forward /= layout.model_ranks
        return forward, forward * (2.5 + _again(layout.recompute)[1])

    def _plain_attention(self) -> tuple[float, float]:
        """Two products over the square or its blocks, and its scores through memory: written, cast and read again."""
        layout, shape = self.layout, self.shape
        width, scores = shape.queries / shape.heads, layout.tokens / layout.length * shape.heads / layout.tensor
        product = 2 * self._product(layout.length, width, layout.length)
        moved = 3 * (FULL + FULL + HALF) * layout.length**2 / self._bandwidth
        passes = product + moved, 2 * (product + moved)
        if self._on_cpu:
            softmax = CPU_VALUES["score"] * layout.length**2 / self._rate
            passes = product + CPU_FORWARD * softmax, 2 * product + (1 - CPU_FORWARD) * softmax
        computed = scores * layout.plain_attention * shape.layers / layout.pipeline
        forward, backward = (one * computed for one in passes)
        return forward, backward + _again(layout.recompute)[1] * forward

    def _fused_on_cpu(self) -> tuple[float, float]:
        """SDPA's kernel on a processor: the time of all scores."""
        layout, shape = self.layout, self.shape
        score = CPU_FUSED["width"] * shape.queries / shape.heads + CPU_FUSED["score"]
        scores = layout.tokens * (layout.length + CPU_FUSED["row"]) * shape.heads * shape.layers / layout.model_ranks
        both = score * scores / self._rate
        forward = CPU_FUSED_FORWARD * both
        return forward, both - forward + _again(layout.recompute)[1] * forward

    def _moved(self) -> tuple[float, float]:
        """Everything between the products: bytes over bandwidth, on a processor its arithmetic."""
        layout, shape = self.layout, self.shape
        if self._on_cpu:
            active = CPU_VALUES["gated" if shape.gated else "GELU"] * shape.inner * shape.chosen
            values = (CPU_VALUES["stream"] * shape.hidden * layout.tensor + active) * layout.tokens * shape.layers
            forward = CPU_FORWARD * values / layout.model_ranks / self._rate
            return forward, forward / CPU_FORWARD - forward + _again(layout.recompute)[2] * forward
        stream, turned, inner = MOVED[layout.kernels, shape.gated]
        inside = [
            stream[way] * shape.hidden * (1 if layout.sequence else layout.tensor)
            + (turned[way] * (shape.queries + shape.narrow) + inner[way] * shape.inner * shape.chosen)
            for way in (0, 1)
        ]
        quantised = QUANTISED.get(layout.precision, 0)
        for _, into, outof, times in shape.linears:
            inside[0] += quantised * into * times
            inside[1] += quantised * outof * times
        scale = layout.tokens * shape.layers / layout.model_ranks / self._bandwidth
        if layout.kernels == "eager":
            scale *= self.fitted["eager"]
        forward, backward = (value * scale for value in inside)
        return forward, backward + _again(layout.recompute)[2] * forward

    def _logits(self) -> float:
        logits = self.layout.predicted * self.shape.vocab / self.layout.model_ranks
        if self._on_cpu:
            return CPU_VALUES["logit"] * logits / self._rate
        return LOGIT[self.layout.kernels] * logits / self._bandwidth

    def _weights(self) -> float:
        return (WEIGHT if self.layout.trained is None else HALF * 2) * self._held / self._bandwidth

    def _optimizer(self) -> float:
        return OPTIMIZER * self._trained / self.layout.state_ranks / self._bandwidth + self._calls

    @property
    def _calls(self) -> float:
        """Seconds of a step in which a processor calls kernels for each trained tensor."""
        return CPU_TENSOR * self.shape.tensors(self.layout.rank) if self._on_cpu else 0.0

    def _gather(self, nbytes: float, ranks: int, stride: int) -> float:
        """All-gather or reduce-scatter of `nbytes` over `ranks`."""
        if ranks == 1:
            return 0.0
        bus, _ = self.machine.bus(self.layout, ranks, stride)
        hops = self.shape.layers / self.layout.pipeline * (20e-6 + self.fitted["latency"] * ranks)
        return nbytes * (ranks - 1) / ranks / bus + hops

    @property
    def _held(self) -> float:
        """Weights of the layers that the rank computes."""
        return self.shape.parameters / self.layout.model_ranks

    @property
    def _trained(self) -> float:
        return (self.layout.trained or self.shape.parameters) / self.layout.model_ranks

    @property
    def _copies(self) -> int:
        """Groups that hold the same shards."""
        return self.layout.replicas * self.layout.context // self.layout.shard

    def _exchange(self, forward: float, backward: float) -> float:
        """Exposed exchange of weights and gradients over a step."""
        layout, stride = self.layout, self.layout.tensor
        gather = self._gather(HALF * self._held, layout.shard, stride)
        scatter = self._gather(layout.reduced * self._trained, layout.shard, stride)
        reduced = layout.reduced * self._trained / layout.shard
        reduce = 2 * self._gather(reduced, self._copies, stride * layout.shard)
        early, late = gather, gather * (layout.gathers - 1)
        passes, last = layout.accumulation, layout.accumulation if layout.sync_each and layout.shard > 1 else 1
        total = (passes if layout.gathers > 1 else 1) * self._exposed(early, forward)
        total += last * self._exposed(late + scatter, backward)
        total += (passes - last) * self._exposed(late, backward)
        return total + self._exposed(reduce, backward)

    def network_needed(self) -> float:
        """Return the bytes a second that leave a node from which on computation hides the exchange between nodes."""
        layout, (forward, backward) = self.layout, self._computed()
        late = HALF * self._held * (layout.gathers - 1) + layout.reduced * self._trained
        reduced = 2 * layout.reduced * self._trained / layout.shard
        needs = [0.0]
        for ranks, stride, nbytes, seconds in (
            (layout.shard, layout.tensor, HALF * self._held, forward),
            (layout.shard, layout.tensor, late, backward),
            (self._copies, layout.tensor * layout.shard, reduced, backward),
        ):
            if self.machine.between_nodes(layout, ranks, stride):
                needs.append(nbytes * (ranks - 1) / ranks / seconds / self.machine.network_share(layout, stride))
        return max(needs)

    def _exposed(self, exchange: float, compute: float) -> float:
        """What the computation does not hide, and its slowdown by sharing the card. A processor hides nothing."""
        if self._on_cpu:
            return exchange
        return max(0.0, exchange - compute) + self.fitted["contention"] * min(exchange, compute)

    def _tensor(self) -> float:
        """Two all-gathers and two reduce-scatters of activations in each direction of a block."""
        layout = self.layout
        if layout.tensor == 1:
            return 0.0
        ways = 10 if layout.recompute == "full" else 8
        one = self._gather(HALF * layout.tokens * self.shape.hidden, layout.tensor, 1)
        shown = self.fitted["async tensor" if layout.async_tensor else "tensor"]
        return ways * self.shape.layers / layout.pipeline * one * shown

    def _context(self, attention: float) -> float:
        """Keys and values of the other ranks, and their gradients."""
        layout = self.layout
        nbytes = 2 * HALF * self.shape.narrow / layout.tensor * layout.tokens * layout.context
        ways = 4 if layout.recompute == "full" else 3
        one = self._gather(nbytes, layout.context, layout.tensor) * self.shape.layers / layout.pipeline
        return self._exposed(ways * one, attention)

    def _computed(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass of one micro batch, without communication."""
        parts = (*self._products().values(), self._head(), self._attention(), self._moved())
        return sum(part[0] for part in parts), sum(part[1] for part in parts)

    def parts(self) -> dict[str, float]:
        """Seconds of a step by part."""
        layout, passes = self.layout, self.layout.accumulation
        products, head, attention, moved = self._products(), self._head(), self._attention(), self._moved()
        forward, backward = self._computed()
        each = {
            **{f"{kind} products": sum(both) for kind, both in products.items()},
            "output head": sum(head),
            "attention": sum(attention),
            "memory-bound parts": sum(moved) + self._logits() + self._weights(),
            "tensor parallelism": self._tensor(),
            "context parallelism": self._context(sum(attention)),
        }
        return {
            **{name: passes * one for name, one in each.items()},
            "optimizer": self._optimizer(),
            "exchange of weights and gradients": self._exchange(forward, backward),
            "pipeline bubble": (layout.pipeline - 1) / layout.interleave * (forward + backward),
        }

    def seconds(self) -> float:
        """Seconds of a step."""
        return sum(self.parts().values())

    def steps(self) -> list[Step]:
        """The parts, each with its arithmetic."""
        return [Step(name, seconds, *self._how(name, seconds)) for name, seconds in self.parts().items()]

    def _how(self, name: str, seconds: float) -> tuple[str, tuple[str, ...]]:
        """Return the arithmetic of a part, and the fitted constants in it."""
        layout, shape, again = self.layout, self.shape, _again(self.layout.recompute)
        passes = f"; {layout.accumulation} passes" if layout.accumulation > 1 else ""
        rate = (f"matmul {self.machine.card.efficiency}", "matmul reads", "bandwidth")
        fp8 = (layout.precision,) if layout.precision.startswith("fp8") else ()
        divided = f" / {layout.model_ranks}" if layout.model_ranks > 1 else ""
        back = 1 if layout.trained is not None else 2
        if name.endswith(" products"):
            sizes = [(into, outof // layout.tensor, n) for kind, into, outof, n in shape.linears if kind in name]
            if name == "adapters products":
                sizes, back, fp8 = [(layout.targets // layout.tensor, layout.rank, 1)], 2, ()
            share = self._products_again(name.removesuffix(" products"))
            flop = 2 * (1 + back + share) * layout.tokens * layout.accumulation * shape.layers / layout.pipeline
            flop *= sum(into * outof * n for into, outof, n in sizes)
            shapes = ", ".join(f"{into}x{outof}{f' x {n}' if n > 1 else ''}" for into, outof, n in sizes)
            reached = f"{flop / seconds / 1e12:.3g} TFLOP/s at this shape" if seconds else ""
            times = f"(1 + {back} + {share:g} again) x {shape.layers // layout.pipeline} layers"
            return f"2 x {layout.tokens:,} tokens x [{shapes}] x {times}: {reached}{passes}", (*rate, *fp8)
        head = f"{shape.hidden}x{shape.vocab // layout.tensor}"
        ways = 10 if layout.recompute == "full" else 8
        rows: dict[str, tuple[str, tuple[str, ...]]] = {
            "output head": (f"2 x {layout.predicted:,} tokens x {head} x (1 + {back}){passes}", rate),
            "attention": (
                f"4 x {layout.tokens:,} tokens x {self._keys():,.0f} keys x {shape.queries} x (1 + 2.5 + {again[1]:g}"
                f" again) x {shape.layers} layers{divided}: {layout.attention}{passes}",
                (_kernel(layout, self.machine), "short rows"),
            ),
            "memory-bound parts": (
                f"{self._between(seconds)} of norms, rotation, activation, logits and copies of weights in"
                f" {layout.kernels} kernels{passes}",
                ("bandwidth", *(("eager",) if layout.kernels == "eager" else ())),
            ),
            "tensor parallelism": (
                f"{ways} exchanges of {layout.tokens:,} tokens x {shape.hidden} x {HALF} B x {shape.layers} layers over"
                f" {layout.tensor} ranks, exposed{passes}",
                ("async tensor" if layout.async_tensor else "tensor", "latency"),
            ),
            "context parallelism": (
                f"keys and values of {layout.tokens * layout.context:,} tokens over {layout.context} ranks, beyond"
                f" attention{passes}",
                ("contention", "latency"),
            ),
            "optimizer": (self._updated(seconds), ("bandwidth",)),
            "exchange of weights and gradients": (self._exchanged(), ("contention", "latency")),
            "pipeline bubble": (f"({layout.pipeline} - 1) / {layout.interleave} of a pass", ()),
        }  # fmt: skip
        if name == "attention" and layout.plain_attention:
            square = f"2 products of {layout.length:,}x{layout.length:,} and "
            square += "the softmax of its scores" if self._on_cpu else "3 passes of its scores through memory"
            square += f", {layout.plain_attention:.0%} of them" if layout.plain_attention < 1 else ""
            text = f"{square}, for each head and sequence, x (1 + 2 + {again[1]:g} again) x {shape.layers} layers"
            return f"{text}{divided}{passes}", rate
        if name == "attention" and self._on_cpu:
            scores = f"{layout.tokens:,} tokens x ({layout.length:,} keys + {CPU_FUSED['row']}) x {shape.heads} heads"
            each = f"({CPU_FUSED['width']} x {shape.queries // shape.heads} + {CPU_FUSED['score']}) FLOP of products"
            repeated = f" x (1 + {CPU_FUSED_FORWARD} x {again[1]:g} again)"
            return f"{scores} x {shape.layers} layers x {each}{repeated}: fused{divided}{passes}", rate[:1]
        return rows[name]

    def _between(self, seconds: float) -> str:
        """Return what these seconds are of, between the products, in words."""
        if self._on_cpu:
            return f"the time of {seconds * self._rate / 1e9:,.0f} GFLOP of products: the arithmetic"
        return f"{seconds * self._bandwidth / 1e9:,.0f} GB at {self._bandwidth / 1e12:.3g} TB/s:"

    def _updated(self, seconds: float) -> str:
        """Return what the optimizer does in these seconds, in words."""
        total = f"{(seconds - self._calls) * self._bandwidth / 1e9:,.0f} GB"
        moved = f"{OPTIMIZER} B a weight of the rank: {total} at {self._bandwidth / 1e12:.3g} TB/s"
        if not self._on_cpu:
            return moved
        return f"{moved}; {CPU_TENSOR * 1e3:g} ms for each of {self.shape.tensors(self.layout.rank)} tensors"

    def _keys(self) -> float:
        """Return the keys that a token attends to, on average of the layers; half of its row under a causal mask."""
        length, shape = self.layout.length, self.shape
        seen = [min(one or length, length) for one in shape.windows or [None]]
        return sum(one / 2 if shape.causal and one == length else one for one in seen) / len(seen)

    def _exchanged(self) -> str:
        """Return what ranks exchange in a step, in words."""
        layout = self.layout
        span, network = self.machine.bus(layout, max(layout.shard, self._copies), layout.tensor)
        parts = []
        if layout.shard > 1:
            held = f"{self._held / 1e9:.3g} G x {HALF} B"
            twice = " twice" if layout.gathers > 1 else ""
            scattered = f"{self._trained / 1e9:.3g} G x {layout.reduced} B over {layout.shard} ranks"
            parts.append(f"all-gather of {held}{twice} and reduce-scatter of {scattered}")
        if self._copies > 1:
            reduced = f"{self._trained / layout.shard / 1e9:.3g} G x {layout.reduced} B over {self._copies} ranks"
            parts.append(f"all-reduce of {reduced}")
        return f"{', '.join(parts)}; the slowest is {network}, {span / 1e9:.3g} GB/s; what computation does not hide"
