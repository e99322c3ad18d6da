"""Turns a PyTorchJob of anybody's into a TrainJob with a TrainingRuntime, or says why it cannot.

The pods keep their command and get the variables that the training operator gave them, with their new names:
Trainer alone gives no RANK and no WORLD_SIZE, so that a program without torchrun would train alone in each pod.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.cells.renaming import write_hosts
from tools.core import UserError, output, tables
from tools.core.nested import mappings
from tools.kube import Manifests, Object, quantity
from tools.kube.json_patch import difference
from tools.simulator import wiring
from tools.workload import ControllerFault, Pod, Workload, kinds
from tools.workload.indexed_job import INDEX
from tools.workload.jobset import JobSet
from tools.workload.operator_admission import DEFAULT_CONTAINER
from tools.workload.operator_pods import DEFAULT_PORT_NAME, LABEL
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import ANCESTOR, GROUP, NODE, RESERVED, TRAINER, TrainJob

INDEX_PATH = f"metadata.annotations['{INDEX}']"
# Fields of pods, in variables: the operator's label, and what a TrainJob's pod has instead.
FIELDS = {"job-name": f"metadata.labels['{JobSet.job_label}']", "replica-index": INDEX_PATH}
KEPT = ("name", "namespace", "labels", "annotations")  # of metadata
PERMANENT = list(range(1, 128))  # the exit codes that restartPolicy ExitCode does not retry
DEFAULT_BACKOFF = 6  # of a Job
TAKEN = ("backoffLimit", "activeDeadlineSeconds", "suspend")  # of runPolicy


@dataclass(frozen=True)
class Migrated:
    """A file with a TrainJob in place of its PyTorchJob, and what is different, a sentence each."""

    manifests: Manifests
    said: list[str]

    @property
    def job(self) -> Workload:
        return kinds.job_of(self.manifests)


def migrate(manifests: Manifests) -> Migrated:
    """Return the objects of a file with its PyTorchJob as a TrainJob. Raises UserError with what prevents it."""
    job = kinds.job_of(manifests)
    today = _check(job)
    try:
        before = job.pods()
    except ControllerFault as problem:
        raise _cannot(job, str(problem)) from None
    template = _template(job)
    said = list(_remarks(job))
    spec = template["spec"]
    main = next(one for one in spec["containers"] if one.get("name") == DEFAULT_CONTAINER)
    main["name"] = NODE
    hosts = {pod.name: f"{job.name}-{NODE}-0-{rank}.{job.name}" for rank, pod in enumerate(before)}
    given = list(_variables(job, before, hosts, len(main.get("env") or [])))
    processes = _processes(before[0], main)
    policy = job.roles[0].restart_policy
    made: Object = {"backoffLimit": job.backoff.get("backoffLimit", DEFAULT_BACKOFF), "template": template}
    spec["restartPolicy"] = {"Never": "Never", "ExitCode": "Never"}.get(policy, "OnFailure")
    failure: Object = {"maxRestarts": 0}
    if policy == "ExitCode":
        codes = {"containerName": NODE, "operator": "In", "values": PERMANENT}
        made["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
        rule = {"name": "permanent", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        failure["rules"] = [rule]
    runtime, train = _objects(job, made, failure)
    train["spec"]["trainer"] = {"numNodes": len(before), **processes, "env": given}
    objects = [copy.deepcopy(one) for one in manifests.objects if one is not job.item]
    objects = [*objects, runtime, train]
    write_hosts(objects, hosts, {})
    said += _relabelled(objects, job)
    migrated = Migrated(Manifests(manifests.source, objects), said)
    if migrated.job.refused:
        raise _cannot(job, f"the TrainJob would be refused: {migrated.job.refused[0]}")
    said += _resized(today, wiring.analyse(migrated.job))
    return migrated


def _resized(before: wiring.Analysis, after: wiring.Analysis) -> Iterator[str]:
    """Yield that the world has another size than today."""
    old, new = (wiring.world_size(one.nodes) if one.one_world else None for one in (before, after))
    if before.one_world and new is not None and new != old:
        today = old or "as many as torchrun counts devices or processors"
        yield f"the world has {output.count(new, 'rank')} instead of {today}"


def _cannot(job: Workload, why: str, hint: str | None = None) -> UserError:
    return UserError(f"{job.title} cannot become a TrainJob: {why}", hint, 1)


def _check(job: Workload) -> wiring.Analysis:
    """Return the wiring of today. Raises UserError for a job that is not a PyTorchJob, is refused, or not one world."""
    if not isinstance(job, PyTorchJob):
        raise UserError(f"{job.title} is not a PyTorchJob", "yard wiring judges a job of any kind")
    job.check_shape()
    if job.wrapper:
        raise _cannot(job, f"it stands in {job.wrapper}, whose controller starts PyTorchJobs")
    if job.refused:
        raise _cannot(job, f"it is refused as it is: {job.refused[0]}", "yard preflight -f FILE")
    today = wiring.analyse(job)
    verdict = today.verdict
    if verdict.state.exit_code == 1:
        raise _cannot(job, f"it is not one world today: {verdict.summary}", verdict.remedy)
    if job.section("runPolicy").get("managedBy"):
        raise _cannot(job, "spec.runPolicy.managedBy: another cluster makes its pods")
    return today


def _template(job: Workload) -> Object:
    """Return the one pod template of all roles. Raises UserError where they differ."""
    first, *others = job.roles
    template = _without_port(first.template)
    for role in others:
        edit = next(difference(template, _without_port(role.template)), None)
        if edit or role.restart_policy != first.restart_policy:
            keys = edit.keys if edit else ()
            where = "template" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
            where = where if edit else "restartPolicy"
            raise _cannot(job, f"{first.name} and {role.name} differ in {where}, and all nodes of a TrainJob are equal")
    for container in [*(template["spec"].get("initContainers") or []), *template["spec"]["containers"]]:
        if container.get("name") == NODE:
            raise _cannot(job, f"a second container has the name {NODE}, which Trainer gives the one that trains")
        for entry in container.get("env") or []:
            _move_field(job, entry)
    return template


def _without_port(template: Object) -> Object:
    """Return a copy of a template without the operator's port, which often only the Master declares."""
    made = copy.deepcopy(template)
    for container in made["spec"]["containers"]:
        ports = [one for one in container.pop("ports", None) or [] if one.get("name") != DEFAULT_PORT_NAME]
        container |= {"ports": ports} if ports else {}
    return made


