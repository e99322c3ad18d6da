"""Fits the efficiency of a card to measured runs, and keeps it as a fact with its source."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core.errors import UserError
from tools.plan import speed
from tools.plan.layout import CALIBRATED, CARDS, FITTED, Card, Machine
from tools.plan.outlook import Plan

HEAD = "# Written by `yard plan calibrate`: constants of cards from runs of your own. They replace cards.yaml's.\n"
LOWEST, HIGHEST = 0.02, 1.0  # shares of a peak that a run can reach
HIGHEST_ON_CPU = 1.25  # its peak is measured too, before the steps: other work may slow that minute only
# What attention reaches of the share of products: the median of the cards of which both are known.
USUAL = statistics.median(
    FITTED[f"flash2 {card}"] / FITTED[f"matmul {card}"] for card in {one.efficiency for one in CARDS.values()}
    if {f"flash2 {card}", f"matmul {card}"} <= FITTED.keys()
)  # fmt: skip
# Bytes/s at which weights are copied and updated: from the time of those kernels in cpu/llama-tiny by torch 2.15's
# profiler, on an AMD EPYC with two ranks of one core. Bytes/s between processes: gloo's all-reduce of two ranks there,
# 1.0 GB/s of its 4 to 34 MB, over the share of a link that a plan counts.
CPU = {"bandwidth": 9.5e9, "link": 2.6e9}


def fitted(plan: Plan, step_s: float) -> dict[str, float]:
    """Return the constants of the plan's card with which its step takes `step_s`: of products, then of attention.

    Attention's share changes with that of products. A card without one gets the usual proportion. Raises UserError.
    """
    run = plan.run
    if run.machine is None:
        raise UserError(plan.why_unknown.removeprefix("unknown: "))
    shape, layout, machine = run.shape, run.layout, run.machine
    own, first = f" {machine.card.efficiency}", f"matmul {machine.card.efficiency}"
    names = speed.used(layout, machine)
    lacking = sorted(name for name in names - FITTED.keys() if not name.endswith(own))
    if lacking:
        raise UserError(f"no formula was fitted for {', '.join(lacking)}", "calibrate on a run without it")
    kernels = sorted(name for name in names - {first} if name.endswith(own))
    shares = {name: FITTED[name] / FITTED[first] if {name, first} <= FITTED.keys() else USUAL for name in kernels}

    def constants(share: float) -> dict[str, float]:
        return {first: share} | {name: share * part for name, part in shares.items()}

    def seconds(share: float) -> float:
        return speed.Clock(shape, layout, machine, {**FITTED, **constants(share)}).seconds()

    low, high = LOWEST, HIGHEST_ON_CPU if machine.card.efficiency == "CPU" else HIGHEST
    if not seconds(high) <= step_s <= seconds(low):
        raise UserError(
            f"a step of {step_s:.3g} s cannot be explained by the card: planned {seconds(high):.3g} s at {high:.0%} of "
            "its peak",
            "check that the cell and its options are those of the run, and whose tokens/s the log has (--per-device)",
        )
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) > step_s else (low, middle)
    return {name: round(value, 4) for name, value in constants(low).items()}


def on_cpu(plan: Plan, peak: float) -> Plan:
    """Return the plan on processes of a CPU with this measured peak each."""
    card = Card("CPU", peak, None, CPU["bandwidth"], CPU["link"], "CPU", "measured by the trainer")
    return Plan(replace(plan.run, machine=Machine(card, CPU["link"], "TCP")))


def keep(path: Path, plan: Plan, constants: dict[str, float], source: str) -> None:
    """Write the constants, and a CPU's card, into the file of calibrated facts."""
    card = plan.run.machine.card if plan.run.machine else None
    facts: dict[str, Any] = {key: dict(CALIBRATED[key]) for key in ("cards", "fitted", "sources")}
    facts["fitted"] |= constants
    facts["sources"] |= dict.fromkeys(constants, source)
    if card is not None and card.name == "CPU":
        row = {key: getattr(card, key) for key in ("peak", "peak_fp8", "bandwidth", "link", "efficiency")}
        facts["cards"]["CPU"] = {**row, "source": source}
    path.write_text(HEAD + yaml.safe_dump(facts, sort_keys=True), encoding="utf-8")
