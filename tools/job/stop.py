"""Drains a job: its pods get SIGTERM and time, and their logs are read to the end for the last checkpoint."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tools.job import submit
from tools.job.snapshot.pod import JobPod
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object

# training/trainer/loop.py says the one, the trainer's own record of a drain the other.
SAVED = re.compile(r"checkpoint of step (\d+) saved|stopped on request at step (\d+), which is saved")
LOG_SECONDS = 10.0  # that a log has to end once its pod is gone


@dataclass(frozen=True)
class Drained:
    """What came of it: whether a pod `ran`, whether a checkpoint was `saved` after that, and its `step`."""

    ran: bool
    saved: bool
    step: int | None
    evidence: str


def drain(kubectl: Kubectl, job: Object, say: Callable[[str], None]) -> Drained:
    """Suspend a job and wait until its pods are gone; UserError when they do not go."""
    name = str(job["metadata"]["name"])
    items = kubectl.items("pods", f"--selector=training.kubeflow.org/job-name={name}")
    running = [pod for pod in map(JobPod, items) if pod.running]
    lines: list[str] = []
    readers = [_reader(kubectl, pod, lines) for pod in running]
    submit.suspend(kubectl, name, True)
    say(f"asked {len(running)} running pods of {name} to stop")
    submit.wait_gone(kubectl, job, say)
    for reader in readers:
        reader.join(LOG_SECONDS)
    return judge(bool(running), lines)


def _reader(kubectl: Kubectl, pod: JobPod, lines: list[str]) -> threading.Thread:
    """Collect what a pod writes from now on, in a thread: its log is gone once the pod is."""
    words = ("logs", pod.name, f"--container={pod.container_name}", "--follow", "--since=1s")

    def read() -> None:
        lines.extend(kubectl.lines(*words))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def judge(ran: bool, lines: list[str]) -> Drained:
    """Return what the last lines of the pods say of a checkpoint."""
    if not ran:
        return Drained(False, False, None, "no pod was running: there was nothing to save")
    found = [(line, match) for line in lines if (match := SAVED.search(line))]
    if not found:
        return Drained(
            True, False, None, "CANNOT TELL whether a checkpoint was saved: no line of a log says so"
        )
    line, match = found[-1]
    return Drained(True, True, int(match[1] or match[2]), line.strip())
