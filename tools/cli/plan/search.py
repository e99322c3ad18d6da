"""Search hardware, nodes, sharding, checkpointing and micro batch for a model: time against cost."""

import re

from tools.cells import matrix
from tools.cells.memory import room_on, smallest
from tools.cli.plan import _shown
from tools.core import UserError, output, repo
from tools.facts.instances import INSTANCES, Instance
from tools.plan.layout import Machine
from tools.plan.outlook import Plan, Run
from tools.plan.search import front

HOURS = {"h": 1, "d": 24, "w": 168}


def command(model: str, budget: float | None, deadline: str | None, gpus: str | None, as_json: bool) -> int:
    root = repo.root()
    found = matrix.read(root)
    if model not in found.models:
        raise UserError(f"no such model: {model}", repo.did_you_mean(model, found.models) or "yard matrix memory --all")
    machines = _machines(gpus)
    hardware = next((one for one in found.machines if found.machines[one] in machines), "p5")
    cell = smallest(root, found, hardware, model)
    config = matrix.configuration(root, cell)
    base = Run.of(model, config, cell.nodes, room_on(cell.instance or machines[0]), cell.instance or machines[0])
    plans = front(base, [(one, room_on(one)) for one in machines], budget, _hours(deadline))
    if as_json:
        output.data([_as_dict(plan) for plan in plans])
    elif not plans:
        output.line("nothing fits: more nodes than 128 are not tried; a machine without a known price is not counted")
    else:
        output.table([("machines", "micro", "sharding", "activations", "time", "cost"), *map(_row, plans)], indent="")
        output.line("the first as a cell of overlays/matrix.yaml:")
        output.block(_cell(plans[0], model))
    return 0 if plans else 1


def _machines(gpus: str | None) -> list[Instance]:
    """Return the machines with a card that the planner knows, of the families that are wanted."""
    known = [one for one in INSTANCES.values() if one.accelerators and Machine.of(one)]
    if gpus is None:
        return known
    wanted = [name.strip() for name in gpus.split(",")]
    for name in wanted:
        if not any(name in (one.name, one.name.partition(".")[0]) for one in known):
            families = sorted({one.name.partition(".")[0] for one in known})
            raise UserError(f"--gpus {name}: not a machine whose card is known", f"known: {', '.join(families)}")
    return [one for one in known if one.name in wanted or one.name.partition(".")[0] in wanted]


def _hours(deadline: str | None) -> float | None:
    if deadline is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([hdw])", deadline)
    if not match:
        raise UserError(f"--deadline {deadline[:40]!r}: not a number with h, d or w", "--deadline 7d")
    return float(match[1]) * HOURS[match[2]]


def _row(plan: Plan) -> tuple[str, ...]:
    layout, offer = plan.run.layout, plan.offer
    assert plan.run.instance
    assert plan.hours
    assert offer
    sharding = "ddp" if layout.shard == 1 else "fsdp"
    cost = _shown.between(plan.costs[offer] or (0, 0, 0), _shown.dollars)
    return (
        f"{plan.run.nodes} x {plan.run.instance.name}", str(layout.micro), sharding, layout.recompute,
        _shown.between(plan.hours, _shown.duration), f"{cost} {offer}",
    )  # fmt: skip


def _as_dict(plan: Plan) -> dict[str, object]:
    layout = plan.run.layout
    chosen = {"micro_batch_size": layout.micro, "sharding": "ddp" if layout.shard == 1 else "fsdp"}
    return {**plan.as_dict(), "parallel": {**chosen, "activation_checkpointing": layout.recompute}}


def _cell(plan: Plan, model: str) -> str:
    layout, instance = plan.run.layout, plan.run.instance
    assert instance
    lines = (
        f"    {model}:", f"      nodes: {plan.run.nodes}", f"      instance: {instance.name}", "      parallel:",
        f"        micro_batch_size: {layout.micro}", f"        sharding: {'ddp' if layout.shard == 1 else 'fsdp'}",
        f"        activation_checkpointing: {layout.recompute}", "      checkpoint:",
        f"        every: {plan.run.save_every}",
    )  # fmt: skip
    return "\n".join((f"  {instance.name.partition('.')[0]}:", *lines))
