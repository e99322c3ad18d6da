"""Measures how much forked ranks save: `make bench-restart`. It is not a test: there are no limits."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.jobs import Job

ROUNDS = 3
LONG = ("train.steps=100000", "checkpoint.every=20")
PRINTED = "{:<46}{:>12}{:>12}{:>8}"
Figures = dict[str, float]


@pytest.mark.timeout(1800)
def test_restart(start: Callable[..., Job], capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks started by plain torchrun and forked, in turns, each killed once: medians."""
    same = {"nproc": 2, "overrides": LONG, "restarts": 1}
    found: dict[str, list[Figures]] = {"torch.distributed.run": [], "training.pod.launcher": []}
    for number, (launcher, figures) in itertools.product(range(ROUNDS), found.items()):
        begun = time.time()
        job = start(f"{launcher}-{number}", launcher=launcher, **same)
        figures.append(_measure(job, begun))
        job.process.kill()
        job.process.wait()
    with capsys.disabled():
        print("\n" + PRINTED.format(f"two ranks, median of {ROUNDS}", "torchrun", "forked", "ratio"))
        for what in found["training.pod.launcher"][0]:
            plain, forked = (statistics.median(one[what] for one in figures) for figures in found.values())
            print(PRINTED.format(what, f"{plain:.1f}", f"{forked:.1f}", f"{plain / forked:.2f}"))


def _measure(job: Job, begun: float) -> Figures:
    """Return seconds to the first step, MiB of memory of the whole job, and seconds from a kill to a step."""
    job.until(lambda: len(job.records()) >= 30)
    first = job.records()[0]["time"] - begun
    memory = sum(map(_private, _below(job.process.pid)))
    before, killed = job.workers(), time.time()
    os.kill(before[1], signal.SIGKILL)
    job.until(lambda: set(job.workers()).isdisjoint(before) and len(job.workers()) == 2)
    started = time.time()
    job.until(lambda: job.records()[-1]["time"] > started)
    again = min(one["time"] for one in job.records() if one["time"] > started)
    return {
        "seconds to the first step": first,
        "seconds from a killed rank to the next step": again - killed,
        "memory of its processes in MiB, files left out": memory,
    }


def _below(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _below(int(child))


def _private(pid: int) -> float:
    """Return this process's share of anonymous memory in MiB: Pss_Anon of proc_pid_smaps(5)."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == "Pss_Anon:") / 1024
