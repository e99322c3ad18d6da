"""Searches hardware, nodes, sharding, tensor ranks, checkpointing and micro batch: time against cost."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product

from pydantic import ValidationError

from tools.facts.instances import Instance
from tools.plan import memory
from tools.plan.memory import Room
from tools.plan.outlook import Plan, Run, on_instance
from training.config import Config

NODES = (1, 2, 4, 8, 16, 32, 64, 128)
MICRO = (1, 2, 4, 8, 16)
TENSOR = (1, 2, 4, 8)
UNKNOWN_INTERVAL_S = 3600.0
RECOMPUTE = ("none", "selective", "full")


def front(run: Run, machines: Iterable[tuple[Instance, Room]], sizes: Sequence[int] = (1,)) -> list[Plan]:
    """Return the plans that no other beats in both time and cost, the fastest first.

    `sizes` are the numbers of ranks that may compute each matrix product together. A plan costs what it costs on
    demand, else in its cheapest known offer.
    """
    plans = [plan for plan in map(saving, _fastest(run, machines, sizes)) if plan.cheapest is not None]
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (expected(plan), plan.cheapest or 0.0)):
        if not best or (plan.cheapest or 0.0) < (best[-1].cheapest or 0.0):
            best.append(plan)
    return best


def tensors(config: Config) -> list[int]:
    """Return how many ranks may compute each matrix product together, by the rules of the configuration."""
    return [ranks for ranks in TENSOR if ranks == 1 or _divides(config, ranks)]


def _divides(config: Config, ranks: int) -> bool:
    told = config.model_dump(mode="json")
    told["parallel"] |= {"sharding": "fsdp", "tensor": ranks}
    try:
        Config.model_validate(told)
    except ValidationError:
        return False
    return True


def shards(run: Run, room: Room, nodes: int, tensor: int) -> set[int]:
    """Return how many ranks may share the states: all of them, those of a node, none. BERT is data parallel.

    Ranks that share products are sharded, and each of them has its own shards.
    """
    if not run.shape.causal or room.processes % tensor:
        return {1} if tensor == 1 else set()
    several = {room.processes // tensor, nodes * room.processes // tensor}
    return several | {1} if tensor == 1 else several - {1}


def unshared(run: Run, rooms: Iterable[Room], sizes: Sequence[int] = (1,)) -> tuple[int, int, int] | None:
    """Return batch, ranks of a node and the nearest batch, where no number of nodes can share it; else None."""
    batch, ranks = run.layout.step_tokens // run.layout.length, sorted({room.processes for room in rooms})
    layouts = ((each, nodes, tensor) for each, nodes, tensor in product(ranks, NODES, sizes) if each % tensor == 0)
    if not ranks or any(batch % (each * nodes // tensor) == 0 for each, nodes, tensor in layouts):
        return None
    return batch, ranks[0], max(1, round(batch / ranks[0])) * ranks[0]


def _fastest(run: Run, machines: Iterable[tuple[Instance, Room]], sizes: Iterable[int]) -> Iterator[Plan]:
    """Yield the fastest layout that fits, for each machine and number of nodes."""
    needed = cache(memory.of_layout)  # machines with the same cards need the same
    for (instance, room), nodes in product(machines, NODES):
        plans = []
        for tensor, micro in product(sizes, MICRO):
            for shard in sorted(shards(run, room, nodes, tensor)):
                with suppress(ValueError):  # the ranks cannot share the batch
                    other = on_instance(run, instance, nodes, room, micro=micro, tensor=tensor, shard=shard)
                    layouts = (replace(other.layout, recompute=recompute) for recompute in RECOMPUTE)
                    # What fits with less computed again is faster.
                    fits = next((one for one in layouts if needed(run.shape, one, room).fits), None)
                    plans += [Plan(replace(other, layout=fits))] if fits else []
        plans = [plan for plan in plans if plan.step_s]
        if plans:
            yield min(plans, key=lambda plan: plan.step_s or 0.0)


def saving(plan: Plan) -> Plan:
    """Return the plan with its best interval between checkpoints, an hour where failures are unknown."""
    every = round((plan.best_interval_s or UNKNOWN_INTERVAL_S) / (plan.step_s or 1.0))
    return Plan(replace(plan.run, save_every=min(max(1, every), plan.run.steps)))


def expected(plan: Plan) -> float:
    """Return the hours to the last step."""
    return plan.hours[0] if plan.hours else float("inf")
