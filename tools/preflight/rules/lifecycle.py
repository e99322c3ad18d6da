"""Rules on how a job starts, restarts and ends, and who starts it again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tools.core.verdict import Verdict, bad, good, unclear
from tools.preflight.rule import Place, rule
from tools.preflight.rules.enums import RESTART
from tools.preflight.subject import Job, Subject, title
from tools.simulator.command_line import script

GITOPS = ("kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "argocd.argoproj.io/")
OUR_PART = ("app.kubernetes.io/part-of", "trainyard")
AUTO_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
QUEUE = "kueue.x-k8s.io/queue-name"
EXEC = re.compile(r"(?m)(?:^|[;&|]\s*)\s*exec\s+\S")


@rule("restart-policy", "some restart policies end a job at its first fault, or never")
def restart_policy(subject: Subject) -> Iterator[Verdict]:
    """Replicas restart with OnFailure (or Never, where a fault shall end the job).

    `Always` restarts a container that has finished, so that the job can never succeed. `ExitCode` retries on
    128 and above only, and torchrun exits 1 whatever happened, so that each fault is permanent; with a TTL
    such a job is also never cleaned up (its completionTime stays empty, v1.9.4). Behind training.entrypoint
    the codes are right, but each of these retries is a new pod, and backoffLimit counts none of them.
    """
    for job in subject.jobs:
        for role, replica in (job.spec.get("pytorchReplicaSpecs") or {}).items():
            value = replica.get("restartPolicy") or "OnFailure"
            place = Place(job.object, f"spec.pytorchReplicaSpecs.{role}.restartPolicy", value)
            if value == "Always":
                yield bad(place, "Always: the job can never succeed", "restartPolicy: OnFailure")
            elif value == "ExitCode" and _by_torchrun(job):
                yield bad(place, _exit_code_fault(job), "restartPolicy: OnFailure")
            elif value in (*RESTART, "ExitCode"):
                yield good(place, f"{value} ends or restarts the pods as meant")


def _exit_code_fault(job: Job) -> str:
    nodes = job.analysis.nodes if job.analysis else []
    if any(node.launch.behind_entrypoint for node in nodes):
        return "ExitCode retries without limit: each retry is a new pod, which backoffLimit does not count"
    return "ExitCode under torchrun: every fault is permanent, because torchrun exits 1 for all"


def _by_torchrun(job: Job) -> bool:
    nodes = job.analysis.nodes if job.analysis else []
    return any(node.launch.torchrun is not None for node in nodes)


@rule("clean-pods", "the other pods keep running, and keep their devices, when a job has ended")
def clean_pods(subject: Subject) -> Iterator[Verdict]:
    """A job of several pods says cleanPodPolicy: Running (or All).

    The operator's default is None: after success or failure of one pod the others stay up and are paid for
    (kubeflow/trainer #1579).
    """
    for job in subject.jobs:
        value = (job.spec.get("runPolicy") or {}).get("cleanPodPolicy")
        place = Place(job.object, "spec.runPolicy.cleanPodPolicy", value or "not set, so None")
        if job.nodes < 2:
            continue
        if value in (None, "None"):
            yield bad(
                place, f"{job.nodes} pods, and those left over are not ended", "cleanPodPolicy: Running"
            )
        else:
            yield good(place, "pods that are left over are ended")


@rule("backoff-limit", "without a limit a job that cannot work restarts for ever on paid machines")
def backoff_limit(subject: Subject) -> Iterator[Verdict]:
    """A job that restarts says how often: backoffLimit, at least one for each pod.

    Unset means unlimited. The operator sums restarts over all running pods, and one lost rendezvous host
    restarts every pod once, so that a limit below the number of pods ends the job at the first such loss.
    Zero is taken as meant.
    """
    for job in subject.jobs:
        replicas = (job.spec.get("pytorchReplicaSpecs") or {}).values()
        if all(replica.get("restartPolicy") == "Never" for replica in replicas):
            continue
        value = (job.spec.get("runPolicy") or {}).get("backoffLimit")
        place = Place(job.object, "spec.runPolicy.backoffLimit", "not set" if value is None else value)
        if value is None:
            yield bad(place, "restarts have no limit", f"backoffLimit: {3 * job.nodes}")
        elif isinstance(value, int) and 0 < value < job.nodes:
            yield bad(
                place,
                f"{value} restarts for {job.nodes} pods: one lost rendezvous host uses up {job.nodes}",
                f"backoffLimit: {3 * job.nodes}",
            )
        else:
            yield good(place, "restarts are limited")


@rule("ttl", "a reconciler starts a job again that its TTL has removed")
def ttl(subject: Subject) -> Iterator[Verdict]:
    """No ttlSecondsAfterFinished on a job that is reconciled from git.

    The job is deleted after its end, the next reconcile finds it missing and creates it: training runs again,
    and again. Taken as reconciled: objects with labels or annotations of Flux or Argo CD, and trainyard's
    own. On other jobs a TTL is fine, and says so here. Together with ExitCode it fails by itself (v1.9.4).
    """
    for item in subject.objects:
        path, value = _ttl(item)
        if value is None:
            continue
        place = Place(title(item), path, value)
        owner = _reconciled(item)
        if owner:
            yield bad(place, f"removed after {value} s and created again: {owner}", "take the TTL out")
        elif "ExitCode" in str(item.get("spec")):
            yield bad(place, "with ExitCode a failed job is never removed", "restartPolicy: OnFailure")
        else:
            yield good(place, "nothing says that this job is reconciled from git; if it is, take the TTL out")


def _ttl(item: dict[str, Any]) -> tuple[str, Any]:
    spec = item.get("spec")
    if not isinstance(spec, dict):
        return "", None
    if item.get("kind") == "PyTorchJob" and isinstance(spec.get("runPolicy"), dict):
        return "spec.runPolicy.ttlSecondsAfterFinished", spec["runPolicy"].get("ttlSecondsAfterFinished")
    if item.get("kind") == "Job":
        return "spec.ttlSecondsAfterFinished", spec.get("ttlSecondsAfterFinished")
    return "", None


def _reconciled(item: dict[str, Any]) -> str:
    """Return the sign that a reconciler owns the object, or an empty text."""
    metadata = item["metadata"]
    for kind in ("labels", "annotations"):
        for key, value in (metadata.get(kind) or {}).items():
            if str(key).startswith(GITOPS) or (key, value) == OUR_PART:
                return f"it has {key}"
    return ""


@rule("readiness", "pods that are not ready have no name, and wait for each other's names")
def readiness(subject: Subject) -> Iterator[Verdict]:
    """No readinessProbe on the training container of a job with several pods.

    The operator's services are headless and do not publish pods that are not ready. A probe that waits for
    training to run keeps worker 0 nameless, and training waits for its name.
    """
    for template in subject.training():
        path, container = template.trainer()
        if template.nodes < 2:
            continue
        place = Place(template.object, f"{path}.readinessProbe")
        if container.get("readinessProbe") is None:
            yield good(place, "pods have their names at once")
        else:
            yield bad(
                place, "the rendezvous waits for a name that readiness holds back", "use a livenessProbe"
            )


@rule("old-labels", "a selector on labels of the operator's first releases selects nothing")
def old_labels(subject: Subject) -> Iterator[Verdict]:
    """Selectors use training.kubeflow.org/job-name and the like.

    `pytorch-job-name` and `pytorch-replica-type` are labels of the former pytorch-operator; no pod has them;
    a Service, NetworkPolicy or affinity that selects by them is silently empty.
    """
    old = ("pytorch-job-name", "pytorch-replica-type", "pytorch-replica-index")
    for item in subject.objects:
        for path, key, value in _keys(item.get("spec"), "spec"):
            if key in old or (isinstance(value, str) and key == "key" and value in old):
                name = key if key in old else value
                yield bad(
                    Place(title(item), path, value),
                    f"no pod has the label {name}",
                    f"training.kubeflow.org/{str(name).removeprefix('pytorch-')}",
                )


def _keys(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}", str(key), inner
            yield from _keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _keys(inner, f"{path}[{index}]")


@rule("auto-resume", "HyperPod takes up a failed job only under its own conditions")
def auto_resume(subject: Subject) -> Iterator[Verdict]:
    """With HyperPod's auto-resume: value "true", restartPolicy OnFailure, namespace kubeflow or hyperpod*.

    Source: Amazon SageMaker HyperPod developer guide, running jobs with kubectl. Where the manifest names no
    namespace, it cannot be told.
    """
    for job in subject.jobs:
        metadata = job.item["metadata"]
        value = (metadata.get("annotations") or {}).get(AUTO_RESUME)
        if value is None:
            continue
        place = Place(job.object, f"metadata.annotations[{AUTO_RESUME}]", value)
        policies = {
            replica.get("restartPolicy") or "OnFailure"
            for replica in job.spec["pytorchReplicaSpecs"].values()
        }
        namespace = metadata.get("namespace")
        if value not in ("true", "false"):
            yield bad(place, f"{value!r} is not read as true", 'write "true", in quotes')
        elif policies != {"OnFailure"}:
            yield bad(place, f"it needs restartPolicy OnFailure, not {', '.join(policies)}", "OnFailure")
        elif namespace is None:
            yield unclear(place, "the namespace must be kubeflow or begin with hyperpod, and none is named")
        elif namespace != "kubeflow" and not namespace.startswith("hyperpod"):
            yield bad(place, f"HyperPod does not watch namespace {namespace}", "namespace: kubeflow")
        else:
            yield good(place, "auto-resume has what it needs")


@rule("queue-owner", "git and the queue overwrite each other's suspend")
def queue_owner(subject: Subject) -> Iterator[Verdict]:
    """A job in a Kueue queue does not say suspend itself.

    Kueue suspends the job on creation and starts it by clearing the field. Where git holds the field too,
    each reconcile sets it back: `false` jumps the queue, `true` stops the job that runs.
    """
    for job in subject.jobs:
        queue = (job.item["metadata"].get("labels") or {}).get(QUEUE)
        if queue is None:
            continue
        value = (job.spec.get("runPolicy") or {}).get("suspend")
        place = Place(job.object, "spec.runPolicy.suspend", value)
        if value is None:
            yield good(place, f"suspend is left to the queue {queue}")
        else:
            yield bad(
                place, f"suspend: {str(value).lower()} works against the queue {queue}", "take suspend out"
            )


@rule("signals", "a shell as first process keeps SIGTERM to itself, and the pod is killed unsaved")
def signals(subject: Subject) -> Iterator[Verdict]:
    """The trainer gets the SIGTERM of a drain: it is the container's first process.

    A shell that runs several commands stays process 1 and passes no signal on, so that after the grace period
    everything is killed and the steps since the last checkpoint are lost. `exec torchrun ...` as its last
    command replaces the shell. A script with a trap is not judged.
    """
    for template in subject.training():
        path, container = template.trainer()
        text = script(container)
        if text is None:
            continue
        place = Place(template.object, f"{path}.command", text)
        if EXEC.search(text) or "trap " in text:
            yield good(place, "the shell hands over to the trainer")
        elif _several(text):
            yield bad(
                place, "a shell with several commands keeps SIGTERM from the trainer", "exec torchrun ..."
            )
        else:
            yield good(place, "a shell replaces itself by its only command")


def _several(text: str) -> bool:
    """Say whether a script surely has several commands."""
    lines = [
        line
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|\$\([^)]*\)", "", "\n".join(lines))
    return len(lines) > 1 or bool(re.search(r";|&&|\|\|?|&\s*$", bare.strip().rstrip(";")))
