"""Measures what compiled code that a run keeps is worth: `make bench-compile`. It is not a test.

Every pod has its own directories for compiled code and temporary files, and is killed after its second step.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.conftest import Job

ROUNDS = 3
PODS = ("first pod", "restarted container", "new pod with the key", "new pod without it")
LONG = ("train.steps=100000", "train.eval_every=100000", "checkpoint.every=1", "device.compile=on")
PRINTED = "{:<24}{:>16}{:>16}{:>8}{:>24}"


@pytest.mark.timeout(3600)
def test_compile(start: Callable[..., Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One rank of a tiny model on a CPU: medians of the first step, and of the seconds from start to it."""
    key = tmp_path / "key"
    key.write_text("k" * 44)
    found: dict[str, list[tuple[float, float]]] = {pod: [] for pod in PODS}
    for number in range(ROUNDS):
        for pod in PODS:
            own = tmp_path / f"pod-{number}"
            if pod != "restarted container":
                shutil.rmtree(own, ignore_errors=True)
                (own / "tmp").mkdir(parents=True)
            signs = "" if "without" in pod else str(key)
            found[pod].append(_measure(start, f"run-{number}", own, signs))
    with capsys.disabled():
        print(
            "\n" + PRINTED.format(f"median of {ROUNDS}", "first step, s", "start to it, s", "ratio", "first steps, s")
        )
        cold = statistics.median(step for step, _ in found[PODS[0]])
        for pod, figures in found.items():
            step, whole = (statistics.median(column) for column in zip(*figures, strict=True))
            each = " ".join(f"{one:.2f}" for one, _ in figures)
            print(PRINTED.format(pod, f"{step:.2f}", f"{whole:.1f}", f"{step / cold:.3f}", each))


def _measure(start: Callable[..., Job], run: str, own: Path, key: str) -> tuple[float, float]:
    """Return the seconds of a pod's first step, and those from its start to the end of that step."""
    begun = time.time()
    own_files = {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "TMPDIR": str(own / "tmp")}
    job = start(run, overrides=LONG, entrypoint=True, TRAINYARD_SIGNING_KEY_FILE=key, **own_files)
    job.until(lambda: len(_since(job, begun)) >= 2, timeout=600)
    first = _since(job, begun)[0]
    for pid in (*job.workers(), job.process.pid):  # otherwise a rank takes one more step
        os.kill(pid, signal.SIGKILL)
    job.process.wait()
    return first["step_s"], first["time"] - begun


def _since(job: Job, begun: float) -> list[dict]:
    return [one for one in job.records() if one["time"] > begun]
