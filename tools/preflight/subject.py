"""What the rules check: the objects of a manifest, their pods, jobs and instance types."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from tools.facts.instances import EFA, INSTANCES, NEURON, NVIDIA, Instance
from tools.kube.manifests import Manifests, Object, name_of
from tools.kube.quantity import pod_requests
from tools.kube.selectors import node_terms
from tools.preflight.shapes import META, OBJECTS, TEMPLATE, Misshape, misshapes
from tools.simulator import operator_pods, volcano, wiring
from tools.simulator.operator_admission import OperatorFault, rejections
from tools.simulator.operator_pods import Pod
from tools.simulator.wiring import Analysis

TEMPLATES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"), ("spec", "template")),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
# Other API groups have other kinds of these names: Volcano has a Job, Calico a NetworkPolicy.
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
NEURON_CORE, NEURON_DEVICE = f"{NEURON}core", f"{NEURON}device"
ACCELERATORS = (NVIDIA, NEURON, NEURON_CORE, NEURON_DEVICE)


@dataclass(frozen=True)
class Selected:
    """The instance types that a pod may run on, and the path of the selector. No names: not restricted."""

    names: list[str]
    path: str

    @property
    def known(self) -> list[Instance]:
        return [INSTANCES[name] for name in self.bare if name in INSTANCES]

    @property
    def bare(self) -> list[str]:
        """Return the names without HyperPod's prefix `ml.`."""
        return list(dict.fromkeys(name.removeprefix("ml.") for name in self.names))

    @property
    def unknown(self) -> list[str]:
        return [name for name in self.bare if name not in INSTANCES]


@dataclass(frozen=True)
class Template:
    """A pod template. `nodes` is the number of pods of the whole job."""

    item: Object
    path: str  # of the template, in the object
    role: str  # the replica type (Worker, Master, ...), else empty
    replicas: int
    nodes: int
    metadata: Object
    spec: Object

    @property
    def object(self) -> str:
        return title(self.item)

    @property
    def namespace(self) -> str:
        """Return the namespace, or an empty text if the manifest does not set it."""
        return str((self.item.get("metadata") or {}).get("namespace") or "")

    @property
    def training(self) -> bool:
        return _trains(self.item)

    @property
    def spec_path(self) -> str:
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
        """Return the training container with its path: the one named pytorch, or the first."""
        pairs = self.containers(init=False)
        return next((pair for pair in pairs if pair[1].get("name") == "pytorch"), pairs[0])

    def volumes(self) -> dict[str, Object]:
        return {volume["name"]: volume for volume in self.spec.get("volumes") or []}

    @functools.cached_property
    def selected(self) -> Selected:
        """Return the instance types that the node selector and the required node affinity allow."""
        return _selected(self)

    @functools.cached_property
    def requests(self) -> dict[str, Decimal]:
        """Return what one pod requests, by resource."""
        return pod_requests(self.spec)

    def asks(self, resource: str) -> Decimal:
        return self.requests.get(resource, Decimal(0))

    def accelerators(self) -> tuple[str, Decimal]:
        """Return the accelerator resource that one pod requests and how many, or an empty name."""
        return next(
            ((name, self.asks(name)) for name in ACCELERATORS if self.asks(name) > 0), ("", Decimal(0))
        )

    @property
    def efa(self) -> Decimal:
        """Return how many EFA interfaces one pod requests."""
        return self.asks(EFA)


@dataclass
class Job:
    """A PyTorchJob whose pods have a valid shape, with the results of the operator's and torchrun's rules.

    A queue starts a suspended job later. The pods and the analysis are those of the started job.
    """

    item: Object
    templates: list[Template]
    refused: list[str]  # the reasons why the operator refuses the job
    pods: list[Pod]  # empty if it is refused
    analysis: Analysis | None  # None if it is refused

    @property
    def object(self) -> str:
        return title(self.item)

    @property
    def spec(self) -> Object:
        spec: Object = self.item["spec"]
        return spec

    @property
    def nodes(self) -> int:
        """Return the largest number of pods of the job."""
        return max((template.nodes for template in self.templates), default=0)


@dataclass
class Subject:
    """One manifest, parsed once for all rules. `every` has all objects, `objects` those of a valid shape."""

    manifests: Manifests
    every: list[Object]
    templates: list[Template] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    misshapen: list[tuple[Object, Misshape]] = field(default_factory=list)

    @property
    def objects(self) -> list[Object]:
        return self.manifests.objects

    def training(self) -> list[Template]:
        return [template for template in self.templates if template.training]

    def templates_of(self, item: Object) -> list[Template]:
        return [template for template in self.templates if template.item is item]

    def job_of(self, template: Template) -> Job | None:
        return next((job for job in self.jobs if job.item is template.item), None)

    def named(self, kind: str, namespace: str) -> dict[str, Object]:
        """Return the objects of a kind that pods in `namespace` can see, by name."""
        return {
            name_of(item): item
            for item in self.manifests.of_kind(kind)
            if not namespace or (item["metadata"].get("namespace") or namespace) == namespace
        }


