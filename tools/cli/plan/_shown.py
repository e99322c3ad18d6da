"""A plan in words."""

from collections.abc import Callable, Iterator

from tools.cells.memory import where
from tools.core import output
from tools.plan.layout import FITTED, nodes_of, source_of
from tools.plan.memory import CARDS, GIB
from tools.plan.outlook import OFFERS, Place, Plan

HEADS = ("machines", "GPUs", "memory a process", "$/h", "tokens", "time", "$")
MEMORY = "what the trainer keeps (training/trainer/parallelize.py); docs/planning.md shows it beside measured peaks"


def row(plan: Plan | Place) -> tuple[str, ...]:
    """Return the cells of a plan below HEADS. Money is that of its offer: on demand, else the cheapest known."""
    place, known = plan.place, plan if isinstance(plan, Plan) else None
    offer = known.offer if known else None
    price = place.prices[offer or "on demand"]
    cost = known.costs[offer] if known and offer else None
    return (
        where(place),
        f"{place.gpus:,}" if place.room.what in CARDS else "none",
        _memory(plan),
        "unknown" if price is None else f"{dollars(price)}{f' {offer}' if offer not in (None, 'on demand') else ''}",
        f"{known.run.steps * known.run.layout.step_tokens:,}" if known else "unknown",
        between(known.hours, duration) if known and known.hours else "unknown",
        between(cost, dollars) if cost else "unknown",
    )


def _machines(place: Place) -> str:
    """Return the machines, with what the pods take of them."""
    room, there = place.room, place.instance.processes if place.instance else 0
    part = f", {room.processes} of the {there} of each" if room.nbytes and room.processes < there else ""
    return (
        f"{where(place)}, {output.count(place.gpus, room.what, 'processes' if room.what == 'process' else None)}{part}"
    )


def _memory(plan: Plan | Place, each: str = "") -> str:
    place, need = plan.place, plan.memory if isinstance(plan, Plan) else None
    there = f"{place.room.nbytes / GIB:.1f}" if place.room.nbytes else "unknown"
    needed = f"{need.needed / GIB:.1f}" if need else "unknown"
    return f"{needed} of {there} GiB{each}{'' if need is None or need.fits else ', does not fit'}"


def whole(plan: Plan | Place, explain: bool) -> None:
    """Print everything that is known."""
    place = plan.place
    *_, tokens, time, _ = row(plan)
    memory = _memory(plan, f" a {place.room.what}")
    output.line(place.name)
    rows = [("machines", _machines(place))]
    if isinstance(plan, Place):
        rows += [("memory", memory), ("time", plan.why_unknown), *_prices(place)]
        output.table([*rows, ("network", place.network)])
        return
    fits = ", fits" if plan.memory.fits and place.room.nbytes else ""
    if plan.run.shrunk:
        fits += f", at its fewest: {output.count(nodes_of(plan.run.shrunk), 'node')}"
    rows += [("memory", f"{memory}{fits}"), ("tokens", f"{tokens} in {plan.run.steps:,} steps")]
    if plan.step_s and plan.tokens_per_s:
        mfu = f", MFU {plan.mfu:.1%}" if plan.mfu else ""
        each = f"{plan.tokens_per_s / place.gpus:,.0f} a {place.room.what}"
        rows.append(("step", f"{plan.step_s:.3g} s: {plan.tokens_per_s:,.0f} tokens/s, {each}{mfu}"))
    rows += [("time", plan.why_unknown or time), *_prices(place)]
    rows += [(f"cost, {kind}", between(cost, dollars) if cost else "unknown") for kind, cost in plan.costs.items()]
    need = f"; {plan.network_needed * 8e-9:,.0f} Gbit/s are needed to hide the exchange" if plan.network_needed else ""
    output.table([*rows, *_checkpoints(plan), ("network", place.network + need)])
    if explain:
        _explain(plan)


