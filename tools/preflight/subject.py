"""What the rules check: the objects of a manifest, their pods, jobs and instance types."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from tools.cells.published import Published
from tools.core.verdict import Verdict
from tools.facts.instances import EFA, INSTANCES, NEURON, NVIDIA, Instance
from tools.kube.manifests import Manifests, Object, name_of
from tools.kube.quantity import pod_requests
from tools.kube.selectors import node_terms
from tools.kube.shapes import META, OBJECTS, TEMPLATE, Misshape, misshapes
from tools.simulator import wiring
from tools.simulator.wiring import Analysis
from tools.workload import kinds
from tools.workload.kinds import Unknown
from tools.workload.pod import ControllerFault, Pod, PodsUnknown
from tools.workload.workload import Workload

# Other API groups have other kinds of these names: Volcano has a Job, Calico a NetworkPolicy.
GROUPS = {
    **dict.fromkeys(("Pod", "Service", "ConfigMap", "Secret", "PersistentVolumeClaim"), ""),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps"),
    "CronJob": "batch",
    "NetworkPolicy": "networking.k8s.io",
}
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
    """A pod template. `nodes` is the number of pods that train together, 1 for other pods."""

    item: Object
    path: str  # of the template, in the object
    role: str  # the replica type (Worker, Master, ...), else empty
    replicas: int
    nodes: int
    metadata: Object
    spec: Object
    workload: Workload | None = None  # whose template it is, None for an ordinary object
    training: bool = False  # whether the pods are ranks of a distributed training

    @property
    def object(self) -> str:
        return title(self.item)

    @property
    def namespace(self) -> str:
        """Return the namespace, or an empty text if the manifest does not set it."""
        return str((self.item.get("metadata") or {}).get("namespace") or "")

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
        """Return the training container with its path, by the rule of the workload's kind."""
        pairs = self.containers(init=False)
        if self.workload is None:
            return pairs[0]
        wanted = self.workload.container_of({"metadata": self.metadata, "spec": self.spec})
        return next((pair for pair in pairs if pair[1].get("name") == wanted), pairs[0])

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
    """A training of any kind whose pods have a valid shape, with the results of its controller's and the
    launcher's rules.

    A queue starts a suspended job later. The pods and the analysis are those of the started job.
    """

    workload: Workload
    templates: list[Template]
    pods: list[Pod]  # empty if it is refused or its pods are unknown
    analysis: Analysis | None  # None if it is refused

    @property
    def item(self) -> Object:
        return self.workload.item

    @property
    def object(self) -> str:
        return title(self.item)

    @property
    def refused(self) -> list[str]:
        """Return the reasons why the API server or a webhook refuses the job."""
        return self.workload.refused

    @property
    def spec(self) -> Object:
        return self.workload.spec

    @property
    def nodes(self) -> int:
        """Return the largest number of ranks' pods of the job."""
        return self.workload.nodes


@dataclass
class Subject:
    """One manifest, parsed once for all rules.

    `every` has all objects, with those inside wrappers, and `objects` those of a valid shape.
    """

    manifests: Manifests
    every: list[Object]
    templates: list[Template] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    misshapen: list[tuple[Object, Misshape]] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)  # what runs pods, or may, and is not modelled
    inside: dict[str, tuple[str, str]] = field(default_factory=dict)  # title: wrapper and path in it
    base: Published | None = None  # what the model's config.json says, for the rule `config`

    @property
    def objects(self) -> list[Object]:
        return self.manifests.objects

    def training(self) -> list[Template]:
        return [template for template in self.templates if template.training]

    def operator_jobs(self) -> list[Job]:
        """Return the PyTorchJobs, for the rules about the training operator's fields."""
        return [job for job in self.jobs if job.workload.kind == "PyTorchJob"]

    def templates_of(self, item: Object) -> list[Template]:
        return [template for template in self.templates if template.item is item]

    def job_of(self, template: Template) -> Job | None:
        return next((job for job in self.jobs if job.item is template.item), None)

    def located(self, verdict: Verdict) -> Verdict:
        """Return a verdict on an object inside a wrapper with the wrapper and the path in it."""
        name = str(verdict.details.get("object"))
        if name not in self.inside:
            return verdict
        wrapper, prefix = self.inside[name]
        path = f"{prefix}{verdict.details.get('path', '')}"
        before, after = f"{name}: ", f"{wrapper}: {prefix}"
        evidence = [
            after + line.removeprefix(before) if line.startswith(before) else line
            for line in verdict.evidence
        ]
        return replace(
            verdict, evidence=evidence, details={**verdict.details, "object": wrapper, "path": path}
        )

    def named(self, kind: str, namespace: str) -> dict[str, Object]:
        """Return the objects of a kind that pods in `namespace` can see, by name."""
        return {
            name_of(item): item
            for item in self.manifests.of_kind(kind)
            if not namespace or (item["metadata"].get("namespace") or namespace) == namespace
        }


def subject(manifests: Manifests) -> Subject:
    """Return the pods and jobs of a manifest, and the values of a wrong type."""
    found = kinds.find(Manifests(manifests.source, [_without_nulls(item) for item in manifests.objects]))
    every = [part.whole for part in found.parts]
    result = Subject(Manifests(manifests.source, []), every, unknown=found.unknown)
    jobs = {id(one.item): one for one in found.workloads}
    for part in found.parts:
        workload = jobs.get(id(part.item))
        templates, faults = _of_workload(workload) if workload else _of_object(part.item)
        faults = [*part.faults, *faults]
        result.misshapen += [(part.item, fault) for fault in faults]
        if part.wrapper:
            result.inside[title(part.item)] = (part.wrapper, part.prefix)
        if not faults:
            result.manifests.objects.append(part.item)
            result.templates += templates
    result.jobs += [
        _job(workload, result.templates_of(workload.item))
        for workload in jobs.values()
        if workload.trains and workload.served and not workload.misshapen
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


def _job(workload: Workload, templates: list[Template]) -> Job:
    if workload.refused:
        return Job(workload, templates, [], None)
    try:
        pods = workload.pods()
    except (ControllerFault, PodsUnknown):
        pods = []
    return Job(workload, templates, pods, wiring.analyse(workload))


def _of_workload(workload: Workload) -> tuple[list[Template], list[Misshape]]:
    """Return the pod templates of a workload, and the values of a wrong type."""
    nodes = workload.nodes
    templates = [
        Template(
            workload.item,
            role.path,
            role.name,
            role.replicas,
            nodes if role.trains else 1,
            role.template.get("metadata") or {},
            role.template["spec"],
            workload,
            role.trains,
        )
        for role in workload.roles
    ]
    return templates, workload.misshapen


def _of_object(item: Object) -> tuple[list[Template], list[Misshape]]:
    """Return the pod template of any other object, and the values of a wrong type."""
    faults = list(misshapes(item["metadata"], META, "metadata"))
    faults += misshapes(item, OBJECTS.get(known_kind(item), {}), "")
    path = kinds.native_path(item)
    if path is None:
        return [], faults
    template: Any = {"metadata": item["metadata"], "spec": item.get("spec")} if not path else _at(item, path)
    at = ".".join(path)
    faults += misshapes(template, TEMPLATE, at or "pod")
    if not faults and not template["spec"]["containers"]:
        faults.append(Misshape(f"{at or 'pod'}.spec.containers", [], "at least one container"))
    if faults:
        return [], faults
    return [Template(item, at, "", 1, 1, template.get("metadata") or {}, template["spec"])], []


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
