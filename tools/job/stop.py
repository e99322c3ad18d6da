"""Ends a job: suspends it so that its pods save a checkpoint, or deletes it."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tools.core import output
from tools.core.command_line import selector
from tools.core.errors import UserError
from tools.core.wait import sparing, until
from tools.job.snapshot import lookup
from tools.job.snapshot.pod import JobPod, template_specs
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object, name_of

# Lines of training/trainer/loop.py, and of the trainer's own record of a drain.
SAVED = re.compile(r"checkpoint of step (\d+) saved|stopped on request at step (\d+), which is saved")
LOG_SECONDS = 10.0  # for a log to end once its pod is gone
LAST_LINES = 10000  # of all logs together
GONE_SECONDS = 60.0  # for the pods to end, beyond their own grace period


@dataclass(frozen=True)
class Drained:
    """The result of a drain: whether a pod `ran`, and whether a checkpoint was `saved`, of which `step`."""

    ran: bool
    saved: bool
    step: int | None
    evidence: str


def drain(kubectl: Kubectl, job: Object, say: Callable[[str], None]) -> Drained:
    """Suspend a job and wait until its pods are gone; UserError if they do not end."""
    running = [pod for pod in map(JobPod, _pods(kubectl, job)) if pod.running]
    lines: deque[str] = deque(maxlen=LAST_LINES)
    readers = [_reader(kubectl, pod, lines) for pod in running]
    suspend(kubectl, name_of(job), True)
    say(f"asked {output.count(len(running), 'running pod')} of {name_of(job)} to stop")
    wait_gone(kubectl, job, say)
    for reader in readers:
        reader.join(LOG_SECONDS)
    return last_checkpoint(bool(running), list(lines))


def _reader(kubectl: Kubectl, pod: JobPod, lines: deque[str]) -> threading.Thread:
    """Collect a pod's log in a thread from now on: the log is gone once the pod is."""
    words = ("logs", f"--container={pod.container_name}", "--follow", "--since=1s")
    found = kubectl.lines(*words, names=[pod.name])
    thread = threading.Thread(target=lambda: lines.extend(found), daemon=True)
    thread.start()
    return thread


def last_checkpoint(ran: bool, lines: list[str]) -> Drained:
    """Return what the last lines of the pods' logs say about a checkpoint."""
    if not ran:
        return Drained(False, False, None, "no pod was running: there was nothing to save")
    found = [(line, match) for line in lines if (match := SAVED.search(line))]
    if not found:
        evidence = "CANNOT TELL whether a checkpoint was saved: no log mentions one"
        return Drained(True, False, None, evidence)
    line, match = found[-1]
    return Drained(True, True, int(match[1] or match[2]), line.strip())


def suspend(kubectl: Kubectl, name: str, value: bool) -> Object:
    """Set spec.runPolicy.suspend and return the changed job."""
    patch = json.dumps({"spec": {"runPolicy": {"suspend": value}}})
    changed: Object = kubectl.json("patch", "pytorchjob", "--type=merge", f"--patch={patch}", names=[name])
    return changed


def delete(kubectl: Kubectl, job: Object, say: Callable[[str], None]) -> None:
    """Delete a job and wait until its pods are gone: they use their grace period for a last checkpoint."""
    name = name_of(job)
    kubectl.text("delete", "pytorchjob", "--wait=false", names=[name])
    wait_gone(kubectl, job, say)
    if lookup.existing(kubectl, name) is not None:
        raise UserError(
            f"{name} still exists", "kubectl get pytorchjob: a finalizer may block its deletion", 1
        )


def wait_gone(kubectl: Kubectl, job: Object, say: Callable[[str], None]) -> None:
    """Wait until no pod of the job runs or is being deleted; UserError long after their grace period."""
    grace = max(int(spec.get("terminationGracePeriodSeconds") or 30) for spec in template_specs(job))
    say_sometimes = sparing(say)
    left: list[Object] = []

    def gone() -> bool:
        left[:] = [pod for pod in _pods(kubectl, job) if _is_alive(pod)]
        return not left

    def report(waited: float) -> None:
        pods = output.count(len(left), "pod is", "pods are")
        say_sometimes(f"{pods} ending, {waited:.0f} s of at most {grace} s")

    if not until(gone, grace + GONE_SECONDS, every=0.5, report=report):
        names = ", ".join(name_of(pod) for pod in left[:4])
        raise UserError(f"pods still exist after {grace + GONE_SECONDS:.0f} s: {names}", code=1)


def _pods(kubectl: Kubectl, job: Object) -> list[Object]:
    return kubectl.items("pods", selector("training.kubeflow.org/job-name", name_of(job)))


def _is_alive(pod: Object) -> bool:
    """Return whether a pod runs or is being deleted; the ended pods of a finished job stay."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not ended or "deletionTimestamp" in pod["metadata"]