def _prices(place: Place) -> Iterator[tuple[str, str]]:
    for kind, price in place.prices.items():
        if price is not None:
            yield f"price, {kind}", f"{dollars(price)} an hour ({OFFERS[kind]['date']})"
        elif kind == "on demand":
            yield f"price, {kind}", "unknown"
    if any(place.prices.values()) and _shares(place):
        yield "priced as", f"{output.count(place.nodes, 'whole machine')}; pods that ask for a part of one may share it"


def _shares(place: Place) -> bool:
    """Return whether a pod leaves devices of its machine to others, or takes parts of them."""
    there = place.instance.processes if place.instance and place.instance.accelerators else 0
    return bool(there) and (place.room.processes < there or not place.room.nbytes)


def _checkpoints(plan: Plan) -> list[tuple[str, str]]:
    mean, best, run = plan.between_failures_s, plan.best_interval_s, plan.run
    stall = f"a save stops training for {plan.stall_s:,.{0 if plan.stall_s >= 1 else 1}f} s"
    every = output.count(run.save_every, "step")
    rows = [("checkpoints", f"{output.size(plan.checkpoint_bytes)} every {every}, {stall}")]
    rows.append(("storage", f"{output.size(plan.stored_bytes)} for {run.kept} kept and one that is being written"))
    rows.append(("interruptions", f"one in {duration(mean / 3600)}" if mean else "unknown for this card"))
    if best and plan.step_s:
        steps = max(1, round(best / plan.step_s))
        told = output.count(steps, "step") if steps < run.steps else "longer than the run"
        rows.append(("best interval", f"{duration(best / 3600)}, {told} (Daly 2006)"))
    rows.append(("ETTR", f"training takes {plan.ettr:.1%} of the time" if plan.ettr else "unknown"))
    return rows


def _explain(plan: Plan) -> None:
    output.line("memory of a process:")
    output.table([(f"{one.nbytes / GIB:.2f} GiB", one.name, one.how) for one in plan.memory.terms])
    if plan.memory.left_out:
        output.line("memory at other moments of a step, when less is held:")
        output.table([(f"{one.nbytes / GIB:.2f} GiB", one.name, one.how) for one in plan.memory.left_out])
    steps = [one for one in plan.steps if one.seconds]
    if steps:
        output.line("time of a step:")
        output.table([(f"{one.seconds:.4f} s", one.name, one.how, ", ".join(one.constants)) for one in steps])
        output.line("constants:")
        names = dict.fromkeys(name for one in steps for name in one.constants)
        output.table([(name, f"{FITTED[name]:.3g}", source_of(name)) for name in names])
    output.line("sources:")
    card = plan.run.machine.card if plan.run.machine else None
    rows = [("memory", MEMORY), *([("card", card.source)] if card else [])]
    rows += [(kind, f"{OFFERS[kind]['source']} ({OFFERS[kind]['date']})") for kind in plan.place.prices]
    saved = "host" if plan.run.beside else "storage"
    rows += [(name, OFFERS[key]["source"]) for name, key in (("saves", saved), ("restart", "restart_s"))]
    rates = OFFERS["interruptions_per_gpu_hour"]
    rows += [("interruptions", rates[name]["source"]) for name in rates if card and card.name.startswith(name)]
    output.table(rows)


def between(values: tuple[float, float, float], form: Callable[[float, float], str]) -> str:
    """Return an expected value with its range, all in the unit of the expected one."""
    expected, low, high = (form(one, values[0]) for one in values)
    return f"{expected} ({low} to {high})"


def duration(hours: float, expected: float | None = None) -> str:
    """Return hours in the unit that people use for them, or for what was expected."""
    scale = hours if expected is None else expected
    if scale >= 48:
        return f"{hours / 24:,.1f} days"
    if scale >= 1:
        return f"{hours:,.1f} h"
    return f"{hours * 60:,.1f} min" if scale >= 1 / 60 else f"{hours * 3600:,.2g} s"


def dollars(value: float, expected: float | None = None) -> str:
    """Return USD, without cents from 100 on."""
    return f"${value:,.0f}" if (value if expected is None else expected) >= 100 else f"${value:,.2f}"
