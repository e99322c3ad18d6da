"""Faults of `make faults-all` that take several runs: a kill in each training script, and kills at random times."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from tests.faults.bed import INTERVAL, Bed, Course, NoFaultError, Outcome, continued, course, kill, last_step
from tests.faults.processes import judged
from tests.prove import trainers
from tests.training.jobs import Job, Jobs

SCRIPTS = ("pretrain", "finetune", "lora", "bert")
STEPS = 120
MEAN_SECONDS = 20.0  # of training between two kills
CALM_SECONDS = 60.0  # how long the run under kills would take without them
MEASURED_STEPS, MEASURED_EVERY = 600, 20  # of the run that measures a step and a save
SHARE = 0.9  # of Young/Daly's estimate


def each_script(bed: Bed) -> Outcome:
    """SIGKILL of a rank of one of the training scripts, whose saves training waits for, or does not."""
    script, beside, draw = _chosen(bed.seed)
    bed.jobs = Jobs(_texts(bed, script), bed.place.parents[1] / "data", bed.place)
    module = f"training.{'finetune' if script == 'lora' else script}"
    keys = (f"train.seed={7 + draw}", f"checkpoint.asynchronous={str(beside).lower()}")
    calm = _calm(bed, script, draw, module)
    at = random.Random(17 + draw).randint(8, 25)
    job = bed.start(steps=STEPS, module=module, keys=keys)
    job.until(lambda: last_step(job) >= at)
    before = job.workers()
    victim = draw % len(before)
    struck = kill(before[victim : victim + 1])
    reached = last_step(job)
    seconds = continued(job, before, struck)
    proof = f"process {before[victim]} of rank {victim} ended at step {reached}"
    found = judged(bed, job, calm, job.wait(), reached, seconds, proof, most=INTERVAL * (1 + beside))
    found.seen = f"{script}, {'asynchronous' if beside else 'synchronous'} saves: {found.seen}"
    return found


def _chosen(seed: int) -> tuple[str, bool, int]:
    """The script of a trial, whether its saves are asynchronous, and the run's own seed: eight trials share one."""
    return SCRIPTS[seed % len(SCRIPTS)], bool(seed // len(SCRIPTS) % 2), seed // (2 * len(SCRIPTS))


def _texts(bed: Bed, script: str) -> dict[str, tuple[str, str]]:
    """The configuration of a script by layer; its inputs are made once for all trials."""
    place = bed.place.parents[1] / "scripts" / script
    if not place.exists():
        making = place.with_name(f"{script}-{bed.seed}")
        making.mkdir(parents=True)
        trainers.make(f"{script}-ddp", making)
        made = {path: path.read_text() for path in (making / "configuration").iterdir()}
        for path, text in made.items():
            path.write_text(text.replace(str(making), str(place)))
        making.rename(place)
    return {path.stem: (path.name, path.read_text()) for path in (place / "configuration").iterdir()}


def _calm(bed: Bed, script: str, draw: int, module: str) -> Course:
    """The course of the same script and seed without a fault; it does not depend on how saves are made."""
    key = (script, draw)
    if key not in bed.calm_runs:
        job = bed.start("calm", steps=STEPS, module=module, keys=(f"train.seed={7 + draw}",))
        if job.wait() != 0:
            raise NoFaultError(f"the run without a fault failed: {job.text()[-300:]}")
        bed.calm_runs[key] = course(job)
    return bed.calm_runs[key]


@dataclass
class Cost:
    """What a step and a save take, in seconds."""

    step: float
    save: float

    @property
    def stall(self) -> float:
        """The steps that training could have done in the time of a save."""
        return self.save / self.step


@dataclass
class Struck:
    """A run under kills: the shares of its time that went into steps it kept, measured and estimated."""

    measured: float
    estimated: float
    kills: int
    every: int
    stall: float
    code: int


def poisson(bed: Bed) -> Outcome:
    """Kills of drawn ranks after drawn times of training, for the trainer and then for the control.

    The interval is Young/Daly's (Daly 2006, equation 13: sqrt(2 x save x mean time between failures)) for each side's
    own save, and so is the estimate: kept steps against these, their saves, and for each kill its restart and half an
    interval. Kept steps count with the time of a step in this same run, because the speed of a machine drifts. The time
    that an asynchronous save takes from training is measured beside them.
    """
    ours = _under_kills(bed)
    beside = _cost(bed, "beside", "checkpoint.asynchronous=true")
    bed.plain = True
    theirs = _under_kills(bed)
    held = (ours.code, theirs.code) == (0, 0) and ours.measured >= SHARE * ours.estimated
    stall = f"an asynchronous save takes the time of {beside.stall:.2f} steps"
    seen = f"{_told(ours)}; {stall}; torchrun with DCP: {_told(theirs)}"
    proof = f"{ours.kills} and {theirs.kills} ranks were killed"
    return Outcome(held and ours.measured > theirs.measured, proof, seen, points=ours.kills)


def _told(run: Struck) -> str:
    return (
        f"{run.measured:.1%} of the time trained what was kept, Young/Daly estimates {run.estimated:.1%} "
        f"({run.kills} kills, an interval of {run.every} steps, a save takes the time of {run.stall:.2f})"
    )


def _under_kills(bed: Bed) -> Struck:
    side = "control" if bed.plain else "ours"
    cost = _cost(bed, f"{side}-calm")
    every = max(1, round(math.sqrt(2 * cost.save * MEAN_SECONDS) / cost.step))
    steps = round(CALM_SECONDS / cost.step)
    draw = random.Random(1000 * bed.seed + 29)  # the same kills on both sides
    job = bed.start(side, steps=steps, every=every, restarts=30)
    job.until(lambda: last_step(job) > 0)
    restarts = []
    while _trains(job, steps, draw.expovariate(1 / MEAN_SECONDS)):
        before = job.workers()
        struck = kill([draw.choice(before)])
        took = continued(job, before, struck)
        if took is None:
            raise NoFaultError(f"no rank came back after a kill: {job.text()[-300:]}")
        restarts.append(took)
    code = job.wait()
    if not restarts:
        raise NoFaultError("the run ended before the first kill")
    records = job.records()
    times = [record["time"] for record in records]
    step = _plain_step(_gaps(records), every)
    useful, saves = steps * step, steps / every * cost.stall * step
    lost = sum(restarts) + len(restarts) * every * step / 2
    estimated = useful / (useful + saves + lost)
    return Struck(useful / (max(times) - min(times)), estimated, len(restarts), every, cost.stall, code)


def _trains(job: Job, steps: int, seconds: float) -> bool:
    """Let a run train for some seconds; False if it comes near its last step before. It looks once a second."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if job.process.poll() is not None or last_step(job) > 0.97 * steps:
            return False
        time.sleep(min(1.0, left))
    return True


def _cost(bed: Bed, name: str, *keys: str) -> Cost:
    """Measure a step and a save in a run without faults."""
    job = bed.start(name, steps=MEASURED_STEPS, every=MEASURED_EVERY, keys=keys)
    if job.wait() != 0:
        raise NoFaultError(f"the run without a fault failed: {job.text()[-300:]}")
    gaps = _gaps(job.records()[5:-1])
    plain = _plain_step(gaps, MEASURED_EVERY)
    pairs = [gaps[step] + gaps[step + 1] for step in gaps if step % MEASURED_EVERY == 0 and step + 1 in gaps]
    return Cost(plain, max(statistics.median(pairs) - 2 * plain, plain / 100))


def _gaps(records: list[dict[str, Any]]) -> dict[int, float]:
    """The seconds before each step was noted."""
    return {now["step"]: now["time"] - last["time"] for last, now in itertools.pairwise(records)}


def _plain_step(gaps: dict[int, float], every: int) -> float:
    """The median of the steps without a save, which is noted before or after its step."""
    return statistics.median([took for step, took in gaps.items() if step % every > 1] or gaps.values())
