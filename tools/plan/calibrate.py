"""Fits the efficiency of a card to measured runs, and keeps it as a fact with its source."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.core.errors import UserError
from tools.plan import speed
from tools.plan.layout import CALIBRATED, FITTED, Card, Machine
from tools.plan.outlook import Plan

HEAD = "# Written by `yard plan calibrate`: constants of cards from runs of your own. They replace cards.yaml's.\n"
LOWEST, HIGHEST = 0.02, 1.0  # shares of a peak that a run can reach
CPU = {"bandwidth": 2.0e10, "link": 5.0e9}  # bytes/s of a core group's memory and between processes: assumptions


def fitted(plan: Plan, step_s: float) -> tuple[str, float]:
    """Return the constant of the plan's card with which its step takes `step_s`. Raises UserError."""
    run = plan.run
    if run.machine is None:
        raise UserError("the card is not in tools/facts/cards.yaml: add its peak, bandwidth and link there first")
    shape, layout, machine = run.shape, run.layout, run.machine
    name = f"matmul {machine.card.efficiency}"
    ratio = {key: FITTED[key] / FITTED[name] for key in speed.used(layout, machine) & FITTED.keys() if name in FITTED}

    def seconds(share: float) -> float:
        tied = {key: share * part for key, part in ratio.items() if key.endswith(machine.card.efficiency)}
        return speed.seconds(shape, layout, machine, {**FITTED, **tied, name: share})

    low, high = LOWEST, HIGHEST
    if not seconds(high) <= step_s <= seconds(low):
        raise UserError(
            f"a step of {step_s:.3g} s cannot be explained by the card: planned {seconds(high):.3g} s at its full peak",
            "check that the cell and its options are those of the run",
        )
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) > step_s else (low, middle)
    return name, round(low, 4)


def on_cpu(plan: Plan, peak: float) -> Plan:
    """Return the plan on processes of a CPU with this measured peak each."""
    card = Card("CPU", peak, None, CPU["bandwidth"], CPU["link"], "CPU", "measured by the trainer")
    return Plan(replace(plan.run, machine=Machine(card, CPU["link"], "TCP")))


def keep(path: Path, plan: Plan, name: str, value: float, source: str) -> None:
    """Write the constant, and a CPU's card, into the file of calibrated facts."""
    card = plan.run.machine.card if plan.run.machine else None
    facts: dict[str, Any] = {key: dict(CALIBRATED[key]) for key in ("cards", "fitted", "sources")}
    facts["fitted"][name] = value
    facts["sources"][name] = source
    if card is not None and card.name == "CPU":
        row = {key: getattr(card, key) for key in ("peak", "peak_fp8", "bandwidth", "link", "efficiency")}
        facts["cards"]["CPU"] = {**row, "source": source}
    path.write_text(HEAD + yaml.safe_dump(facts, sort_keys=True), encoding="utf-8")
