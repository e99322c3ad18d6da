"""What a run is to the planner: the architecture, how ranks share the work, the card and its links."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from tools.core.tables import load
from tools.facts.instances import Instance
from training.config import Config, choices, counting, elastic

FULL, HALF = 4, 2  # bytes of a number in fp32 and in bf16
FLOAT8 = {"tensorwise": "fp8", "rowwise": "fp8-rowwise"}  # names of device.float8 in tools/facts/runs.yaml


@dataclass(frozen=True)
class Shape:
    """An architecture. Parameters are counted from the sizes, or taken from training/config/counting.py."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 0
    gated: bool = True  # SwiGLU, RMS norms and rotary positions; else GELU, layer norms and learned positions
    tied: bool = False
    causal: bool = True
    experts: int = 1
    chosen: int = 1
    windows: tuple[int | None, ...] = ()
    counted: tuple[int, int] | None = None  # parameters of a block, and outside the blocks

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the architecture of a configuration."""
        model = config.model
        return cls(
            model.hidden_size, model.intermediate_size, model.num_hidden_layers, model.num_attention_heads,
            model.num_key_value_heads, model.vocab_size, model.head_size, model.bert is None,
            model.tie_word_embeddings, model.bert is None, model.num_local_experts or 1,
            model.num_experts_per_tok or 1, tuple(model.windows),
            (counting.layer_parameters(model), counting.outer_parameters(model)),
        )  # fmt: skip

    @property
    def queries(self) -> int:
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def narrow(self) -> int:
        return self.queries * self.kv_heads // self.heads

    @cached_property
    def linears(self) -> tuple[tuple[str, int, int, int], ...]:
        """Matrix products of a block for one token: (kind, inputs, outputs, how many)."""
        up = 2 if self.gated else 1
        return (
            ("attention", self.hidden, self.queries + 2 * self.narrow, 1),
            ("attention", self.queries, self.hidden, 1),
            ("MLP", self.hidden, up * self.inner, self.chosen),
            ("MLP", self.inner, self.hidden, self.chosen),
        )

    @property
    def expert(self) -> int:
        """Parameters of a block's experts; those of its one MLP without experts."""
        return self.experts * (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def block(self) -> int:
        if self.counted:
            return self.counted[0]
        attention = self.hidden * (self.queries + 2 * self.narrow) + self.queries * self.hidden
        return attention + self.expert + 2 * self.hidden + (self.experts > 1) * self.experts * self.hidden

    @property
    def outer(self) -> int:
        words = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.counted[1] if self.counted else words + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.block + self.outer

    def tensors(self, rank: int = 0) -> int:
        """Return the number of trained tensors; with adapters of `rank`, two for each linear layer."""
        linears = 7 if self.gated else 6
        if rank:
            return self.layers * 2 * linears
        return self.layers * (linears + 2) + 3 if self.gated else self.layers * (2 * linears + 4) + 15

    @property
    def flops_per_token(self) -> int:
        """Forward and backward pass without attention: 6 for each parameter that multiplies a token."""
        idle = self.layers * self.expert * (self.experts - self.chosen) // self.experts
        looked_up = 0 if self.tied else self.vocab * self.hidden
        return 6 * (self.parameters - idle - looked_up)


@dataclass(frozen=True)
class Card:
    """An accelerator: data sheet figures and where they stand. Bytes and FLOP a second."""

    name: str
    peak: float  # dense bf16
    peak_fp8: float | None
    bandwidth: float  # of its memory
    link: float  # to the other cards of a node, one direction
    efficiency: str  # the fitted constants that this card uses; "" if it has none
    source: str
    error: float = 0.0  # nine in ten errors are smaller; 0: as the table of all cards
    rowwise: bool = True  # whether it multiplies float8 with a scale for each row


# Cards that share a name's first word and have other peaks or links.
_OTHER_FORMS = {"pcie", "nvl", "mig"}
_TABLE: dict[str, Any] = load("facts/cards.yaml")
CALIBRATED: dict[str, Any] = load("facts/calibrated.yaml")  # by `yard plan calibrate`
CARDS = {name: Card(name, **row) for name, row in {**_TABLE["cards"], **CALIBRATED["cards"]}.items()}
FITTED: dict[str, float] = {**_TABLE["fitted"], **CALIBRATED["fitted"]}


def card_of(name: str, mib: int) -> Card | None:
    """Return the card of a name such as `H100` or `NVIDIA-H100-80GB-HBM3` with that memory, None if it is unknown."""
    words = re.split(r"[-_ ]", name)
    if _OTHER_FORMS & {word.casefold() for word in words}:
        return None
    keys = (key for word in words for key in (word, f"{word}-{40 if mib < 50_000 else 80}"))
    return next((CARDS[key] for key in keys if key in CARDS), None)


def source_of(constant: str) -> str:
    """Return where a fitted constant comes from."""
    if constant in CALIBRATED["sources"]:
        return f"fitted to {CALIBRATED['sources'][constant]}"
    derived = constant.rpartition(" ")[2] in _TABLE["derived"]["cards"]
    return str(_TABLE["derived"]["source"] if derived else _TABLE["fitted_source"])


@dataclass(frozen=True)
class Layout:
    """How a run is laid out: micro batches, the ranks that share the model, number formats, kernels."""

    length: int  # tokens of a sequence
    micro: int  # sequences of a rank and pass
    accumulation: int = 1  # passes of a step
    batch: int = 0  # sequences of a step, where some ranks of an elastic job have an empty pass; 0: no rank has
    gpus: int = 1
    per_node: int = 8
    shard: int = 1  # ranks that share the states (FSDP); 1: every rank holds all of them
    zero1: bool = False  # whether replicas share the optimizer's state (Megatron's distributed optimizer)
    gathers: int = 2  # all-gathers of the weights in a pass
    sync_each: bool = True  # whether each pass exchanges gradients
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    interleave: int = 1
    async_tensor: bool = False
    sequence: bool = True  # whether ranks of `tensor` also divide what lies between the products, by tokens
    recompute: str = "none"  # none, selective, selective-layer, full
    kernels: str = "compiled"  # compiled, eager
    attention: str = "flash2"  # eager, blocks, sdpa (with a mask), flash2, flash3
    precision: str = "bf16"  # bf16, fp8, fp8-rowwise, fp8-te, fp32
    trained: int | None = None  # parameters that are trained, if not all; the rest is frozen
    rank: int = 0  # of the adapters
    targets: int = 0  # inputs and outputs of the adapted linears of a block
    weight: int = FULL  # bytes of a trained weight
    moments: int = 2 * FULL  # bytes of the optimizer's state for a weight
    reduced: int = FULL  # bytes of a gradient in the exchange
    # Bytes of a logit at the peak. A head and its loss compiled together: the gradient takes the logits' place, in
    # bf16 (2) or fp32 (4). Eager: logits, their logarithm and its gradient in fp32 (12). A loss that is compiled alone
    # lies between.
    logit: int = 10
    chunk: int = 0  # tokens whose logits exist at once; 0: all
    masked: int = 0  # words of a sequence that are predicted, in BERT; 0: all
    offload: bool = False  # weights and the optimizer's state stay on the host
    wrapped: bool = False  # whether FSDP holds the model although no rank shares it
    on_cpu: bool = False  # whether host and device are the same memory
    dropout: bool = False  # of attention

    @classmethod
    def of(cls, config: Config, nodes: int, per_node: int) -> Self:
        """Return the layout of a configuration. Raises ConfigError if the ranks cannot train it."""
        elastic.check(config, nodes * per_node, per_node)
        keys, device, lora = config.parallel.model_dump(), config.device, config.lora
        world, small = nodes * per_node, not choices.frees_early(config.model)
        shapes = counting.linear_shapes(config.model)
        sharded, reshard = keys["sharding"] != "ddp" and world > 1, keys["reshard_after_forward"]
        compiled = choices.compiles(config, cpu_in_fp32=device.type == "cpu" and device.precision != "bf16")
        return cls(
            config.sequence_length, config.parallel.micro_batch_size, config.accumulation(world),
            config.train.global_batch_size if config.nodes else 0, world, per_node,
            shard=(per_node if keys["sharding"] == "hsdp" else world) // keys["tensor"] if sharded else 1,
            tensor=keys["tensor"], sequence=False,
            gathers=1 if (small if reshard == "auto" else not reshard) else 2, sync_each=not small,
            recompute=keys["activation_checkpointing"], kernels="compiled" if compiled else "eager",
            logit=12 if not compiled else FULL if device.precision == "fp32" else HALF,
            attention=_attention(config, compiled),
            precision="fp32" if device.precision == "fp32" else FLOAT8.get(device.float8, "bf16"),
            reduced=HALF if keys["reduce_precision"] == "bf16" else FULL,
            moments=2 * (HALF if config.train.moment_precision == "bf16" else FULL),
            chunk=0 if config.model.bert else chunk_size(
                config.parallel.micro_batch_size * config.sequence_length, config.model.vocab_size, keys["tensor"],
                device.type == "cpu",
            ),
            offload=keys["offload"] == "cpu", wrapped=sharded, on_cpu=device.type == "cpu",
            dropout=config.model.attention_dropout > 0,
            masked=config.masking.most if config.masking else 0,
            trained=None if lora is None else counting.trainable_parameters(config.model, lora),
            rank=lora.rank if lora else 0,
            targets=sum(sum(shapes[name]) for name in lora.target_modules) if lora else 0,
        )  # fmt: skip

    @property
    def sharded(self) -> bool:
        """Whether FSDP holds the model; else every rank holds all of it."""
        return self.wrapped or self.shard > 1

    @property
    def tokens(self) -> int:
        """Tokens of a rank and pass."""
        return self.micro * self.length // self.context

    @property
    def predicted(self) -> int:
        """Tokens of a rank and pass whose words are predicted."""
        return self.micro * self.masked or self.tokens

    @property
    def replicas(self) -> int:
        """Ranks that see different sequences."""
        return self.gpus // (self.tensor * self.context * self.pipeline)

    @property
    def plain_attention(self) -> float:
        """The share of all pairs of tokens whose scores are computed; 0 where a fused kernel computes them."""
        blocks = math.ceil(self.length / choices.ATTENTION_BLOCK)
        return {"eager": 1.0, "blocks": (blocks + 1) / (2 * blocks)}.get(self.attention, 0.0)

    @property
    def step_tokens(self) -> int:
        return (self.batch or self.replicas * self.micro * self.accumulation) * self.length

    @property
    def state_ranks(self) -> int:
        """Ranks that share the optimizer's state."""
        return self.replicas * self.context if self.zero1 else self.shard

    @property
    def model_ranks(self) -> int:
        """Ranks among which the layers themselves are divided."""
        return self.tensor * self.pipeline


def _attention(config: Config, compiled: bool) -> str:
    """Return the kind of attention of a run: plain, or the kernel that fuses it."""
    on_cpu = config.device.type == "cpu"
    wanted = choices.attention_on_a_cpu(config, compiled) if on_cpu else config.device.attention
    return wanted if wanted in ("eager", "blocks") else "sdpa" if on_cpu else "flash2"


def chunk_size(tokens: int, words: int, tensor: int, on_a_cpu: bool) -> int:
    """Return the tokens of a chunk of the loss, 0 without chunks; ranks that share the words have at least one."""
    size = choices.loss_chunk(tokens, words // tensor, not on_a_cpu)
    return size if size < tokens else tokens if tensor > 1 else 0


@dataclass(frozen=True)
class Machine:
    """The card of a run, and the bytes a second that leave a node."""

    card: Card
    network: float  # 0: unknown
    network_name: str

    @classmethod
    def of(cls, instance: Instance) -> Self | None:
        """Return a machine, or None where its card is not in the facts."""
        card = card_of(instance.accelerator or "", instance.accelerator_memory_mib)
        return cls(card, instance.network_mbps * 1e6 / 8, "EFA" if instance.efa else "TCP") if card else None

    def bus(self, layout: Layout, ranks: int, stride: int = 1) -> tuple[float, str]:
        """Return the bus bandwidth of a collective of `ranks` that are `stride` apart, and its network."""
        inside = "NVLink" if self.card.link > 100e9 else "PCIe"
        link = self.card.link * _TABLE["link_share"][inside]
        if not self.between_nodes(layout, ranks, stride):
            return link, inside
        return min(link, self.network * self.network_share(layout, stride)), self.network_name

    def between_nodes(self, layout: Layout, ranks: int, stride: int) -> bool:
        """Return whether such a collective leaves a node."""
        return min(ranks * stride, layout.gpus) > layout.per_node

    def network_share(self, layout: Layout, stride: int) -> float:
        """Return what such a collective gets of a node's network, which other groups of ranks use too."""
        return float(_TABLE["network_share"][self.network_name]) / max(1, min(stride, layout.per_node))


def nodes_of(layout: Layout) -> int:
    return math.ceil(layout.gpus / layout.per_node)
