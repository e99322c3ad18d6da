"""What a run needs, how long it takes and what it costs: the plan, from the configuration and the machines."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tools.core.tables import load
from tools.facts.instances import Instance
from tools.plan import memory, speed
from tools.plan.layout import CARDS, FITTED, Layout, Machine, Shape, chunk_size, nodes_of
from tools.plan.memory import Estimate, Room
from tools.plan.speed import Clock, Step
from training.config import Config

OFFERS: dict[str, Any] = load("facts/offers.yaml")
FITTED_ERROR: Mapping[str, float] = load("facts/cards.yaml")["error"]
UNKNOWN_CARD = "a card that tools/facts/cards.yaml does not have"
WHAT_TO_DO = (
    "measure a matrix product of 8192 x 8192 x 8192 in bf16 and `yard job nccl-test`, "
    "add the card to tools/facts/cards.yaml, then run `yard plan calibrate` on its first run"
)
WHICH_NETWORK = (
    "measure it with `yard job nccl-test`, and write network_mbps into the machine's `node` in overlays/matrix.yaml"
)
WHICH_MACHINE = (
    "add a node affinity or a nodeSelector on node.kubernetes.io/instance-type, or describe a node of your own: "
    "yard new hardware"
)
NOT_MODELLED = "the planner has no formula for its time (docs/planning.md)"
# The keys of a plan in JSON. All are always there; null is unknown.
KEYS = (
    "name", "instance", "nodes", "gpus", "memory", "step_s", "unknown", "step", "tokens_per_s", "mfu", "tokens",
    "hours", "usd_per_hour", "usd", "checkpoint", "between_failures_s", "ettr", "network",
    "network_needed_bytes_per_s",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The machines of a job, and what they cost: all that is known of a job whose model is not."""

    name: str
    instance: Instance | None
    nodes: int
    room: Room
    why_unknown: str = ""

    @property
    def place(self) -> "Place":
        return self

    @property
    def gpus(self) -> int:
        """Ranks, or GPUs and Neuron cores."""
        return self.nodes * self.room.processes

    @property
    def prices(self) -> dict[str, float | None]:
        """USD an hour for all nodes, by kind of offer; None is unknown."""
        name = self.instance.name if self.instance else ""
        known = {kind: OFFERS[kind]["prices"].get(name) for kind in ("spot", "capacity block", "reservation")}
        each = {"on demand": self.instance.price_usd_per_hour if self.instance else None, **known}
        return {kind: None if price is None else price * self.nodes for kind, price in each.items()}

    @property
    def network(self) -> str:
        """What leaves a node."""
        if self.nodes == 1:
            return "none: one node"
        if self.instance is None or not self.instance.network_mbps:
            return "unknown"
        kind = "EFA" if self.instance.efa else "TCP"
        return f"{kind}, {self.instance.network_mbps / 1000:,.0f} Gbit/s a node"

    def as_dict(self) -> dict[str, Any]:
        """Return it in the form of a plan."""
        prices = self.prices
        return dict.fromkeys(KEYS) | {
            "name": self.name,
            "instance": self.instance.name if self.instance else None,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "memory": {"needed": None, "there": self.room.nbytes or None, "fits": None, "terms": []},
            "unknown": self.why_unknown,
            "step": [],
            "usd_per_hour": prices,
            "usd": dict.fromkeys(prices),
            "network": self.network,
        }


@dataclass(frozen=True)
class Run:
    """What is planned: an architecture in a layout on machines, for a number of steps."""

    name: str
    shape: Shape
    layout: Layout
    room: Room
    instance: Instance | None
    machine: Machine | None
    steps: int
    save_every: int
    evaluated: float = 0.0  # steps' worth of held-out sequences, over the whole run
    kept: int = 2  # checkpoints that stay on the volume
    beside: bool = False  # whether a save is written while training continues
    shrunk: Layout | None = None  # of an elastic job, at its fewest nodes

    @classmethod
    def of(cls, name: str, config: Config, nodes: int, room: Room, instance: Instance | None) -> "Run":
        """Return the run of a configuration. Raises ConfigError if the ranks cannot share the batch."""
        layout, least = Layout.of(config, nodes, room.processes), memory.fewest(config, nodes)
        recipe, saves = config.train, config.checkpoint
        evaluations = 1 + (recipe.steps - 1) // recipe.eval_every
        milestones = recipe.steps // saves.keep_every if saves.keep_every else 0
        return cls(
            name, Shape.of(config), layout, room, instance, _machine(config, instance, room),
            recipe.steps, saves.every,
            evaluations * recipe.eval_sequences / recipe.global_batch_size / 3,  # a forward pass is a third
            saves.keep + saves.keep_best + milestones, saves.asynchronous,
            Layout.of(config, least, room.processes) if least < nodes else None,
        )  # fmt: skip

    @property
    def nodes(self) -> int:
        return nodes_of(self.layout)


