"""Fit the efficiency of a card to a run's measured steps, and keep it as a fact with its source."""

import math
import statistics
from dataclasses import asdict
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
from tools.plan.layout import Layout, Shape
from tools.plan.memory import CARDS
from tools.plan.outlook import Place, Plan
from training.config import Config, ConfigError
from training.run.directory import RunDir, read_json

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
    _check_same(source, plan)
    run = sources.read(kubectl, source)
    measured = [one for one in run.records[FIRST:] if _seconds(one, plan, each)]
    if len(measured) < FIRST:
        raise UserError(
            f"{run.name}: {len(measured)} timed steps after the first {FIRST}, which is too few",
            "a step is timed by its seconds, by tokens/s or samples/s, or by the progress bar of transformers",
        )
    step_s = statistics.median(_seconds(one, plan, each) or 0.0 for one in measured)
    before = plan.step_s
    if plan.run.room.what not in CARDS:
        plan = calibrate.on_cpu(plan, peak_of(measured, plan))
    constants = calibrate.fitted(plan, step_s)
    told = f"planned {before:.3g} s before" if before else "unknown before"
    shares = ", ".join(f"{name}: {value}" for name, value in constants.items())
    output.line(f"{shares} ({output.count(len(measured), 'step')} of {step_s:.3g} s, {told})")
    if dry_run:
        return
    if not repo.is_checkout():
        raise UserError(f"{PATH} belongs to a checkout, and this is an installed package", "--dry-run prints it")
    text = f"{run.name}, {len(measured)} steps, {datetime.now(UTC):%Y-%m-%d}"
    calibrate.keep(repo.root() / PATH, plan, constants, text)
    output.line(f"written: {PATH}")


def _check_same(source: str, plan: Plan) -> None:
    """Raise UserError where a run directory says that its run had another model or layout than the plan."""
    layout = plan.run.layout
    try:
        recorded = read_json(RunDir(sources.here(source) or source).run)
        config = Config.model_validate(recorded["config"])
        run = Layout.of(config, recorded["world_size"] // layout.per_node, layout.per_node)
    except (OSError, KeyError, TypeError, ValueError, ConfigError):  # no run directory, or of another release
        return
    was, planned = ({**asdict(one), **asdict(two)} for one, two in ((Shape.of(config), run), (plan.run.shape, layout)))
    other = [f"{key} {value} (planned: {planned[key]})" for key, value in was.items() if planned[key] != value]
    if other:
        message = f"{source}: its run is not the planned one: {', '.join(other[:3])}"
        raise UserError(message, "give the cell, --nodes and --set of the run")


def _seconds(record: Record, plan: Plan, each: bool) -> float | None:
    """Return a step's time: as logged, or from the tokens or samples a second of all devices or of each."""
    layout = plan.run.layout
    samples = record.samples_per_s and record.samples_per_s * layout.length
    rate = record.tokens_per_s or samples or 0.0
    found = record.step_s or (rate and layout.step_tokens / rate / (layout.gpus if each else 1))
    return found if 0 < found < math.inf else None


def peak_of(records: list[Record], plan: Plan) -> float:
    """Return the peak FLOP/s of a rank that the run measured."""
    peaks = [one.tokens_per_s * plan.flops_per_token / one.mfu for one in records if one.tokens_per_s and one.mfu]
    if not peaks:
        raise UserError("the run has no MFU, so the peak of its CPU is unknown")
    return statistics.median(peaks) / plan.run.layout.gpus
