"""What the rules look at: the objects, the pods they make, the jobs and the machines they ask for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.facts.instances import INSTANCES, Instance
from tools.kube.manifests import Manifests, Object, name_of
from tools.preflight.shapes import META, OBJECTS, TEMPLATE, Misshape, misshapes
from tools.simulator import operator_pods, volcano, wiring
from tools.simulator.operator_admission import rejections
from tools.simulator.wiring import Analysis

TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
# Kinds of these names in other API groups are other things: Volcano has a Job, Calico a NetworkPolicy.
GROUPS = {
    **dict.fromkeys(("Pod", "Service", "ConfigMap", "Secret", "PersistentVolumeClaim"), ""),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps"),
    **dict.fromkeys(("Job", "CronJob"), "batch"),
    "NetworkPolicy": "networking.k8s.io",
    "PyTorchJob": "kubeflow.org",
    "HyperPodPyTorchJob": "sagemaker.amazonaws.com",
}
TRAINING = ("PyTorchJob", "HyperPodPyTorchJob")
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
EFA = "vpc.amazonaws.com/efa"
ACCELERATORS = (
    "nvidia.com/gpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "aws.amazon.com/neurondevice",
)


@dataclass(frozen=True)
class Selected:
    """The instance types that a pod may land on, and where that is written; no names: it does not say."""

    names: list[str]
    path: str

    @property
    def known(self) -> list[Instance]:
        """Return those that the fact table has."""
        return [INSTANCES[name] for name in self.bare if name in INSTANCES]

    @property
    def bare(self) -> list[str]:
        """Return the names without HyperPod's `ml.`, each once."""
        return list(dict.fromkeys(name.removeprefix("ml.") for name in self.names))

    @property
    def unknown(self) -> list[str]:
        """Return the names that the fact table does not have."""
        return [name for name in self.bare if name not in INSTANCES]


@dataclass(frozen=True)
class Template:
    """The template of some equal pods. `nodes` counts all pods of its job, not only these."""

    item: Object
    path: str  # of the template, in the object
    role: str  # Worker, Master, a HyperPod replica's name; else empty
    replicas: int
    nodes: int
    metadata: Object
    spec: Object

    @property
    def object(self) -> str:
        """Return `Kind/name`."""
        return title(self.item)

    @property
    def namespace(self) -> str:
        """Return the namespace, empty where the manifest leaves it open."""
        return str((self.item.get("metadata") or {}).get("namespace") or "")

    @property
    def training(self) -> bool:
        """Say whether these pods train: they belong to a training job, not to a service."""
        return _trains(self.item)

    @property
    def spec_path(self) -> str:
        """Return the path of the pod's spec."""
        return f"{self.path}.spec" if self.path else "spec"

    def containers(self, init: bool = True) -> list[tuple[str, Object]]:
        """Return the containers with their paths, init containers last."""
        kinds = ("containers", "initContainers") if init else ("containers",)
        return [
            (f"{self.spec_path}.{kind}[{index}]", container)
            for kind in kinds
            for index, container in enumerate(self.spec.get(kind) or [])
        ]

    def trainer(self) -> tuple[str, Object]:
        """Return the container that trains: the one named pytorch, or the first."""
        found = self.containers(init=False)
        return next((pair for pair in found if pair[1].get("name") == "pytorch"), found[0])

    def volumes(self) -> dict[str, Object]:
        """Return the volumes by name."""
        return {volume["name"]: volume for volume in self.spec.get("volumes") or []}

    @functools.cached_property
    def selected(self) -> Selected:
        """Return the instance types that the node selector and the required node affinity leave."""
        return _selected(self)


@dataclass
class Job:
    """A PyTorchJob whose pods have a sane shape, with what the operator and torchrun make of it."""

    item: Object
    templates: list[Template]
    refused: list[str]
    analysis: Analysis | None  # None where it is refused

    @property
    def object(self) -> str:
        """Return `PyTorchJob/name`."""
        return title(self.item)

    @property
    def spec(self) -> Object:
        """Return the job's spec."""
        spec: Object = self.item["spec"]
        return spec

    @property
    def nodes(self) -> int:
        """Return how many pods the job can have."""
        return max((template.nodes for template in self.templates), default=0)


