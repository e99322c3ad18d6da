"""Search hardware, nodes, sharding, tensor ranks, checkpointing and micro batch for a model: time against cost."""

import json
import math
import re
import textwrap
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tools.cells import matrix, published
from tools.cells.matrix_file import text_of
from tools.cells.memory import room_on
from tools.cli.plan import _shown
from tools.core import UserError, output, repo
from tools.facts.instances import INSTANCES, Instance
from tools.new import model as new_model
from tools.plan.layout import Machine
from tools.plan.memory import Room
from tools.plan.outlook import UNKNOWN_CARD, WHAT_TO_DO, Place, Plan, Run
from tools.plan.search import expected, front, tensors, unshared
from training.config import Config, load_texts

HOURS = {"m": 1 / 60, "h": 1, "d": 24, "w": 168}
PART = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([mhdw])")

NO_PRICE = "of own hardware: price_usd_per_hour of its node in overlays/matrix.yaml"


def command(model: str, budget: float | None, deadline: str | None, gpus: str | None, as_json: bool) -> int:
    root = repo.root()
    found, hours, budget = matrix.read(root), _hours(deadline), math.inf if budget is None else budget
    machines = _machines(gpus, found)
    unpriced = [one.name for one in machines if not any(Place(one.name, one, 1, room_on(one)).prices.values())]
    if gpus is not None and len(unpriced) == len(machines):
        raise UserError(f"no price is known of {', '.join(unpriced)}", NO_PRICE)
    model = _name(model, found)
    config = _configuration(root, model, found.models)
    base = Run.of(model, config, 1, Room(1, 0, "GPU"), None)
    sizes = tensors(config)
    best = front(base, [(one, room_on(one)) for one in machines], sizes)
    plans = [plan for plan in best if (plan.cheapest or 0.0) <= budget and expected(plan) <= hours]
    if as_json:
        output.data([_as_dict(plan, model) for plan in plans])
    elif best and not plans:
        output.line("no plan is within the budget and the deadline: the fastest and the cheapest are")
        output.table([_shown.HEADS, *map(_shown.row, dict.fromkeys((best[0], best[-1])))], indent="", head=True)
    elif not plans and (odd := unshared(base, map(room_on, machines), sizes)):
        batch, ranks, near = odd
        said = f"train.global_batch_size is {batch}, which nodes of {ranks} ranks cannot share"
        output.line(f"{said}; nearest value: {near}")
    elif not plans:
        output.line("nothing fits: more nodes than 128 are not tried")
        if unpriced:
            output.line(f"not counted, because no price is known: {', '.join(unpriced)}")
    else:
        rows = [(*_shown.row(plan), *map(str, _parallel(plan).values())) for plan in plans]
        output.table([(*_shown.HEADS, "micro", "sharding", "tensor", "activations"), *rows], indent="", head=True)
        if model not in found.models:
            output.line(f"first: yard new model NAME --from {model}")
        output.line("the first as a cell of overlays/matrix.yaml:")
        output.block(_cell(plans[0], model))
    return 0 if plans else 1


def _name(model: str, found: matrix.Matrix) -> str:
    """Return the name of a model that its directory names. Raises UserError for a cell."""
    way, _, name = model.rstrip("/").rpartition("/")
    if f"{way.rpartition('/')[2]}/{name}" in {cell.name for cell in found.cells}:
        raise UserError(f"{model} is a cell", f"its model: {name}")
    return name if way.endswith("overlays/model") and name in found.models else model


def _configuration(root: Path, model: str, known: list[str]) -> Config:
    """Return the configuration of a model of overlays/, or of a config.json with the recipe for its size."""
    if model in known:
        path = root / "overlays/model" / model / "model.yaml"
        if not path.is_file():
            raise UserError(f"{model} is a script of your own: its model is not known")
        text = text_of(path, root)
    elif Path(model).exists() or "/" in model:
        text = new_model.make("model", published.read(model), lora=False).files["model.yaml"]
    else:
        raise UserError(
            f"no such model: {model}",
            repo.did_you_mean(model, known) or "a name of `yard matrix memory --all`, or a config.json",
        )
    cell = json.dumps({"parallel": {"micro_batch_size": 1}, "checkpoint": {"every": 1}})
    return load_texts({"model": (model, text), "hardware": ("", "device: {type: cuda}"), "cell": ("", cell)})


def _machines(gpus: str | None, found: matrix.Matrix) -> list[Instance]:
    """Return the machines whose card the planner knows: of the families, types and cards that are wanted, or all."""
    own = {name: one for name, one in found.machines.items() if one is not None and one.labels}
    every = {**{one.name: one for one in INSTANCES.values() if one.accelerators}, **own}
    known = {name: one for name, one in every.items() if Machine.of(one)}
    if gpus is None:
        return list(known.values())
    chosen: dict[str, Instance] = {}
    for word in (name.strip().lower() for name in gpus.split(",")):
        names = [name for name, one in every.items() if word in (name, name.partition(".")[0], _card(one))]
        if not names:
            words = sorted({name.partition(".")[0] for name in known} | {_card(one) for one in known.values()})
            what = f"--gpus {word or repr(word)}: not a family, a type or a card of a machine"
            raise UserError(what, f"known: {', '.join(words)}")
        if not known.keys() & names:
            raise UserError(f"--gpus {word}: {every[names[0]].accelerator} is {UNKNOWN_CARD}", WHAT_TO_DO)
        chosen |= {name: known[name] for name in names if name in known}
    return list(chosen.values())


def _card(machine: Instance) -> str:
    known = Machine.of(machine)
    return (known.card.name.partition("-")[0] if known else machine.accelerator or "").lower()


def _hours(deadline: str | None) -> float:
    if deadline is None:
        return math.inf
    parts = PART.findall(deadline)
    hours = sum(float(number) * HOURS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != deadline or not hours:
        raise UserError(f"--deadline {deadline[:40]!r}: not a time above 0 in m, h, d or w", "--deadline 7d or 1d12h")
    return hours


def _parallel(plan: Plan) -> dict[str, object]:
    """Return the section `parallel` of the plan's cell."""
    layout = plan.run.layout
    sharding = "ddp" if layout.shard == 1 else "fsdp" if layout.shard == layout.replicas else "hsdp"
    return {
        "micro_batch_size": layout.micro, "sharding": sharding, "tensor": layout.tensor,
        "activation_checkpointing": layout.recompute,
    }  # fmt: skip


def _as_dict(plan: Plan, model: str) -> dict[str, object]:
    return {**plan.as_dict(), "parallel": _parallel(plan), "cell": _cell(plan, model)}


def _cell(plan: Plan, model: str) -> str:
    """Return the lines of overlays/matrix.yaml below `cells`."""
    instance = plan.run.instance
    assert instance
    named = {} if instance.labels else {"instance": instance.name}
    parallel = {key: value for key, value in _parallel(plan).items() if (key, value) != ("tensor", 1)}
    cell = {"nodes": plan.run.nodes, **named, "parallel": parallel}
    name = model if re.fullmatch(r"[a-z0-9-]+", model) else "NAME"
    cells = {instance.name.partition(".")[0]: {name: {**cell, "checkpoint": {"every": plan.run.save_every}}}}
    return textwrap.indent(yaml.safe_dump(cells, sort_keys=False), "  ").rstrip()