def subject(manifests: Manifests) -> Subject:
    """Return the pods and jobs of a manifest, and the values of a wrong type."""
    every = [_without_nulls(item) for item in manifests.objects]
    result = Subject(Manifests(manifests.source, []), every)
    for item in every:
        faults = list(misshapes(item["metadata"], META, "metadata"))
        faults += list(misshapes(item, OBJECTS.get(known_kind(item), {}), ""))
        templates, wrong = _templates(item)
        result.misshapen += [(item, fault) for fault in [*faults, *wrong]]
        if not faults and not wrong:
            result.manifests.objects.append(item)
            result.templates += templates
    result.jobs += [
        _job(item, result.templates_of(item), result.manifests) for item in result.manifests.jobs()
    ]
    return result


def _without_nulls(value: Any) -> Any:
    """Return a copy without null values: the API server drops them."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def known_kind(item: Object) -> str:
    """Return the kind if the rules know it and its API group, else an empty text."""
    kind, group = str(item.get("kind")), str(item.get("apiVersion")).rpartition("/")[0]
    return kind if GROUPS.get(kind) == group else ""


def title(item: Object) -> str:
    return f"{item.get('kind')}/{name_of(item)}"


def texts(value: Any, skip: Sequence[str] = (), path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string in an object with its path, except those below the keys `skip`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in skip:
                yield from texts(inner, skip, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, skip, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


def _job(item: Object, templates: list[Template], manifests: Manifests) -> Job:
    refused = rejections(item, operator_pods.LATEST)
    if refused:
        return Job(item, templates, refused, [], None)
    policy = {**(item["spec"].get("runPolicy") or {}), "suspend": False}
    started = {**item, "spec": {**item["spec"], "runPolicy": policy}}
    try:
        pods = operator_pods.pods(started)
    except OperatorFault:
        pods = []
    return Job(item, templates, refused, pods, wiring.analyse(started, manifests))


def _templates(item: Object) -> tuple[list[Template], list[Misshape]]:
    """Return the object's pod templates, and the values of a wrong type in them."""
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
        policy = item["spec"].get("elasticPolicy")
        bound = policy.get("maxReplicas") if isinstance(policy, dict) else 0
        elastic = bound if isinstance(bound, int) else 0
    nodes = max(sum(template.replicas for template in found), elastic) if _trains(item) else 1
    return [replace(template, nodes=nodes) for template in found], wrong


def _places(item: Object, wrong: list[Misshape]) -> Iterator[tuple[str, str, int, Any]]:
    """Yield path, role, replicas and template of each pod template. Add values of a wrong type to `wrong`."""
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
    spec: Object = item["spec"] if isinstance(item.get("spec"), dict) else {}
    replicas = spec.get(key)
    pairs: list[tuple[str, str, Any]] = []
    if kind == "PyTorchJob" and isinstance(replicas, dict):
        pairs = [(f"spec.{key}.{role}", str(role), replica) for role, replica in replicas.items()]
    elif kind != "PyTorchJob" and isinstance(replicas, list):
        pairs = [(f"spec.{key}[{index}]", f"replica {index}", one) for index, one in enumerate(replicas)]
    if not pairs:
        wrong.append(Misshape(f"spec.{key}", replicas, "at least one replica type"))
    for path, role, replica in pairs:
        if isinstance(replica, dict) and isinstance(replica.get("replicas", 1), int):
            yield f"{path}.template", role, replica.get("replicas", 1), replica.get("template")


def _task_places(item: Object) -> Iterator[tuple[str, str, int, Any]]:
    """Yield the tasks of a Volcano Job that start torchrun."""
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
    return item.get("kind") in TRAINING or volcano.is_job(item)


def _at(item: Object, path: tuple[str, ...]) -> Any:
    value: Any = item
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _selected(template: Template) -> Selected:
    """Read the node selector, or else the terms of the required affinity, which are alternatives."""
    selector = template.spec.get("nodeSelector") or {}
    labels = [label for label in INSTANCE_LABELS if label in selector]
    if labels:
        names = [selector[label] for label in labels]
        return Selected(names, f"{template.spec_path}.nodeSelector[{labels[0]}]")
    each = [_allowed(term) for term in node_terms(template.spec) or []]
    allowed = [name for names in each for name in names] if all(each) else []
    return Selected(allowed, f"{template.spec_path}.affinity.nodeAffinity")


def _allowed(term: Object) -> list[str]:
    lists = [
        expression.get("values") or []
        for expression in term.get("matchExpressions") or []
        if expression["key"] in INSTANCE_LABELS and expression["operator"] == "In"
    ]
    return [name for name in lists[0] if all(name in other for other in lists)] if lists else []
