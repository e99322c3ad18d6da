"""Turns any PyTorchJob into a TrainJob with a TrainingRuntime, or says why it cannot.

The pods keep their command and get the variables that the training operator gave them, with their new names:
Trainer alone gives no RANK and no WORLD_SIZE, so that a program without torchrun would train alone in each pod.
"""

import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from tools.cells.renaming import write_hosts
from tools.core import UserError, did_you_mean, output, tables
from tools.core.nested import mappings, walk
from tools.kube import Manifests, Object, quantity
from tools.kube.json_patch import difference, value_at
from tools.simulator import wiring
from tools.workload import ControllerFault, Pod, PodsUnknown, Workload, kinds
from tools.workload.indexed_job import INDEX
from tools.workload.jobset import JobSet
from tools.workload.operator_admission import DEFAULT_CONTAINER, MASTER
from tools.workload.operator_pods import DEFAULT_PORT_NAME, LABEL
from tools.workload.pod import DEFAULT_CONTAINER_NOTE
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import ANCESTOR, GROUP, NODE, PORT, RESERVED, TRAINER, TrainJob

INDEX_PATH = f"metadata.annotations['{INDEX}']"
LABEL_FIELD = re.compile(rf"metadata\.labels\['({re.escape(LABEL)}[\w-]+)'\]")
JOB_NAME, REPLICA_INDEX = f"{LABEL}job-name", f"{LABEL}replica-index"
TEXTS: dict[str, Any] = tables.load("new/texts.yaml")["migrate"]
PERMANENT = list(range(1, 128))  # the exit codes that restartPolicy ExitCode does not retry
DEFAULT_BACKOFF = 6  # of a Job
TAKEN = ("activeDeadlineSeconds", "suspend")  # of runPolicy
DROPPED: list[str] = TEXTS["dropped"]
OWN_NAMES = ("hostname", "subdomain")  # of a pod: the Job controller and JobSet write them


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
    except (ControllerFault, PodsUnknown) as problem:
        raise _cannot(job, str(problem)) from None
    template = _template(job)
    said = list(_remarks(job, template))
    spec = template["spec"]
    main = next(one for one in spec["containers"] if one.get("name") == DEFAULT_CONTAINER)
    _name_node(template)
    # Trainer's own port has no name, and would replace another one without (pkg/apply/apply.go).
    for port in main.get("ports") or []:
        port.setdefault("name", f"port-{port.get('containerPort')}-{port.get('protocol') or 'TCP'}".lower())
    hosts = {pod.name: f"{job.name}-{NODE}-0-{rank}.{job.name}" for rank, pod in enumerate(before)}
    _, own_domain = (spec.pop(key, None) for key in OWN_NAMES)
    domains = {f"{name}.{own_domain}": host for name, host in hosts.items()} if own_domain else {}
    given = list(_variables(job, before, hosts, main.get("env") or []))
    processes = _processes(before[0], main)
    runtime, train = _objects(job, template)
    own = [one for one in given if one["name"] not in RESERVED]
    said += [TEXTS["size"]] if any(one["name"] == "WORLD_SIZE" for one in own) else []
    train["spec"]["trainer"] = {"numNodes": len(before), **processes, "env": own}
    for container in spec["containers"]:
        added = [] if container is main else copy.deepcopy(given)
        entries = {one["name"]: one for one in [*(container.get("env") or []), *added]}  # the last of a name counts
        container |= {"env": list(entries.values())} if entries else {}
    objects = [*(copy.deepcopy(one) for one in manifests.objects if one is not job.item), runtime, train]
    write_hosts(objects, hosts | domains, {})
    names, labels = _label_names(job), _labels(job)
    objects = [_relabelled(one, names, labels) for one in objects]
    said += _left_behind(objects, job)
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
        raise _cannot(job, f"it is inside {job.wrapper}, whose controller starts PyTorchJobs")
    if job.refused:
        raise _cannot(job, f"it is refused as it is: {job.refused[0]}", "yard preflight -f FILE")
    for policy in (role.restart_policy for role in job.roles):
        if policy not in TEXTS["restart"]:
            hint = did_you_mean(policy, TEXTS["restart"]) or f"one of {', '.join(TEXTS['restart'])}"
            raise _cannot(job, f"there is no restartPolicy {policy}", hint)
    today = wiring.analyse(job)
    verdict = today.verdict
    if verdict.state.exit_code == 1:
        raise _cannot(job, f"it is not one world today: {verdict.summary}", verdict.remedy)
    return today


