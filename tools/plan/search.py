"""Searches hardware, nodes, sharding, checkpointing and micro batch for runs that fit: time against cost."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from tools.facts.instances import Instance
from tools.plan.memory import Room
from tools.plan.outlook import Plan, Run, on_instance

NODES = (1, 2, 4, 8, 16, 32, 64, 128)
MICRO = (1, 2, 4, 8, 16)
UNKNOWN_INTERVAL_S = 3600.0
RECOMPUTE = ("none", "selective", "full")


def front(run: Run, machines: Iterable[tuple[Instance, Room]], budget: float | None, hours: float | None) -> list[Plan]:
    """Return the plans that no other beats in both time and cost, the fastest first.

    A plan costs what it costs on demand, else in its cheapest known offer. `budget` is in USD, `hours` is the deadline.
    """
    found = [
        plan for plan in _all(run, machines)
        if (budget is None or _cost(plan) <= budget) and (hours is None or _hours(plan) <= hours)
    ]  # fmt: skip
    best: list[Plan] = []
    for plan in sorted(found, key=lambda plan: (_hours(plan), _cost(plan))):
        if not best or _cost(plan) < _cost(best[-1]):
            best.append(plan)
    return best


def _all(run: Run, machines: Iterable[tuple[Instance, Room]]) -> Iterator[Plan]:
    """Yield the fastest layout that fits, for each machine and number of nodes."""
    replicas = run.shape.causal is False  # BERT is data parallel everywhere
    for (instance, room), nodes in product(machines, NODES):
        plans = []
        for micro, recompute, shard in product(MICRO, RECOMPUTE, (1,) if replicas else (0, 1)):
            try:
                kept = {"shard": 1} if shard else {}
                other = on_instance(run, instance, nodes, room, micro=micro, recompute=recompute, **kept)
            except ValueError:  # the ranks cannot share the batch
                continue
            plan = _saving(Plan(other))
            if plan.memory.fits and plan.hours and plan.cheapest is not None:
                plans.append(plan)
        if plans:
            yield min(plans, key=_hours)


def _saving(plan: Plan) -> Plan:
    """Return the plan with its best interval between checkpoints, an hour where failures are unknown."""
    if not plan.step_s:
        return plan
    every = round((plan.best_interval_s or UNKNOWN_INTERVAL_S) / plan.step_s)
    return Plan(replace(plan.run, save_every=min(max(1, every), plan.run.steps)))


def _hours(plan: Plan) -> float:
    return plan.hours[0] if plan.hours else float("inf")


def _cost(plan: Plan) -> float:
    return plan.cheapest if plan.cheapest is not None else float("inf")