@dataclass
class Subject:
    """Everything that is in one manifest, parsed once for all rules.

    `manifests` has the objects whose shape the rules can rely on, `every` all of them.
    """

    manifests: Manifests
    every: list[Object]
    templates: list[Template] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    misshapen: list[tuple[Object, Misshape]] = field(default_factory=list)

    @property
    def objects(self) -> list[Object]:
        """Return the objects of a sound shape, in file order."""
        return self.manifests.objects

    def training(self) -> list[Template]:
        """Return the templates whose pods train."""
        return [template for template in self.templates if template.training]

    def named(self, kind: str, namespace: str) -> dict[str, Object]:
        """Return the objects of a kind by name that pods in `namespace` can see."""
        return {
            name_of(item): item
            for item in self.manifests.of_kind(kind)
            if not namespace or (item["metadata"].get("namespace") or namespace) == namespace
        }


def subject(manifests: Manifests) -> Subject:
    """Look through the objects once: pods, jobs, and what has a shape that no rule could read."""
    every = [_without_nulls(item) for item in manifests.objects]
    result = Subject(Manifests(manifests.source, []), every)
    for item in every:
        faults = list(misshapes(item["metadata"], META, "metadata"))
        faults += list(misshapes(item, OBJECTS.get(known_kind(item), {}), ""))
        found, wrong = _templates(item)
        result.misshapen += [(item, fault) for fault in [*faults, *wrong]]
        if not faults and not wrong:
            result.manifests.objects.append(item)
            result.templates += found
    for item in result.manifests.jobs():
        templates = [template for template in result.templates if template.item is item]
        result.jobs.append(_job(item, templates, result.manifests))
    return result


def _without_nulls(value: Any) -> Any:
    """Return a copy without keys that are null: to the API server they are not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def known_kind(item: Object) -> str:
    """Return the kind where the rules know it, by its API group too; else an empty text."""
    kind, group = str(item.get("kind")), str(item.get("apiVersion")).rpartition("/")[0]
    return kind if GROUPS.get(kind) == group else ""


def title(item: Object) -> str:
    """Return `Kind/name` of an object."""
    return f"{item.get('kind')}/{name_of(item)}"


def _job(item: Object, templates: list[Template], manifests: Manifests) -> Job:
    refused = rejections(item, operator_pods.LATEST)
    if refused:
        return Job(item, templates, refused, None)
    # A queue starts a suspended job one day: it is judged as it will then be.
    policy = {**(item["spec"].get("runPolicy") or {}), "suspend": False}
    started = {**item, "spec": {**item["spec"], "runPolicy": policy}}
    return Job(item, templates, refused, wiring.analyse(started, manifests))


def _templates(item: Object) -> tuple[list[Template], list[Misshape]]:
    """Return the object's pod templates, or what is wrong with their shape."""
    found: list[Template] = []
    wrong: list[Misshape] = []
    elastic = 0
    for path, role, replicas, template in _places(item, wrong):
        faults = list(misshapes(template, TEMPLATE, path or "pod"))
        if not faults and not template["spec"]["containers"]:
            faults = [Misshape(f"{path or 'pod'}.spec.containers", [], "at least one container")]
        wrong += faults
        if not faults:
            metadata = template.get("metadata") or {}
            found.append(Template(item, path, role, replicas, 0, metadata, template["spec"]))
    if item.get("kind") == "PyTorchJob" and not wrong and isinstance(item.get("spec"), dict):
        bound = (item["spec"].get("elasticPolicy") or {}).get("maxReplicas")
        elastic = bound if isinstance(bound, int) else 0
    total = max(sum(template.replicas for template in found), elastic)
    return [_with_nodes(template, total) for template in found], wrong


def _with_nodes(template: Template, nodes: int) -> Template:
    own = _trains(template.item)
    return Template(
        template.item,
        template.path,
        template.role,
        template.replicas,
        nodes if own else 1,
        template.metadata,
        template.spec,
    )


def _places(item: Object, wrong: list[Misshape]) -> Iterator[tuple[str, str, int, Any]]:
    """Yield path, role, replicas and template of each pod template; add to `wrong` what is in the way."""
    kind = known_kind(item)
    if kind == "Pod":
        yield "", "", 1, {"metadata": item.get("metadata"), "spec": item.get("spec")}
    elif kind in TEMPLATES:
        path = TEMPLATES[kind]
        yield ".".join(path), "", 1, _at(item, path)
    elif kind in TRAINING:
        yield from _replica_places(item, kind, wrong)
    elif volcano.is_job(item):
        yield from _task_places(item)