def _template(job: Workload) -> Object:
    """Return the one pod template of all roles. Raises UserError where they differ."""
    first, *others = job.roles
    for role in others:
        edit = next(difference(_without_port(first.template), _without_port(role.template)), None)
        if edit or role.restart_policy != first.restart_policy:
            keys = edit.keys if edit else ()
            where = "template" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
            where = where if edit else "restartPolicy"
            raise _cannot(job, f"{first.name} and {role.name} differ in {where}, and all nodes of a TrainJob are equal")
    template = copy.deepcopy(first.template)
    for container in [*(template["spec"].get("initContainers") or []), *template["spec"]["containers"]]:
        if container.get("name") == NODE:
            raise _cannot(job, f"a second container has the name {NODE}, which Trainer gives the one that trains")
    for container, name in _twice(template["spec"]):
        if any(f"$({name})" in str(one.get("value")) for one in container["env"]):
            raise _cannot(job, f"{name} is set more than once, and a variable reads it", "give each value its own name")
    for path, value in walk(template, "template"):
        found = LABEL_FIELD.fullmatch(value) if isinstance(value, str) else None
        if found and found[1] not in _label_names(job):
            raise _cannot(job, f"{path} reads the label {found[1]}, which its pods lack")
    return template


def _twice(spec: Object) -> Iterator[tuple[Object, str]]:
    """Yield each variable that a container sets more than once."""
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        counts = Counter(one["name"] for one in container.get("env") or [])
        yield from ((container, name) for name, count in counts.items() if count > 1)


def _without_port(template: Object) -> Object:
    """Return a copy of a template without the operator's port, which often only the Master declares."""
    made = copy.deepcopy(template)
    for container in made["spec"]["containers"]:
        ports = [one for one in container.pop("ports", None) or [] if one.get("name") != DEFAULT_PORT_NAME]
        container |= {"ports": ports} if ports else {}
    return made


def _name_node(template: Object) -> None:
    """Give the container that trains the name that Trainer fills, also where the template refers to it."""
    for _, part in list(mappings(template)):
        for key in ("containerName", DEFAULT_CONTAINER_NOTE):
            if part.get(key) == DEFAULT_CONTAINER:
                part[key] = NODE
    for container in template["spec"]["containers"]:
        if container.get("name") == DEFAULT_CONTAINER:
            container["name"] = NODE


def _variables(job: Workload, pods: Sequence[Pod], hosts: dict[str, str], own: list[Object]) -> Iterator[Object]:
    """Yield the operator's variables, which follow the job's `own`: addresses with new names, ranks by index."""
    given = [{one["name"]: one.get("value") for one in pod.container["env"][len(own) :]} for pod in pods]
    for name in given[0]:
        values = [str(each.get(name)) for each in given]
        if len(set(values)) == 1:
            yield {"name": name, "value": _moved(values[0], hosts)}
        elif values == [str(rank) for rank in range(len(pods))]:
            yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": INDEX_PATH}}}
        else:
            raise _cannot(job, f"the operator gives each pod another {name}: {', '.join(values[:3])}")
    if "PET_RDZV_ENDPOINT" in given[0] and "PET_RDZV_ID" not in {*given[0], *(one.get("name") for one in own)}:
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
    return {} if gpus and text != "cpu" else {"numProcPerNode": 1}


def _objects(job: Workload, template: Object) -> tuple[Object, Object]:
    """Return the runtime and the TrainJob, without its trainer."""
    kept = TEXTS["read"]["metadata"]
    metadata = {key: copy.deepcopy(value) for key, value in job.item["metadata"].items() if key in kept}
    for one in DROPPED:
        (metadata.get("annotations") or {}).pop(one, None)
    policy = job.section("runPolicy")
    batch, failure = _retries(job, template)
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
    spec = {key: policy[key] for key in TAKEN if policy.get(key) is not None}
    return runtime, {
        "apiVersion": TrainJob.api,
        "kind": TrainJob.kind,
        "metadata": metadata,
        "spec": {"runtimeRef": reference, **spec},
    }


