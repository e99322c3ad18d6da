"""Fit the efficiency of a card to a run's measured steps, and keep it as a fact with its source."""

import statistics
from datetime import UTC, datetime

from tools.cells import knobs as cells_knobs
from tools.cells import outlook
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.cli.job import _options
from tools.core import UserError, output, repo
from tools.job.metrics import sources
from tools.job.metrics.series import Record
from tools.kube.kubectl import Kubectl
from tools.plan import calibrate
from tools.plan.outlook import Place, Plan

FIRST = 5  # steps that compile and fill caches
PATH = "tools/facts/calibrated.yaml"


@_knobs.knobs
@_options.cluster
def command(
    kubectl: Kubectl, source: str, cell: str | None, file: str | None, knobs: Knobs, each: bool, dry_run: bool
) -> None:
    plan = outlook.of(cells_knobs.rendered(cell, file, knobs))
    if isinstance(plan, Place):
        raise UserError(f"{plan.name}: what a step computes is {plan.why_unknown}", code=3)
    run = sources.read(kubectl, source)
    measured = [one for one in run.records[FIRST:] if _seconds(one, plan, each)]
    if len(measured) < FIRST:
        raise UserError(f"{run.name}: {len(measured)} timed steps after the first {FIRST}, which is too few")
    step_s = statistics.median(_seconds(one, plan, each) or 0.0 for one in measured)
    if plan.run.machine is None and plan.run.instance is None:
        plan = calibrate.on_cpu(plan, peak_of(measured, plan))
    before = plan.step_s
    name, value = calibrate.fitted(plan, step_s)
    told = f"planned {before:.3g} s before" if before else "unknown before"
    output.line(f"{name}: {value} ({output.count(len(measured), 'step')} of {step_s:.3g} s, {told})")
    if dry_run:
        return
    if not repo.is_checkout():
        raise UserError(f"{PATH} belongs to a checkout, and this is an installed package", "--dry-run prints it")
    text = f"{run.name}, {len(measured)} steps, {datetime.now(UTC):%Y-%m-%d}"
    calibrate.keep(repo.root() / PATH, plan, name, value, text)
    output.line(f"written: {PATH}")


def _seconds(record: Record, plan: Plan, each: bool) -> float | None:
    """Return a step's time: as logged, or from the tokens a second of all devices or of each."""
    if record.step_s or not record.tokens_per_s:
        return record.step_s
    layout = plan.run.layout
    return layout.step_tokens / record.tokens_per_s / (layout.gpus if each else 1)


def peak_of(records: list[Record], plan: Plan) -> float:
    """Return the peak FLOP/s of a rank that the run measured."""
    peaks = [one.tokens_per_s * plan.flops_per_token / one.mfu for one in records if one.tokens_per_s and one.mfu]
    if not peaks:
        raise UserError("the run has no MFU, so the peak of its CPU is unknown")
    return statistics.median(peaks) / plan.run.layout.gpus
