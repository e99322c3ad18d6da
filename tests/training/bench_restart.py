"""Measure what forked ranks save: `make bench-restart`. Not a test: nothing here is held against a limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.conftest import Job

LONG = ("train.steps=100000", "checkpoint.every=20")
PRINTED = "{:<46}{:>12}{:>12}{:>8}"
Figures = dict[str, float]


@pytest.mark.timeout(900)
def test_restart(start: Callable[..., Job], capsys: pytest.CaptureFixture[str]) -> None:
    """The same two ranks, first as plain torchrun starts them, then forked; each killed once."""
    same = {"nproc": 2, "overrides": LONG, "restarts": 1}
    begun = time.time()
    plain = _measure(start("plain", **same), begun)
    begun = time.time()
    forked = _measure(start("forked", launcher="training.launcher", **same), begun)
    with capsys.disabled():
        print("\n" + PRINTED.format("two ranks on this machine", "torchrun", "forked", "ratio"))
        for what, value in plain.items():
            ratio = f"{value / forked[what]:.2f}"
            print(PRINTED.format(what, f"{value:.1f}", f"{forked[what]:.1f}", ratio))


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
