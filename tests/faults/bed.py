"""Where one fault is tried: a directory, jobs of the trainer or of the control, and what is left of them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.training.jobs import Job, Jobs, tiny_texts, write_corpus

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = 5  # steps between two checkpoints
STEPS = 200  # some seconds: a fault at an early step must find the ranks at work
CONTINUES = re.compile(r"continuing from step (\d+)")


class NotTriedError(Exception):
    """This machine cannot produce the fault. The message says why."""


class NoFaultError(Exception):
    """The fault did not happen, so the run shows nothing."""


@dataclass
class Outcome:
    """What one trial of a fault showed."""

    held: bool
    """Whether the bound was kept."""
    proof: str
    """What shows that the fault happened."""
    seen: str
    """What happened then, in a few words."""
    lost: int | None = None
    """Steps that were computed again."""
    seconds: float | None = None
    """From the fault to the next step, or to the end where nothing starts again."""
    points: int = 1
    """Points at which the fault was tried."""


@dataclass
class Course:
    """A run's losses by step, and a digest of its final weights."""

    losses: dict[int, float]
    weights: str


@dataclass
class Bed:
    """One trial: of the trainer, or with `plain` of the control."""

    place: Path
    seed: int
    plain: bool
    calm_runs: dict[tuple[object, ...], Course] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(1000 * self.seed + 17)
        corpus, data = (self.place.parents[1] / name for name in ("corpus", "data"))  # shared by all trials
        if not corpus.exists():
            corpus.mkdir(parents=True)
            write_corpus(corpus)
        self.place.mkdir(parents=True)
        self.jobs = Jobs(tiny_texts(corpus), data, self.place)

    def start(
        self,
        name: str = "job",
        *,
        restarts: int = 1,
        steps: int = STEPS,
        every: int = INTERVAL,
        fault: dict[str, Any] | None = None,
        keys: Sequence[str] = (),
        words: Sequence[str] = (),
        agent: Sequence[str] = ("--standalone",),
        nproc: int = 2,
        module: str = "training.pretrain",
        **more: Any,
    ) -> Job:
        """Start the run `name`, or continue it.

        `keys` are of the trainer's configuration, `words` of the control's command line. A `fault` needs pre-training.
        """
        more["FAULT"] = json.dumps({**(fault or {}), "proof": str(self.proof_file(name))})
        seed = 7 + self.seed
        if self.plain:
            prefix, alone = more.pop("prefix", ()), more.pop("alone", True)
            command = [
                *prefix, sys.executable, "-m", "torch.distributed.run", *agent, f"--nproc-per-node={nproc}",
                f"--max-restarts={restarts}", "-m", "tests.faults.plain", f"--steps={steps}", f"--every={every}",
                f"--seed={seed}", *words,
            ]  # fmt: skip
            return self.jobs.run(name, command, alone=alone, **more)
        overrides = (
            f"train.steps={steps}", f"checkpoint.every={every}", f"train.seed={seed}", "train.eval_every=1000",
            *keys,
        )  # fmt: skip
        module = "tests.faults.faulty" if fault else module
        return self.jobs.start(
            name, nproc=nproc, overrides=overrides, restarts=restarts, module=module, entrypoint=True, agent=agent,
            **more,
        )  # fmt: skip

    def proof_file(self, name: str = "job") -> Path:
        return self.place / f"{name}-proof.json"

    def proof(self, name: str = "job") -> dict[str, Any]:
        """What the fault inside a rank wrote before it happened."""
        try:
            found: dict[str, Any] = json.loads(self.proof_file(name).read_text())
        except (OSError, ValueError):
            raise NoFaultError("the rank did not come to the fault") from None
        return found

    def calm(self, steps: int = STEPS) -> Course:
        """The course of the same run without a fault."""
        key = (self.plain, self.seed, steps)
        if key not in self.calm_runs:
            job = self.start("calm", steps=steps)
            if job.wait() != 0:
                raise NoFaultError(f"the run without a fault failed: {job.text()[-300:]}")
            self.calm_runs[key] = course(job)
        return self.calm_runs[key]

    def close(self) -> None:
        self.jobs.close()


def course(job: Job) -> Course:
    """Return what a finished run has computed."""
    losses = {record["step"]: record["loss"] for record in job.records()}
    final = job.run / "final.json"
    if final.exists():
        return Course(losses, final.read_text())
    newest = sorted((job.run / "checkpoints").glob("step-????????"))[-1]
    files = json.loads((newest / "MANIFEST.json").read_text())["files"]
    return Course(losses, json.dumps({n: one["sha256"] for n, one in files.items() if n.endswith(".safetensors")}))


def resumed_from(job: Job) -> int:
    """Return the step from which a run continued last; 0 without a checkpoint."""
    log = job.run / "logs" / "rank-00000.log"
    text = (log if log.exists() else job.output).read_text(errors="replace")
    return int(([0, *CONTINUES.findall(text)])[-1])


def last_step(job: Job) -> int:
    return max((record["step"] for record in job.records()), default=0)


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> float:
    """Send a signal; return when. NoFaultError if no process is there."""
    sent = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            sent += 1
        except ProcessLookupError:
            continue
    if not sent:
        raise NoFaultError("there was no process to send a signal to")
    return time.time()


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Poll; False if the time was up first."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def ended(pids: Iterable[int], seconds: float = 15) -> list[int]:
    """Return the processes that still run after this time."""
    pids = list(pids)
    wait_for(lambda: not any(map(alive, pids)), seconds)
    return [pid for pid in pids if alive(pid)]


def continued(job: Job, before: Sequence[int], struck: float, seconds: float = 150) -> float | None:
    """Return the seconds from the fault to the first step of new ranks, None if none came in this time."""
    if not wait_for(lambda: job.workers() and set(job.workers()).isdisjoint(before), seconds):
        return None
    started = time.time()

    def later() -> list[float]:
        return [record["time"] for record in job.records() if record["time"] > started]

    return min(later()) - struck if wait_for(later, seconds) else None
