"""Searches hardware, nodes, sharding, checkpointing and micro batch for runs that fit: time against cost."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

from tools.facts.instances import Instance
from tools.plan.memory import Room
from tools.plan.outlook import Plan, Run, on_instance

NODES = (1, 2, 4, 8, 16, 32, 64, 128)
MICRO = (1, 2, 4, 8, 16)
UNKNOWN_INTERVAL_S = 3600.0
RECOMPUTE = ("none", "selective", "full")


def front(run: Run, machines: Iterable[tuple[Instance, Room]]) -> list[Plan]:
    """Return the plans that no other beats in both time and cost, the fastest first.

    A plan costs what it costs on demand, else in its cheapest known offer.
    """
    plans = [plan for plan in map(saving, _fastest(run, machines)) if plan.cheapest is not None]
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (expected(plan), plan.cheapest or 0.0)):
        if not best or (plan.cheapest or 0.0) < (best[-1].cheapest or 0.0):
            best.append(plan)
    return best


def shards(run: Run, room: Room, nodes: int) -> set[int]:
    """Return how many ranks may share the states: all of them, those of a node, none. BERT is data parallel."""
    return {1, room.processes, nodes * room.processes} if run.shape.causal else {1}


def _fastest(run: Run, machines: Iterable[tuple[Instance, Room]]) -> Iterator[Plan]:
    """Yield the fastest layout that fits, for each machine and number of nodes."""
    for (instance, room), nodes in product(machines, NODES):
        plans = []
        for micro, recompute, shard in product(MICRO, RECOMPUTE, sorted(shards(run, room, nodes))):
            with suppress(ValueError):  # the ranks cannot share the batch
                other = on_instance(run, instance, nodes, room, micro=micro, recompute=recompute, shard=shard)
                plan = Plan(other)
                plans += [plan] if plan.memory.fits and plan.step_s else []
        if plans:
            yield min(plans, key=lambda plan: plan.step_s or 0.0)


def saving(plan: Plan) -> Plan:
    """Return the plan with its best interval between checkpoints, an hour where failures are unknown."""
    every = round((plan.best_interval_s or UNKNOWN_INTERVAL_S) / (plan.step_s or 1.0))
    return Plan(replace(plan.run, save_every=min(max(1, every), plan.run.steps)))


def expected(plan: Plan) -> float:
    """Return the hours to the last step."""
    return plan.hours[0] if plan.hours else float("inf")
