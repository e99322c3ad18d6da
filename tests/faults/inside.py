"""Faults inside a rank, the same for the trainer and for the control.

FAULT is JSON, `{"what": "spin", "rank": 1, "step": 12, "proof": FILE, ...}`. A fault happens once in a run: the first
thing that it does is to write what it does into its file of proof, and a rank that finds this file does nothing.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

GIVEN: dict[str, Any] = json.loads(os.environ.get("FAULT", "{}"))
_real_fsync = os.fsync


def before_step(step: int, rank: int) -> None:
    """Do what FAULT says for this step of this rank."""
    fault = {"spin": _spin, "mismatch": _mismatch, "eat": _eat}.get(GIVEN.get("what", ""))
    here = GIVEN.get("step") == step and GIVEN.get("rank", rank) == rank
    if fault is not None and here and _first(f"rank {rank} at step {step}"):
        fault()


def poisons(step: int, rank: int) -> bool:
    """Whether this rank's gradients of this step are to become NaN."""
    wanted = GIVEN.get("what") == "nan" and (GIVEN["step"], GIVEN["rank"]) == (step, rank)
    return wanted and _first(f"the gradients of rank {rank} became NaN at step {step}")


def prepare(directory: Path) -> None:
    """Make the storage slow or broken for files below `directory`, where FAULT says so."""
    seconds, failing = GIVEN.get("fsync_seconds", 0.0), GIVEN.get("fsync_errors", 0)
    left = [failing]

    def fsync(descriptor: int) -> None:
        inside = os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(directory))
        if inside and GIVEN.get("rank", rank_here()) == rank_here():
            if left[0] > 0 and (left[0] < failing or _first(f"fsync of rank {rank_here()} failed with EIO")):
                left[0] -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if seconds:
                _first(f"fsync of rank {rank_here()} takes {seconds} s")
                time.sleep(seconds)
        _real_fsync(descriptor)

    if seconds or failing:
        os.fsync = fsync  # type: ignore[assignment]


def rank_here() -> int:
    return int(os.environ.get("RANK", "0"))


def _first(what: str) -> bool:
    """Write the proof; False if the fault has happened before."""
    try:
        descriptor = os.open(GIVEN["proof"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    os.write(descriptor, json.dumps({"what": what, "pid": os.getpid(), "time": time.time()}).encode())
    os.close(descriptor)
    return True


def _spin() -> None:
    """Compute for ever, as a loop without an end in the data or the model does."""
    while True:
        pass


def _mismatch() -> None:
    """Take part in another collective than the other ranks."""
    dist.all_reduce(torch.ones(3))


def _eat() -> None:
    """Take memory until the kernel ends this process."""
    held = []
    while True:
        held.append(b"x" * (8 << 20))
