"""Rules on how a job starts, restarts and ends."""

from collections.abc import Iterator
from typing import Any

from tools.core.nested import mappings
from tools.core.verdict import Verdict, bad, doubtful, good, unclear
from tools.facts.compatibility import outside_hyperpod
from tools.kube.json_patch import value_at
from tools.kube.manifests import Object
from tools.preflight.rule import Place, rule
from tools.preflight.rules.enums import RESTART
from tools.preflight.subject import Job, Subject, Template, title
from tools.simulator import launch
from tools.simulator.command_line import command, literals, script
from tools.simulator.launch import Launch
from tools.simulator.torchrun import BadOptions
from tools.workload.indexed_job import IndexedJob
from tools.workload.trainjob import jobset_of
from tools.workload.volcano import VolcanoJob
from tools.workload.workload import QUEUE_LABEL

GITOPS = ("kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "argocd.argoproj.io/")
PART_OF_TRAINYARD = ("app.kubernetes.io/part-of", "trainyard")
AUTO_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
EXEC = "exec torchrun ... as the last command"
PUBLISHED = "publishNotReadyAddresses"  # of a Service, and of a JobSet
RUNTIME_TTL = "spec.template.spec.ttlSecondsAfterFinished"  # of the JobSet that Trainer makes


@rule("restart-policy")
def restart_policy(subject: Subject) -> Iterator[Verdict]:
    for template in subject.training():
        if isinstance(template.workload, VolcanoJob):
            value = template.spec.get("restartPolicy") or "not set, so Always"
            place = Place(template.object, f"{template.spec_path}.restartPolicy", value)
            if value.endswith("Always"):
                yield bad(place, "Always: the task can never complete", "restartPolicy: Never")
            else:
                yield good(place, f"{value} is a valid restart policy for this job")
    for job in subject.operator_jobs():
        nodes = job.analysis.nodes if job.analysis else []
        for role, replica in (job.spec.get("pytorchReplicaSpecs") or {}).items():
            value = replica.get("restartPolicy") or "OnFailure"
            place = Place(job.object, f"spec.pytorchReplicaSpecs.{role}.restartPolicy", value)
            if value == "Always":
                yield bad(place, "Always: the job can never succeed", "restartPolicy: OnFailure")
            elif value == "ExitCode" and any(node.launch.torchrun for node in nodes):
                fault = "with torchrun: every fault is permanent, because torchrun always exits with 1"
                if any(node.launch.behind_entrypoint for node in nodes):
                    fault = "retries without limit: each retry is a new pod, which backoffLimit does not count"
                yield bad(place, f"ExitCode {fault}", "restartPolicy: OnFailure")
            elif value in (*RESTART, "ExitCode"):
                yield good(place, f"{value} is a valid restart policy for this job")


@rule("clean-pods")
def clean_pods(subject: Subject) -> Iterator[Verdict]:
    for job in subject.jobs:
        if isinstance(job.workload, VolcanoJob) and job.nodes > 1:
            yield _after_a_failed_pod(job)
    for job in subject.operator_jobs():
        value = (job.spec.get("runPolicy") or {}).get("cleanPodPolicy")
        place = Place(job.object, "spec.runPolicy.cleanPodPolicy", value or "not set, so None")
        if job.nodes < 2:
            continue
        if value in (None, "None"):
            summary = f"{job.nodes} pods, and the remaining ones are not removed when one ends"
            yield bad(place, summary, "cleanPodPolicy: Running")
        else:
            yield good(place, "the remaining pods are removed")


def _after_a_failed_pod(job: Job) -> Verdict:
    holders = [job.spec, *job.spec["tasks"]]
    policies = [one for holder in holders for one in holder.get("policies") or []]
    events = {str(event) for one in policies for event in (one.get("event"), *(one.get("events") or []))}
    place = Place(job.object, "spec.policies", ", ".join(sorted(events - {"None"})) or "not set")
    if events & {"*", "PodFailed", "TaskFailed"} or any("exitCode" in one for one in policies):
        return good(place, "the job acts on a failed pod")
    remedy = "policies: [{event: PodFailed, action: RestartJob}]"
    return bad(place, f"{job.nodes} pods, and the remaining ones wait for one that has failed", remedy)


@rule("backoff-limit", each="operator_jobs")
def backoff_limit(subject: Subject, job: Job) -> Iterator[Verdict]:
    replicas = (job.spec.get("pytorchReplicaSpecs") or {}).values()
    if all(replica.get("restartPolicy") == "Never" for replica in replicas):
        return
    value = (job.spec.get("runPolicy") or {}).get("backoffLimit")
    place = Place(job.object, "spec.runPolicy.backoffLimit", "not set" if value is None else value)
    if value is None:
        yield bad(place, "restarts have no limit", f"backoffLimit: {3 * job.nodes}")
    elif isinstance(value, int) and 0 < value < job.nodes:
        summary = f"{value} restarts for {job.nodes} pods: one lost rendezvous host uses up {job.nodes}"
        yield bad(place, summary, f"backoffLimit: {3 * job.nodes}")
    else:
        yield good(place, "restarts are limited")


@rule("ttl", each="objects")
def ttl(subject: Subject, item: Object) -> Iterator[Verdict]:
    path, value = _ttl(item)
    if value is None:
        return
    place = Place(title(item), path, value)
    sign = _reconciled(item)
    if path == RUNTIME_TTL:
        summary = "Trainer creates a JobSet again that its TTL has removed, with all its retries"
        yield bad(place, summary, "remove ttlSecondsAfterFinished")
    elif sign:
        summary = f"removed after {value} s and created again: it has {sign}"
        yield bad(place, summary, "remove ttlSecondsAfterFinished")
    elif "ExitCode" in str(item.get("spec")):
        yield bad(place, "with ExitCode a failed job is never removed", "restartPolicy: OnFailure")
    else:
        yield good(place, "nothing shows that this job is reconciled from git; if it is, remove the TTL")


def _ttl(item: Object) -> tuple[str, Any]:
    spec = item.get("spec")
    if not isinstance(spec, dict):
        return "", None
    if item.get("kind") == "PyTorchJob" and isinstance(spec.get("runPolicy"), dict):
        return "spec.runPolicy.ttlSecondsAfterFinished", spec["runPolicy"].get("ttlSecondsAfterFinished")
    if item.get("kind") in ("Job", "JobSet"):
        return "spec.ttlSecondsAfterFinished", spec.get("ttlSecondsAfterFinished")
    if item.get("kind") in ("TrainingRuntime", "ClusterTrainingRuntime"):
        return RUNTIME_TTL, value_at(item, tuple(RUNTIME_TTL.split(".")))
    return "", None


def _reconciled(item: Object) -> str:
    """Return the label or annotation that shows that a reconciler owns the object, or an empty text."""
    metadata = item["metadata"]
    for kind in ("labels", "annotations"):
        for key, value in (metadata.get(kind) or {}).items():
            if str(key).startswith(GITOPS) or (key, value) == PART_OF_TRAINYARD:
                return str(key)
    return ""


@rule("readiness", each="training")
def readiness(subject: Subject, template: Template) -> Iterator[Verdict]:
    path, container = template.trainer()
    if template.nodes < 2:
        return
    place = Place(template.object, f"{path}.readinessProbe")
    if container.get("readinessProbe") is None or _publishes(template):
        yield good(place, "the pods have their names immediately")
    else:
        yield bad(place, "the rendezvous waits for a name that the probe withholds", "use a livenessProbe")


def _publishes(template: Template) -> bool:
    """Return whether pods have names before they are ready: a JobSet's by default, others if their Service says so."""
    job = template.workload
    if (made := jobset_of(job)) is not None:
        return made.section("network").get(PUBLISHED) is not False
    if isinstance(job, VolcanoJob):
        return any("publish-not-ready-addresses=true" in str(one) for one in job.section("plugins").get("svc") or ())
    name = str(template.spec.get("subdomain"))
    service = job.manifests.named("Service", name, template.namespace) if isinstance(job, IndexedJob) else None
    return value_at(service, ("spec", PUBLISHED)) is True


@rule("old-labels")
def old_labels(subject: Subject) -> Iterator[Verdict]:
    old = ("pytorch-job-name", "pytorch-replica-type", "pytorch-replica-index")
    for item in subject.objects:
        fields = ((path, *one) for path, part in mappings(item.get("spec"), "spec") for one in part.items())
        for path, key, value in fields:
            if key in old or (isinstance(value, str) and key == "key" and value in old):
                name = str(key if key in old else value)
                place = Place(title(item), f"{path}.{key}", value)
                remedy = f"training.kubeflow.org/{name.removeprefix('pytorch-')}"
                yield bad(place, f"no pod has the label {name}", remedy)


@rule("auto-resume", each="operator_jobs")
def auto_resume(subject: Subject, job: Job) -> Iterator[Verdict]:
    metadata = job.item["metadata"]
    value = (metadata.get("annotations") or {}).get(AUTO_RESUME)
    if value is None:
        return
    place = Place(job.object, f"metadata.annotations[{AUTO_RESUME}]", value)
    replicas = job.spec["pytorchReplicaSpecs"].values()
    policies = {replica.get("restartPolicy") or "OnFailure" for replica in replicas}
    namespace = metadata.get("namespace")
    if value not in ("true", "false"):
        yield bad(place, f"{value!r} does not count as true", 'write "true", in quotes')
    elif policies != {"OnFailure"}:
        summary = f"auto-resume needs restartPolicy OnFailure, not {', '.join(policies)}"
        yield bad(place, summary, "restartPolicy: OnFailure")
    elif namespace is None:
        yield good(place, "the conditions are met in the namespace kubeflow, or one that begins with hyperpod")
    elif namespace != "kubeflow" and not namespace.startswith("hyperpod"):
        yield bad(place, f"HyperPod does not watch namespace {namespace}", "namespace: kubeflow")
    elif outside := outside_hyperpod("auto-resume", {"training operator": [subject.operator]}):
        yield doubtful(place, f"AWS does not document auto-resume for {outside[0]}", "yard job retry")
    else:
        yield subject.by_operator(good(place, "the conditions of auto-resume are met"))


@rule("queue-owner", each="operator_jobs")
def queue_owner(subject: Subject, job: Job) -> Iterator[Verdict]:
    queue = job.workload.queue
    if not queue:
        return
    value = (job.spec.get("runPolicy") or {}).get("suspend")
    place = Place(job.object, "spec.runPolicy.suspend", value)
    if value is None:
        yield good(place, f"the queue {queue} controls suspend")
    else:
        yield bad(place, f"suspend: {str(value).lower()} conflicts with the queue {queue}", "remove suspend")


@rule("suspended", each="jobs")
def suspended(subject: Subject, job: Job) -> Iterator[Verdict]:
    holders = [("spec.runPolicy", job.spec.get("runPolicy") or {}), ("spec", job.spec)]
    path = next((path for path, holder in holders if holder.get("suspend") is True), None)
    if path is None or job.workload.wrapper:
        return
    place = Place(job.object, f"{path}.suspend", True)
    if job.workload.queue:
        yield good(place, f"the queue {job.workload.queue} starts the job")
    else:
        yield bad(place, "suspended, and no queue starts it", f"remove suspend, or add the label {QUEUE_LABEL}")


@rule("signals")
def signals(subject: Subject) -> Iterator[Verdict]:
    for _, place, found in _shell_launches(subject):
        if found.signalled:
            yield good(place, f"{found.launcher} receives SIGTERM: {found.why}")
        elif found.signalled is None:
            program, why = found.launcher or "the trainer", found.why or found.unknown
            yield unclear(place, f"whether {program} receives SIGTERM is not known: {why}", EXEC)
        else:
            yield bad(place, f"{found.launcher} does not receive SIGTERM: {found.why}", EXEC)


@rule("exit-code")
def exit_code(subject: Subject) -> Iterator[Verdict]:
    for template in subject.training():
        for path, container in template.containers(init=False):
            if container is not template.trainer()[1]:
                place = Place(template.object, path, container["name"])
                summary = f"the pod, and with it the job, ends only when the container {container['name']} ends"
                yield doubtful(place, summary, "an init container with restartPolicy: Always, unless it ends by itself")
    for _, place, found in _shell_launches(subject):
        if found.lost:
            summary = f"a failure of {found.launcher} is not seen: {found.lost}"
            yield bad(place, summary, "set -eo pipefail, and no `|| true`")
        elif found.signalled is not None:
            yield good(place, f"the container ends with the exit code of {found.launcher}")


def _shell_launches(subject: Subject) -> Iterator[tuple[Template, Place, Launch]]:
    """Yield the training templates that start with a shell, and what their containers start."""
    for template in subject.training():
        path, container = template.trainer()
        text = script(container)
        if text is None:
            continue
        node = subject.node_of(template)
        try:
            found = node.launch if node else launch.read(command(container), literals(container))
        except BadOptions:
            continue  # the rule `wiring` names them
        yield template, Place(template.object, f"{path}.command", text), found
