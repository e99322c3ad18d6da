"""Copies files out of a job's run directory through a pod that runs: each arrives whole, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.errors import UserError
from tools.job import digests
from tools.job.collect import container_name, in_pod, names_run
from tools.job.pod import JobPod
from tools.kubectl import Kubectl, missing

ABSENT = 66  # EX_NOINPUT of sysexits.h
TRIES = 3  # a stream through the API server may break off, and then ends without an error


@dataclass(frozen=True)
class File:
    """One file of the run: its name there, its size in bytes, its SHA-256."""

    name: str
    size: int
    sha256: str


def source(pods: list[JobPod]) -> JobPod:
    """Return a pod to copy from; UserError where none runs."""
    found = next((pod for pod in pods if pod.running and names_run(pod)), None)
    if found is None:
        raise UserError("no pod of the job runs to copy from", "yard job status shows its pods", 3)
    return found


def listed(kubectl: Kubectl, pod: JobPod, wanted: str) -> list[File]:
    """Return the files at or below `wanted` in the run directory; UserError where there is none."""
    path = PurePosixPath(wanted)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(
            f"{wanted}: not a path inside the run directory", "for example checkpoints/step-00000100"
        )
    script = Path(digests.__file__).read_text(encoding="utf-8")
    words = ("sh", "-c", 'exec python3 - "$TRAINYARD_RUN" "$1"', "sh", wanted)
    found = [File(**one) for one in json.loads(in_pod(kubectl, pod, *words, stdin=script, seconds=None))]
    if not found:
        raise UserError(
            f"the run directory has no file at {wanted}", "yard job exec JOB -- ls lists what it has"
        )
    return found


def fetch(kubectl: Kubectl, pod: JobPod, file: File, target: Path, say: Callable[[str], None]) -> bool:
    """Bring one file to `target`; return False where it is there already, with the right digest.

    Raises UserError when the run has removed it by now, and when its digest is wrong after several tries:
    nothing is left at `target` then.
    """
    if target.is_file() and target.stat().st_size == file.size and digests.digest(target) == file.sha256:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    try:
        for number in range(1, TRIES + 1):
            if not _stream(kubectl, pod, file.name, part):
                hint = "a run keeps its newest checkpoints only: copy a newer one, or stop the job first"
                raise UserError(f"{file.name} is no longer in the run directory", hint, 1)
            if digests.digest(part) == file.sha256:
                os.replace(part, target)
                return True
            size = part.stat().st_size
            say(f"{file.name}: {size} of {file.size} bytes came, or differ: try {number} of {TRIES}")
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    raise UserError(f"{file.name}: what arrives has not the digest that the pod computed", code=1)


def _stream(kubectl: Kubectl, pod: JobPod, name: str, part: Path) -> bool:
    """Write what the pod's file holds to `part`; return False where the pod has no such file."""
    words = (
        "sh",
        "-c",
        f'[ -f "$TRAINYARD_RUN/$1" ] || exit {ABSENT}; exec cat "$TRAINYARD_RUN/$1"',
        "sh",
        name,
    )
    program = kubectl.words("exec", pod.name, f"--container={container_name(pod)}", "--", *words)
    try:
        with part.open("wb") as target:
            done = subprocess.run(
                program, stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.DEVNULL, check=False
            )
    except FileNotFoundError:
        raise missing() from None
    return done.returncode != ABSENT
