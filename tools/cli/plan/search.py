"""Search hardware, nodes, sharding, checkpointing and micro batch for a model: time against cost."""

import re
import textwrap

import yaml  # type: ignore[import-untyped]

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
        output.data([_as_dict(plan, model) for plan in plans])
    elif not plans:
        output.line("nothing fits: more nodes than 128 are not tried; a machine without a known price is not counted")
    else:
        rows = [(*_shown.row(plan), *map(str, _parallel(plan).values())) for plan in plans]
        output.table([(*_shown.HEADS, "micro", "sharding", "activations"), *rows], indent="")
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


def _parallel(plan: Plan) -> dict[str, object]:
    """Return the section `parallel` of the plan's cell."""
    layout = plan.run.layout
    sharding = "ddp" if layout.shard == 1 else "fsdp"
    return {"micro_batch_size": layout.micro, "sharding": sharding, "activation_checkpointing": layout.recompute}


def _as_dict(plan: Plan, model: str) -> dict[str, object]:
    return {**plan.as_dict(), "parallel": _parallel(plan), "cell": _cell(plan, model)}


def _cell(plan: Plan, model: str) -> str:
    """Return the lines of overlays/matrix.yaml below `cells`."""
    instance = plan.run.instance
    assert instance
    cell = {"nodes": plan.run.nodes, "instance": instance.name, "parallel": _parallel(plan)}
    cells = {instance.name.partition(".")[0]: {model: {**cell, "checkpoint": {"every": plan.run.save_every}}}}
    return textwrap.indent(yaml.safe_dump(cells, sort_keys=False), "  ").rstrip()