def _move_field(job: Workload, entry: Object) -> None:
    """Let a variable read the label that a TrainJob's pod has in place of the operator's."""
    field = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    found = re.fullmatch(rf"metadata\.labels\['{re.escape(LABEL)}([\w-]+)'\]", str(field.get("fieldPath")))
    if found is None:
        return
    if found[1] not in FIELDS:
        raise _cannot(job, f"the variable {entry['name']} reads the label {LABEL}{found[1]}, which its pods lack")
    field["fieldPath"] = FIELDS[found[1]]


def _variables(job: Workload, pods: Sequence[Pod], hosts: dict[str, str], own: int) -> Iterator[Object]:
    """Yield the operator's variables, which follow `own` others: addresses with new names, ranks by index."""
    given = [{one["name"]: one.get("value") for one in pod.container["env"][own:]} for pod in pods]
    for name in given[0]:
        values = [str(each.get(name)) for each in given]
        if name in RESERVED:
            continue
        if len(set(values)) == 1:
            yield {"name": name, "value": _moved(values[0], hosts)}
        elif values == [str(rank) for rank in range(len(pods))]:
            yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": INDEX_PATH}}}
        else:
            raise _cannot(job, f"the operator gives each pod another {name}: {', '.join(values[:3])}")
    if "PET_RDZV_ENDPOINT" in given[0] and "PET_RDZV_ID" not in given[0]:
        yield {"name": "PET_RDZV_ID", "value": job.name}


def _moved(text: str, hosts: dict[str, str]) -> str:
    """Return an address with the new name of its pod."""
    host, colon, port = text.partition(":")
    return f"{hosts.get(host, host)}{colon}{port}"


def _processes(pod: Pod, container: Object) -> Object:
    """Return numProcPerNode as an int, or nothing where Trainer's `auto` means the GPUs as well."""
    given = {one["name"]: str(one.get("value")) for one in pod.container.get("env") or []}
    text = given.get("PET_NPROC_PER_NODE", "1")
    if text.isdecimal():
        return {"numProcPerNode": int(text)}
    resources = (container.get("resources") or {}).get("limits") or {}
    gpus = sum(int(quantity.quantity(str(amount)) or 0) for name, amount in resources.items() if name.endswith("/gpu"))
    return {} if gpus else {"numProcPerNode": 1}


def _objects(job: Workload, batch: Object, failure: Object) -> tuple[Object, Object]:
    """Return the runtime and the TrainJob, without its trainer."""
    metadata = {key: copy.deepcopy(value) for key, value in job.item["metadata"].items() if key in KEPT}
    policy = job.section("runPolicy")
    replicated = {"name": NODE, "template": {"metadata": {"labels": {ANCESTOR: TRAINER}}, "spec": batch}}
    place = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    runtime: Object = {
        "apiVersion": TrainJob.api,
        "kind": "TrainingRuntime",
        "metadata": {**place, "labels": {f"{GROUP}/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"failurePolicy": failure, "replicatedJobs": [replicated]}},
        },
    }
    reference = {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": job.name}
    spec = {key: policy[key] for key in TAKEN[1:] if policy.get(key) is not None}
    return runtime, {
        "apiVersion": TrainJob.api,
        "kind": TrainJob.kind,
        "metadata": metadata,
        "spec": {"runtimeRef": reference, **spec},
    }


def _remarks(job: Workload) -> Iterator[str]:
    """Yield what the TrainJob does differently."""
    texts: dict[str, str] = tables.load("new/texts.yaml")["migrate"]
    policy, elastic = job.section("runPolicy"), job.section("elasticPolicy")
    yield from (texts[key] for key in texts if policy.get(key) is not None)
    if policy.get("backoffLimit") is None:
        yield texts["no limit"]
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if least != most:
        yield texts["elastic"].format(least=least, most=most, nodes=job.replicas)


def _relabelled(objects: list[Object], job: Workload) -> Iterator[str]:
    """Let selectors of other objects find the TrainJob's pods; yield those that cannot."""
    old = f"{LABEL}job-name"
    for item in objects:
        for _, labels in list(mappings(item)):
            if labels.get(old) == job.name:
                labels[JobSet.job_label] = labels.pop(old)
            left = [key for key in labels if str(key).startswith(LABEL)]
            if left:
                named = f"{item.get('kind')} {item['metadata']['name']}"
                yield f"{named} names {left[0]}, which the pods of a TrainJob lack"
