"""Carry out a proof: start the runner, show its progress, read the records, judge them."""

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.core import UserError, Verdict, output
from tools.prove import claims, observed, trials
from tools.prove.observed import TABLE, Proof, Run
from tools.prove.trials import Options, Subject
from tools.simulator import launchers
from training.prove import plan as plans
from training.prove.plan import Plan

RUNNER = Path(plans.__file__).with_name("__main__.py")
EVERY = 10.0  # seconds between two lines about one start

STAND_IN = "with-stand-in"  # the records of a run that took no step on it


@dataclass(frozen=True)
class Result:
    """What a proof found: verdicts, figures, and what was not looked at."""

    verdicts: list[Verdict]
    figures: dict[str, Any]
    not_proven: list[str]
    versions: dict[str, str]


def prove(subject: Subject, options: Options, out: Path) -> Result:
    """Prove a subject. `out` is an empty directory for the records. Raises UserError."""
    made, notes = trials.plan(subject, options)
    made = replace(made, disk=min(made.disk, shutil.disk_usage(out).free // 3))  # two starts may run at once
    begun = time.monotonic()
    _carry_out(trials.first(made), out, len(made.starts))
    whole = observed.read("whole", out / "whole")
    if _wants_cuda(whole, made):
        made, whole = _on_stand_in(made, whole, out)
    if whole.trained:
        _carry_out(made, out, len(made.starts))
    return judged(made, notes, options, out, time.monotonic() - begun)


def judged(made: Plan, notes: dict[str, str], options: Options, out: Path, seconds: float) -> Result:
    """Return what the records in `out` prove. `notes` say why starts are not in the plan."""
    whole = observed.read("whole", out / "whole")
    runs = {name: observed.read(name, out / name) for name in TABLE["starts"]}
    asked = trials.asked(made)
    tried = observed.read("whole", out / STAND_IN) if (out / STAND_IN).is_dir() else None
    proof = Proof(runs, made.steps, made.grace, notes, asked, bool(options.resume), tried)
    verdicts = claims.judge_all(options.claims, proof)
    figures = {**figures_of(whole), "seconds of the proof": round(seconds, 1)}
    versions = next((end.versions for end in whole.ends()), {})
    return Result(verdicts, figures, _not_proven(whole), versions)


def _on_stand_in(made: Plan, without: Run, out: Path) -> tuple[Plan, Run]:
    """Try the uninterrupted run with a stand-in for CUDA. Return the plan and the run to continue with."""
    output.note("without CUDA no step is taken in one world: it is started again with a stand-in for CUDA on the CPU")
    (out / "whole").rename(out / "without-cuda")
    asked = trials.asked(made)
    devices = {"LOCAL_WORLD_SIZE": str(asked)} if asked > 1 else {}  # as many as the launcher is to see
    changed = replace(made, stand_in=True, variables={**made.variables, **devices})
    _carry_out(trials.first(changed), out, len(made.starts))
    whole = observed.read("whole", out / "whole")
    if whole.trained and not (without.trained and _alone(whole)):
        return changed, whole
    (out / "whole").rename(out / STAND_IN)
    (out / "without-cuda").rename(out / "whole")
    return made, without


def _wants_cuda(whole: Run, made: Plan) -> bool:
    """Whether a run took no step because there is no GPU: the log says so, or it ended with 0 and did nothing.

    `accelerate launch` starts one process without a GPU, or several that each train alone.
    """
    if whole.outcome is None or shutil.which("nvidia-smi"):
        return False
    if whole.trained:
        return launchers.kind(made.starts[0].command)[0] == "accelerate" and trials.asked(made) > 1 and _alone(whole)
    if any(end.backward_calls for end in whole.ends()):
        return False  # it trains by an optimizer that is not seen, such as a compiled one
    idle = whole.outcome.exit_code == 0 and whole.outcome.ended_by == "itself" and bool(whole.ranks)
    return whole.need() == "cuda" or idle


def _alone(run: Run) -> bool:
    return not any(step.collectives for rank in run.ranks for step in rank.steps)


def _not_proven(whole: Run) -> list[str]:
    outcome = whole.outcome
    rows = [str(TABLE["replaced"])] if whole.stand_in else []
    if outcome is not None and outcome.view == "copy":
        rows.append("the script ran on a copy without a network of its own: namespaces are not allowed here")
    if outcome is not None and outcome.view == "pods":
        rows.append("files outside of the volumes, of the working directory and of temporary directories")
    if outcome is not None and outcome.left_over:
        rows.append(f"the script left processes running, which were ended: {', '.join(outcome.left_over[:8])}")
    return rows


def _carry_out(made: Plan, out: Path, count: int) -> None:
    """Run the runner on a plan. Ends it, and all that it started, with this process."""
    path = out / "plan.json"
    plans.write(made, path)
    path.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, "-I", str(RUNNER), str(path), str(out)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    show = progress(made, count)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            show(json.loads(line))
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    if process.wait() != 0:
        raise UserError(f"the runner of the proof ended with exit code {process.returncode}", code=1)


def progress(made: Plan, count: int | None = None) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that says what the rows of the runner tell, at most one line in ten seconds for each start."""
    wanted = {one.name for one in made.starts}
    names = [name for name in TABLE["starts"] if name in wanted]
    told = 0.0

    def show(row: Mapping[str, Any]) -> None:
        nonlocal told
        name, state = str(row["start"]), row["state"]
        place = f"{names.index(name) + 1} of {count or len(names)}"
        now = time.monotonic()
        if state == "skipped":
            output.note(f"{place}: {TABLE['starts'][name]}: left out: {row['note']}")
        elif state == "starting":
            output.note(f"{place}: {TABLE['starts'][name]}")
        elif state == "running" and now - told > EVERY:
            output.note(f"  {place}: step {row['step']} of {row['of']}")
        else:
            return
        told = now

    return show


def figures_of(run: Run) -> dict[str, Any]:
    """Return the figures of an uninterrupted run: times in seconds, sizes in bytes."""
    found: dict[str, Any] = {}
    steps = [step.seconds - step.probe_seconds for rank in run.ranks for step in rank.steps[1:]]
    if steps:
        found["step time, s"] = _rounded(statistics.median(steps))
        rows = [len(batch.rows) for rank in run.readers for batch in rank.batches]  # parts of a model read one batch
        if rows and found["step time, s"]:
            found["samples a second"] = _rounded(sum(rows) / max(1, run.last_step) / found["step time, s"])
    first = [end.first_step_seconds for end in run.ends() if end.first_step_seconds]
    if first:
        found["time to the first step, s"] = _rounded(max(first))
    memory = max((end.peak_memory for end in run.ends()), default=0)
    if memory:
        found["peak memory of a rank, MiB"] = round(memory / 2**20)
    by_step: dict[int, tuple[int, float]] = {}
    for _, save in run.checkpoints:
        size, seconds = by_step.get(save.step, (0, 0.0))
        by_step[save.step] = size + save.bytes, max(seconds, save.seconds)
    if by_step:
        size, seconds = max(by_step.values())
        found["size of a save, MiB"], found["time of a save, s"] = _rounded(size / 2**20), _rounded(seconds)
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