def _machine(config: Config, instance: Instance | None, room: Room) -> Machine | None:
    """Return the machine, None where its card is unknown: a CPU is known once a run was calibrated."""
    if room.what in memory.CARDS:
        return Machine.of(instance) if instance and config.device.type != "cpu" else None
    cpu = CARDS.get("CPU") if config.device.type in ("cpu", "auto") else None
    return Machine(cpu, cpu.link, "TCP") if cpu else None


def _unknown_card(run: Run) -> str:
    """Say why the card of a run without a known machine is unknown, and what to do."""
    if run.room.what not in memory.CARDS:
        return "no accelerator; the peak of a CPU is measured by its run; run `yard plan calibrate` on a run"
    if run.instance is None:
        return "its pods name no type of machine; " + WHICH_MACHINE
    return f"{run.instance.accelerator}, {UNKNOWN_CARD}; {WHAT_TO_DO}"


@dataclass(frozen=True)
class Plan:
    """The outlook of a run. Times are None where the card is unknown."""

    run: Run
    unclear: str = ""  # why its machines are not known: "unknown: ..."

    @cached_property
    def memory(self) -> Estimate:
        return memory.of_layout(self.run.shape, self.run.shrunk or self.run.layout, self.run.room)

    @cached_property
    def _clock(self) -> Clock | None:
        """What gives the times, None where the card, its network or a constant is unknown."""
        run = self.run
        if run.machine is None or self._no_network or not speed.used(run.layout, run.machine) <= FITTED.keys():
            return None
        return Clock(run.shape, run.layout, run.machine, FITTED)

    @cached_property
    def steps(self) -> list[Step]:
        return self._clock.steps() if self._clock else []

    @property
    def why_unknown(self) -> str:
        """Why there is no time, or an empty text."""
        if self.step_s is not None:
            return ""
        run = self.run
        if run.machine is None:
            return self.unclear or f"unknown: {_unknown_card(run)}"
        if self._no_network:
            nodes = run.instance.name if run.instance else "the nodes"
            return f"unknown: the network of {nodes}; {WHICH_NETWORK}"
        lacking = sorted(speed.used(run.layout, run.machine) - FITTED.keys())
        own = [name for name in lacking if name.endswith(f" {run.machine.card.efficiency}")]
        what = WHAT_TO_DO if own == lacking else NOT_MODELLED
        return f"unknown: nothing was measured for {', '.join(lacking)}; {what}"

    @property
    def _no_network(self) -> bool:
        machine = self.run.machine
        return machine is not None and self.run.nodes > 1 and not machine.network

    @cached_property
    def step_s(self) -> float | None:
        return self._clock.seconds() if self._clock else None

    @property
    def network_needed(self) -> float | None:
        """Bytes a second that leave a node from which on the exchange is hidden; None if unknown."""
        return self._clock.network_needed() if self._clock else None

    @property
    def error(self) -> float:
        """Nine in ten measured errors are smaller."""
        card = self.run.machine.card if self.run.machine else None
        return (card.error if card else 0.0) or float(FITTED_ERROR["ninety"])

    @property
    def tokens_per_s(self) -> float | None:
        return self.run.layout.step_tokens / self.step_s if self.step_s else None

    @property
    def mfu(self) -> float | None:
        """torchtitan's convention: 6 for each parameter, 12 x layers x width x length for attention."""
        run, rate = self.run, self.tokens_per_s
        if rate is None or run.machine is None:
            return None
        return rate * self.flops_per_token / run.layout.gpus / run.machine.card.peak

    @property
    def flops_per_token(self) -> float:
        """Forward and backward pass in that convention; a frozen base needs no gradients of its weights."""
        shape, layout = self.run.shape, self.run.layout
        seen = sum(min(one or layout.length, layout.length) for one in shape.windows or [None])
        attention = 12 * (1 if shape.windows else shape.layers) * shape.queries * seen
        trained = layout.trained
        return attention + (shape.flops_per_token if trained is None else shape.flops_per_token * 2 / 3 + 6 * trained)

    # Checkpoints and failures

    @property
    def checkpoint_bytes(self) -> int:
        trained = self.run.layout.trained or self.run.shape.parameters
        return trained * (self.run.layout.weight + self.run.layout.moments)

    @property
    def stall_s(self) -> float:
        """What a save takes of the training: until the ranks have written their parts, or copied them to the host."""
        if self.run.beside:
            return float(self.checkpoint_bytes / self.run.layout.gpus / OFFERS["host"]["bytes_per_s"])
        return float(self.checkpoint_bytes / OFFERS["storage"]["bytes_per_s"])

    @property
    def stored_bytes(self) -> int:
        """What the volume holds at most: all that is kept, and the checkpoint that is being written."""
        return (self.run.kept + 1) * self.checkpoint_bytes

    @property
    def between_failures_s(self) -> float | None:
        """Expected time between interruptions of the whole run."""
        rates = OFFERS["interruptions_per_gpu_hour"]
        card = self.run.machine.card.name if self.run.machine else ""
        row = rates.get(card.partition("-")[0])
        return 3600 / (row["rate"] * self.run.layout.gpus) if row else None

    @property
    def best_interval_s(self) -> float | None:
        """Daly's interval between saves (Daly 2006, equation 37; its first term is Young's)."""
        mean, stall = self.between_failures_s, self.stall_s
        if mean is None or stall >= 2 * mean:
            return None
        part = stall / (2 * mean)
        return math.sqrt(2 * stall * mean) * (1 + math.sqrt(part) / 3 + part / 9) - stall

    @property
    def ettr(self) -> float | None:
        """The expected ETTR: time goes to saves, lost steps and restarts (Kokolis et al. 2024)."""
        if self.step_s is None or self.between_failures_s is None:
            return None
        from training.run.ledger import ettr  # imported here: it would slow what asks for memory only

        interval = self.run.save_every * self.step_s
        lost = float(OFFERS["restart_s"]["value"]) + interval / 2
        return ettr(interval / (1 + lost / self.between_failures_s), interval + self.stall_s)

    # Time and money

    @property
    def hours(self) -> tuple[float, float, float] | None:
        """The time to the last step: expected, and the range of nine in ten measured errors."""
        if self.step_s is None:
            return None
        error, run = self.error, self.run
        busy = (run.steps + run.evaluated) * self.step_s
        saves = math.ceil(run.steps / run.save_every) * self.stall_s
        expected = busy / self.ettr if self.ettr else busy + saves
        return expected / 3600, expected * (1 - error) / 3600, expected * (1 + error) / 3600

    @property
    def place(self) -> Place:
        run = self.run
        return Place(run.name, run.instance, run.nodes, run.room)

    @property
    def costs(self) -> dict[str, tuple[float, float, float] | None]:
        """USD to the last step, by kind of offer: expected, and its range."""
        hours = self.hours
        return {
            kind: None if price is None or hours is None else (price * hours[0], price * hours[1], price * hours[2])
            for kind, price in self.place.prices.items()
        }

    @property
    def offer(self) -> str | None:
        """The kind of offer that a plan is compared by: on demand, else the cheapest that is known."""
        known = {kind: cost[0] for kind, cost in self.costs.items() if cost}
        return "on demand" if "on demand" in known else min(known, key=known.__getitem__, default=None)

    @property
    def cheapest(self) -> float | None:
        """USD of that offer."""
        cost = self.costs.get(self.offer or "")
        return cost[0] if cost else None

    @property
    def after_s(self) -> float:
        """Seconds of a step after the last forward pass: its backward pass, the exchange, the optimizer."""
        own = {"optimizer", "exchange of weights and gradients"}
        layout, alone = self.run.layout, sum(step.seconds for step in self.steps if step.name in own)
        backward = 3 / 4 if layout.recompute == "full" else 2 / 3
        return alone + backward * ((self.step_s or 0.0) - alone) / layout.accumulation

    @property
    def before_exchange_s(self) -> float:
        """Seconds of a step until its last backward pass, as the trainer measures each rank."""
        return (self.step_s or 0.0) - self.after_s

    def slower(self, seconds: float) -> str:
        """Say what a step of that many seconds means beside the plan, or nothing if it is as planned."""
        if self.step_s is None or seconds <= self.step_s * (1 + 2 * self.error):
            return ""
        return f"slower than planned by {seconds / self.step_s:.1f}x"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON; null is unknown."""
        run = self.run
        return self.place.as_dict() | {
            "memory": self.memory.as_dict(),
            "step_s": self.step_s,
            "unknown": self.why_unknown or None,
            "step": [{**vars(one), "constants": {key: FITTED[key] for key in one.constants}} for one in self.steps],
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "tokens": run.steps * run.layout.step_tokens,
            "hours": self.hours,
            "usd": self.costs,
            "checkpoint": {
                "bytes": self.checkpoint_bytes, "stall_s": self.stall_s, "every_steps": run.save_every,
                "best_interval_s": self.best_interval_s, "stored_bytes": self.stored_bytes,
            },
            "between_failures_s": self.between_failures_s,
            "ettr": self.ettr,
            "network_needed_bytes_per_s": self.network_needed,
        }  # fmt: skip


def on_instance(run: Run, instance: Instance, nodes: int, room: Room, **changes: Any) -> Run:
    """Return the same training on other machines, with FSDP over all ranks.

    Raises ValueError if the ranks cannot share the batch.
    """
    world, tensor = nodes * room.processes, changes.get("tensor", run.layout.tensor)
    micro, replicas = changes.get("micro", run.layout.micro), world // tensor
    sequences = run.layout.step_tokens // run.layout.length
    passes, rest = divmod(sequences, micro * replicas)
    if rest or not passes:
        raise ValueError(f"{sequences} sequences on {replicas} replicas")
    shape = run.shape
    on_cpu, tokens = not instance.accelerators, micro * run.layout.length
    chunk = chunk_size(tokens, shape.vocab, tensor, on_cpu) if shape.causal else 0
    own = {"gpus": world, "per_node": room.processes, "accumulation": passes, "chunk": chunk}
    changes = {"shard": replicas, **changes, **own}
    layout = replace(run.layout, **changes)
    return replace(run, layout=layout, shrunk=None, room=room, instance=instance, machine=Machine.of(instance))