def _replica_places(item: Object, kind: str, wrong: list[Misshape]) -> Iterator[tuple[str, str, int, Any]]:
    key = "pytorchReplicaSpecs" if kind == "PyTorchJob" else "replicaSpecs"
    found = item.get("spec")
    spec: Object = found if isinstance(found, dict) else {}
    replicas = spec.get(key)
    for name in ("runPolicy", "elasticPolicy"):
        if spec.get(name) is not None and not isinstance(spec[name], dict):
            wrong.append(Misshape(f"spec.{name}", spec[name], "a mapping"))
    pairs: list[tuple[str, str, Any]] = []
    if kind == "PyTorchJob" and isinstance(replicas, dict):
        pairs = [(f"spec.{key}.{role}", str(role), replica) for role, replica in replicas.items()]
    elif kind != "PyTorchJob" and isinstance(replicas, list):
        pairs = [(f"spec.{key}[{index}]", f"replica {index}", one) for index, one in enumerate(replicas)]
    if not pairs:
        wrong.append(Misshape(f"spec.{key}", replicas, "the job's replicas, at least one"))
    for path, role, replica in pairs:
        if not isinstance(replica, dict):
            wrong.append(Misshape(path, replica, "a mapping"))
            continue
        count = replica.get("replicas", 1)
        if isinstance(count, bool) or not isinstance(count, int):
            wrong.append(Misshape(f"{path}.replicas", count, "a whole number"))
            continue
        if not isinstance(replica.get("restartPolicy", ""), str):
            wrong.append(Misshape(f"{path}.restartPolicy", replica["restartPolicy"], "a text in quotes"))
        yield f"{path}.template", role, count, replica.get("template")


def _task_places(item: Object) -> Iterator[tuple[str, str, int, Any]]:
    """Yield the tasks of a Volcano Job that start torchrun; other tasks may be anything."""
    spec = item.get("spec")
    tasks = spec.get("tasks") if isinstance(spec, dict) else None
    for index, task in enumerate(tasks if isinstance(tasks, list) else []):
        if isinstance(task, dict) and _starts_torchrun(task.get("template")):
            count = task.get("replicas", 1)
            pods = count if isinstance(count, int) else 1
            yield f"spec.tasks[{index}].template", str(task.get("name") or ""), pods, task["template"]


def _starts_torchrun(template: Any) -> bool:
    containers = _at(template, ("spec", "containers")) if isinstance(template, dict) else None
    for container in containers if isinstance(containers, list) else []:
        words = [container.get("command"), container.get("args")] if isinstance(container, dict) else []
        if any(isinstance(part, list) and "torchrun" in part for part in words):
            return True
    return False


def _trains(item: Object) -> bool:
    """Say whether an object's pods train; of a Volcano Job there are no other templates here."""
    return item.get("kind") in TRAINING or volcano.is_job(item)


def _at(item: Object, path: tuple[str, ...]) -> Any:
    value: Any = item
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _selected(template: Template) -> Selected:
    """Read the node selector, or else the terms of the required affinity, which are alternatives."""
    path = template.spec_path
    selector = template.spec.get("nodeSelector") or {}
    fixed = [(label, selector[label]) for label in INSTANCE_LABELS if label in selector]
    wanted = [value for _, value in fixed]
    terms = _terms(template.spec)
    each = [_allowed(term) for term in terms]
    allowed = [name for names in each for name in names] if all(each) else []
    if fixed:
        return Selected(wanted, f"{path}.nodeSelector[{fixed[0][0]}]")
    return Selected(allowed, f"{path}.affinity.nodeAffinity")


def _terms(spec: Object) -> list[Object]:
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms: list[Object] = affinity.get("nodeSelectorTerms") or []
    return terms


def _allowed(term: Object) -> list[str]:
    lists = [
        expression.get("values") or []
        for expression in term.get("matchExpressions") or []
        if expression["key"] in INSTANCE_LABELS and expression["operator"] == "In"
    ]
    return [name for name in lists[0] if all(name in other for other in lists)] if lists else []
