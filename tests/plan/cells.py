"""Step times of our own CPU cells beside their plans: `python -m tests.plan.cells`, on an idle machine.

Each cell runs here for some steps, in turns, and measures the peak of its processors. Its fastest run is then planned
with the largest peak of all runs and with the constant that explains the other cells.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.cells import knobs, outlook
from tools.cells.knobs import Knobs
from tools.cli.plan.calibrate import FIRST, peak_of
from tools.core import repo
from tools.job.metrics import sources
from tools.plan import calibrate, speed
from tools.plan.layout import FITTED
from tools.plan.outlook import Plan
from training.run.directory import RunDir

NAME, STEPS, ROUNDS = "measured", 40, 3
# The adapted cell trains the weights of the first.
CELLS: dict[str, tuple[str, ...]] = {
    "cpu/llama-tiny": (),
    "cpu/bert-tiny": (),
    "cpu/llama-tiny-lora": (f"model.weights=run:cpu-llama-tiny-train-{NAME}",),
}


@dataclass(frozen=True)
class Round:
    """One run of a cell: its plan, the median time of its steps, and the peak FLOP/s that it measured for a rank."""

    plan: Plan
    step_s: float
    peak: float


@dataclass(frozen=True)
class Measured:
    """A cell's plan on the peak of this machine, its step, and the constant with which both are equal."""

    cell: str
    plan: Plan
    step_s: float
    constant: float

    def planned(self, constant: float) -> float:
        run = self.plan.run
        assert run.machine is not None
        return speed.Clock(run.shape, run.layout, run.machine, {**FITTED, "matmul CPU": constant}).seconds()


def measure(cell: str, settings: tuple[str, ...]) -> Round:
    """Run a cell on this machine."""
    sized = (
        "train.warmup_steps=2",
        f"train.steps={STEPS}",
        f"train.eval_every={STEPS}",
        f"checkpoint.every={STEPS}",
        *settings,
    )
    changes = Knobs(settings=sized, name=NAME)
    command = [str(Path(sys.executable).with_name("yard")), "run", cell, "--fresh", *changes.arguments()]
    subprocess.run(command, check=True, cwd=repo.root(), stdout=sys.stderr)
    plan = outlook.of(knobs.rendered(cell, None, changes))
    assert isinstance(plan, Plan)
    records = sources.of_run(cell, RunDir(repo.local() / "runs" / plan.run.name)).records[FIRST:]
    return Round(plan, statistics.median(one.step_s or 0.0 for one in records), peak_of(records, plan))


def best(cell: str, rounds: list[Round], peak: float) -> Measured:
    """Return the fastest of a cell's runs, planned on the largest peak: other work makes both worse, and not alike."""
    fastest = min(rounds, key=lambda one: one.step_s)
    plan = calibrate.on_cpu(fastest.plan, peak)
    return Measured(cell, plan, fastest.step_s, calibrate.fitted(plan, fastest.step_s)["matmul CPU"])


def main() -> None:
    """Print the table."""
    turns = [(cell, measure(cell, settings)) for _ in range(ROUNDS) for cell, settings in CELLS.items()]
    for cell, turn in turns:
        print(f"{cell}: {turn.step_s:.3f} s a step, {turn.peak / 1e9:.0f} GFLOP/s", file=sys.stderr)
    peak = max(turn.peak for _, turn in turns)
    found = [best(cell, [turn for name, turn in turns if name == cell], peak) for cell in CELLS]
    print(f"peak of a rank: {peak / 1e9:.0f} GFLOP/s, the largest of {len(turns)} runs\n")
    print("| cell | measured | planned | error | constant |\n|---|--:|--:|--:|--:|")
    for one in found:
        others = [other.constant for other in found if other is not one]
        planned = one.planned(math.exp(statistics.mean(map(math.log, others))))
        error = planned / one.step_s - 1
        print(f"| {one.cell} | {one.step_s:.3f} s | {planned:.3f} s | {error:+.1%} | {one.constant:.2f} |")


if __name__ == "__main__":
    main()
