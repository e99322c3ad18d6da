"""Ends a job: suspends it so that its pods save a checkpoint, or deletes it."""

import json
import re
import threading
from collections import deque
from dataclasses import dataclass

from tools.core import Say, UserError, output, tables, wait
from tools.job.snapshot import JobPod, LiveJob, lookup
from tools.job.snapshot.kinds import NOT_READ
from tools.job.snapshot.pod import template_specs
from tools.kube import Kubectl, Object, name_of
from tools.workload import kinds
from tools.workload.volcano import VolcanoJob

# Lines of training/trainer/loop.py, and of the trainer's own record of a drain.
SAVED = re.compile(r"checkpoint of step (\d+) saved|stopped on request at step (\d+), which is saved")
LOG_SECONDS = 10.0  # for a log to end once its pod is gone
LAST_LINES = 10000  # of all logs together
GONE_SECONDS = 60.0  # for the pods to end, beyond their own grace period
VOLCANO_ACTIONS = ("AbortJob", "ResumeJob")
OBJECT_SECONDS = 30.0  # for a deleted job whose pods are gone


@dataclass(frozen=True)
class Drained:
    """The result of a drain: whether a pod `ran`, and whether a checkpoint was `saved`, of which `step`."""

    ran: bool
    saved: bool
    step: int | None
    evidence: str


def drain(kubectl: Kubectl, job: LiveJob, say: Say, deletes: bool = False) -> Drained:
    """Suspend a job and wait until its pods are gone; UserError if it cannot be suspended, or does not end.

    A job that cannot be suspended is deleted, if that is allowed (`deletes`).
    """
    request = _request(job, True)
    if request is None and not deletes:
        raise UserError(f"{job.title}: a job of this kind cannot be suspended", "--delete ends it", 1)
    running = [pod for pod in lookup.pods(kubectl, job.workload) if pod.running]
    lines: deque[str] = deque(maxlen=LAST_LINES)
    readers = [_reader(kubectl, pod, lines) for pod in running]
    _send(kubectl, job, request or ("delete", resource_of(job), "--wait=false"))
    say(f"asked {output.count(len(running), 'running pod')} of {job.workload.name} to stop")
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
        return Drained(True, False, None, "CANNOT TELL whether a checkpoint was saved: no log mentions one")
    line, match = found[-1]
    return Drained(True, True, int(match[1] or match[2]), line.strip())


def resume(kubectl: Kubectl, job: LiveJob) -> None:
    """Let a suspended job run, through its owner if it has one."""
    request = _request(job, False)
    assert request is not None, "the job is suspended, so its kind can be"
    _send(kubectl, job, request)


def _send(kubectl: Kubectl, job: LiveJob, words: tuple[str, ...]) -> None:
    """Run a request of `_request`."""
    if words[0] in VOLCANO_ACTIONS:
        kubectl.text("create", "--filename=-", "--output=name", stdin=json.dumps(_command(job.top, words[0])))
    else:
        kubectl.text(*words, names=[name_of(job.top)])


def _request(job: LiveJob, suspended: bool) -> tuple[str, ...] | None:
    """Return kubectl's words that suspend or resume a job, or Volcano's action; None if its kind cannot."""
    resource = resource_of(job)
    if resource == VolcanoJob.resource:
        return (VOLCANO_ACTIONS[0] if suspended else VOLCANO_ACTIONS[1],)
    known = kinds.of(job.top)
    patch = known.suspend_patch(suspended) if known else {"spec": {"suspend": suspended}}
    words = ("patch", resource, "--type=merge", f"--patch={json.dumps(patch)}", "--output=name")
    return words if patch is not None else None


def resource_of(job: LiveJob) -> str:
    """Return kubectl's name of the kind that a command acts on; UserError if that is not known.

    A job that another object made is made again when it ends: its owner is what can be stopped.
    """
    if job.resource is None or job.resource in NOT_READ.values():
        message = f"{job.workload.title} was made by {job.title}, which may make it again"
        raise UserError(message, f"stop or delete {job.title} with the tool of that kind", 1)
    return job.resource


def _command(job: Object, action: str) -> Object:
    """Return the object by which Volcano aborts or resumes a job, as `vcctl job suspend` creates it.

    Source: CreateJobCommand in pkg/cli/util/util.go of github.com/volcano-sh/volcano, commit 07309f6.
    """
    metadata = job["metadata"]
    names = {"api": job["apiVersion"], "kind": job["kind"], "name": name_of(job), "action": action}
    names |= {"uid": metadata["uid"], "namespace": metadata["namespace"], "verb": action.lower()}
    made: Object = tables.filled(tables.load("job/tables.yaml")["volcano command"], names)
    return made


def delete(kubectl: Kubectl, job: LiveJob, say: Say) -> None:
    """Delete a job, or its owner, and wait until its pods are gone: they use their grace period to save."""
    resource, name = resource_of(job), name_of(job.top)
    kubectl.text("delete", resource, "--wait=false", names=[name])
    wait_gone(kubectl, job, say)

    def gone() -> bool:
        return not kubectl.items(resource, "--ignore-not-found", names=[name])

    if not wait.until(gone, OBJECT_SECONDS, every=0.5):
        hint = f"kubectl get {resource} {name}: a finalizer may block its deletion"
        raise UserError(f"{name} still exists", hint, 1)


def wait_gone(kubectl: Kubectl, job: LiveJob, say: Say) -> None:
    """Wait until no pod of the job runs or is being deleted; UserError long after their grace period."""
    say_sometimes = wait.sparing(say)
    left = lookup.pods(kubectl, job.workload)
    specs = [*template_specs(job.workload), *(pod.spec for pod in left)]
    grace = max([int(spec.get("terminationGracePeriodSeconds") or 30) for spec in specs], default=30)

    def gone() -> bool:
        left[:] = [pod for pod in lookup.pods(kubectl, job.workload) if pod.deleted or not pod.over]
        return not left

    def report(waited: float) -> None:
        pods = output.count(len(left), "pod is", "pods are")
        say_sometimes(f"{pods} ending, {waited:.0f} s of at most {grace} s")

    if not wait.until(gone, grace + GONE_SECONDS, every=0.5, report=report):
        names = ", ".join(pod.name for pod in left[:4])
        raise UserError(f"pods still exist after {grace + GONE_SECONDS:.0f} s: {names}", code=1)