def _retries(job: Workload, template: Object) -> tuple[Object, Object]:
    """Return the spec of the Job and the JobSet's failurePolicy, by the restartPolicy of the PyTorchJob."""
    policy = job.roles[0].restart_policy
    limit = job.backoff.get("backoffLimit")
    batch: Object = {"backoffLimit": DEFAULT_BACKOFF if limit is None else limit, "template": template}
    template["spec"]["restartPolicy"] = "Never" if policy in ("Never", "ExitCode") else "OnFailure"
    if template["spec"]["restartPolicy"] == "Never":
        lost: Object = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        batch["podFailurePolicy"] = {"rules": [lost]}
    if policy == "Never":
        batch["backoffLimit"] = 0  # the operator does not start a failed pod of such a job again
    if policy != "ExitCode":
        return batch, {"maxRestarts": 0}
    codes = {"containerName": NODE, "operator": "In", "values": PERMANENT}
    batch["podFailurePolicy"]["rules"].append({"action": "FailJob", "onExitCodes": codes})
    rule = {"name": "permanent", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return batch, {"maxRestarts": 0, "rules": [rule]}


def _remarks(job: Workload, template: Object) -> Iterator[str]:
    """Yield what the TrainJob does differently, and the fields that it does not have."""
    policy, elastic, restarts = job.section("runPolicy"), job.section("elasticPolicy"), job.roles[0].restart_policy
    yield from (text for key, text in TEXTS["policy"].items() if policy.get(key) is not None)
    yield from TEXTS["restart"][restarts]
    if restarts == "Never" and policy.get("backoffLimit"):
        yield TEXTS["never"].format(limit=policy["backoffLimit"])
    if restarts != "Never" and policy.get("backoffLimit") is None:
        yield TEXTS["no limit"]
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if least != most:
        yield TEXTS["elastic"].format(least=least, most=most, nodes=job.replicas)
    if job.replicas > 1 and (elastic or any(role.name == MASTER for role in job.roles)):
        yield TEXTS["success"].format(first="one Worker has" if elastic else "the Master has")
    spec = template["spec"]
    yield from (TEXTS["host"].format(key=key, value=spec[key], job=job.name) for key in OWN_NAMES if spec.get(key))
    main = next(one for one in spec["containers"] if one.get("name") == DEFAULT_CONTAINER)
    named = [
        one["name"] for one in main.get("ports") or [] if str(one.get("containerPort")) == PORT and one.get("name")
    ]
    yield from (TEXTS["port"].format(port=PORT, name=name) for name in named)
    for path, value in walk(template):
        if path.endswith(".fieldPath") and value == "metadata.name":
            yield TEXTS["pod name"].format(path=path)
    yield from (TEXTS["twice"].format(name=name, container=one["name"]) for one, name in _twice(spec))
    left = list(_left_out(job))
    if left:
        yield TEXTS["left out"].format(paths=", ".join(left))


def _left_out(job: Workload) -> Iterator[str]:
    """Yield the paths of the fields outside the pods that are not read."""
    places = dict(TEXTS["read"])
    each = places.pop("replica")
    places |= {f"spec.pytorchReplicaSpecs.{role.name}": each for role in job.roles}
    for path, fields in places.items():
        part = value_at(job.item, tuple(filter(None, path.split("."))))
        yield from (f"{path}.{key}".lstrip(".") for key in part or {} if key not in fields and part[key] is not None)
    notes = job.item["metadata"].get("annotations") or {}
    yield from (f"metadata.annotations[{one}]" for one in DROPPED if one in notes)


def _labels(job: Workload) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the operator's labels with their values, each with what a TrainJob's pod has instead."""
    labels = {(JOB_NAME, job.name): (JobSet.job_label, job.name), (f"{LABEL}job-role", "master"): (INDEX, "0")}
    if any(role.name == MASTER for role in job.roles):
        labels[f"{LABEL}replica-type", "master"] = (INDEX, "0")
    if len(job.roles) == 1:
        labels[f"{LABEL}replica-type", job.roles[0].name.lower()] = (JobSet.role_label, NODE)
        labels |= {(REPLICA_INDEX, str(at)): (INDEX, str(at)) for at in range(job.replicas)}
    return labels


def _label_names(job: Workload) -> dict[str, str]:
    """Return the operator's labels that have the same values under another name."""
    return {JOB_NAME: JobSet.job_label} | ({REPLICA_INDEX: INDEX} if len(job.roles) == 1 else {})


def _relabelled(value: Any, names: dict[str, str], labels: dict[tuple[str, str], tuple[str, str]]) -> Any:
    """Return plain data that names a label of the TrainJob's pods for each label of the operator."""
    if isinstance(value, list):
        return [names.get(one, one) if isinstance(one, str) else _relabelled(one, names, labels) for one in value]
    if isinstance(value, str):
        found = LABEL_FIELD.fullmatch(value)
        new = names.get(found[1]) if found else None
        return INDEX_PATH if new == INDEX else f"metadata.labels['{new}']" if new else value
    if not isinstance(value, dict):
        return value
    made: dict[Any, Any] = {}
    for key, inner in value.items():
        pair = (key, inner) if isinstance(inner, str) else ("", "")
        name, new = labels.get(pair) or (key, _relabelled(inner, names, labels))
        made[name] = new
    keys, key, selected = made.get("matchLabelKeys"), made.get("key"), made.get("values")
    if _are_texts(keys):
        made["matchLabelKeys"] = list(dict.fromkeys(keys))  # a cell's has both labels
    chosen = not selected or (_are_texts(selected) and any((key, one) in labels for one in selected))
    if "operator" in made and isinstance(key, str) and key in names and chosen:
        made["key"] = names[key]
    return made


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _left_behind(objects: list[Object], job: Workload) -> Iterator[str]:
    """Yield what still names a label or a pod of the PyTorchJob."""
    old = re.compile(rf"{re.escape(LABEL)}[\w-]+|(?<![\w-]){re.escape(job.name)}-(?:master|worker)(?![a-z])")
    for item in objects:
        for path, value in walk(item):
            texts = [text for text in (value if isinstance(value, dict) else [value]) if isinstance(text, str)]
            for one in filter(None, map(old.search, texts)):
                yield f"{item.get('kind')} {item['metadata']['name']} names {one[0]} in {path}, which a TrainJob lacks"
