"""A plan in words."""

from collections.abc import Sequence

from tools.core import output
from tools.plan.memory import CARDS, GIB
from tools.plan.outlook import OFFERS, Plan

HEADS = ("machines", "GPUs", "memory a process", "$/h", "tokens", "time", "$")


def row(plan: Plan) -> tuple[str, ...]:
    """Return the cells of a plan below HEADS. Money is that of its offer: on demand, else the cheapest known."""
    run, need, offer = plan.run, plan.memory, plan.offer
    cost, price = (plan.costs[offer], plan.prices[offer]) if offer else (None, plan.prices["on demand"])
    there = f"{need.room.nbytes / GIB:.1f}" if need.room.nbytes else "unknown"
    kind = f" {offer}" if offer and offer != "on demand" else ""
    return (
        f"{run.nodes} x {run.instance.name if run.instance else 'pod'}",
        f"{run.layout.gpus:,}" if need.room.what in CARDS else "none",
        f"{need.needed / GIB:.1f} of {there} GiB{'' if need.fits else ', does not fit'}",
        "unknown" if price is None else f"{dollars(price)}{kind}",
        f"{run.steps * run.layout.step_tokens:,}",
        between(plan.hours, duration) if plan.hours else "unknown",
        between(cost, dollars) if cost else "unknown",
    )


def whole(plan: Plan, explain: bool) -> None:
    """Print everything that the plan knows."""
    run = plan.run
    output.line(run.name)
    machines, gpus, memory, _, tokens, time, _ = row(plan)
    rows = [
        ("machines", f"{machines}, {output.count(run.layout.gpus, 'process', 'processes')}"),
        ("memory", f"{memory} a process{', fits' if plan.memory.fits and plan.memory.room.nbytes else ''}"),
        ("tokens", f"{tokens} in {run.steps:,} steps"),
    ]
    if plan.step_s and plan.tokens_per_s:
        rate = plan.tokens_per_s
        mfu = f", MFU {plan.mfu:.1%}" if plan.mfu else ""
        each = f"{rate / run.layout.gpus:,.0f} a {'GPU' if gpus != 'none' else 'process'}"
        rows.append(("step", f"{plan.step_s:.3g} s: {rate:,.0f} tokens/s, {each}{mfu}"))
    rows.append(("time", plan.why_unknown or time))
    rows += [(f"price, {kind}", f"{dollars(price)} an hour") for kind, price in plan.prices.items() if price]
    rows += [(f"cost, {kind}", between(cost, dollars) if cost else "unknown") for kind, cost in plan.costs.items()]
    output.table([*rows, *_checkpoints(plan), ("network", plan.network)])
    if explain:
        _explain(plan)


def _checkpoints(plan: Plan) -> Sequence[tuple[str, str]]:
    mean, best = plan.between_failures_s, plan.best_interval_s
    saves = f"{plan.checkpoint_bytes / GIB:,.1f} GiB every {plan.run.save_every:,} steps, {plan.stall_s:,.0f} s a save"
    rows = [("checkpoints", saves)]
    rows.append(("interruptions", f"one in {duration(mean / 3600)}" if mean else "unknown for this card"))
    if best and plan.step_s:
        rows.append(
            ("best interval", f"{duration(best / 3600)}, {max(1, round(best / plan.step_s)):,} steps (Daly 2006)")
        )
    rows.append(("ETTR", f"{plan.ettr:.1%} of the time trains" if plan.ettr else "unknown"))
    return rows


def _explain(plan: Plan) -> None:
    output.line("memory of a process:")
    output.table([(f"{one.nbytes / GIB:.2f} GiB", one.name, one.how) for one in plan.memory.terms])
    output.line("time of a step:")
    output.table([(f"{one.seconds:.4f} s", one.name, one.how) for one in plan.steps if one.seconds])
    output.line("sources:")
    card = plan.run.machine.card if plan.run.machine else None
    rows = [("card", card.source)] if card else []
    rows.append(("constants", "fitted to tools/facts/runs.yaml; docs/planning.md shows the error of each source"))
    rows += [(kind, f"{OFFERS[kind]['source']} ({OFFERS[kind]['date']})") for kind in ("spot", "capacity block")]
    rows += [(name, OFFERS[key]["source"]) for name, key in (("storage", "storage"), ("restart", "restart_s"))]
    rates = OFFERS["interruptions_per_gpu_hour"]
    rows += [("interruptions", rates[name]["source"]) for name in rates if card and card.name.startswith(name)]
    output.table(rows)


def between(values: tuple[float, float, float], form: "type[str] | object") -> str:
    """Return an expected value with its range."""
    expected, low, high = (form(value) for value in values)  # type: ignore[operator]
    return f"{expected} ({low} to {high})"


def duration(hours: float) -> str:
    """Return hours in the unit that people use."""
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:,.1f} min"


def dollars(value: float) -> str:
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}"
