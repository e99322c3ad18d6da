"""What the rules check: the objects of a manifest, their pods, jobs and instance types."""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from tools.cells.published import Published
from tools.core.nested import walk
from tools.core.tables import load
from tools.core.verdict import Verdict
from tools.facts.instances import EFA, INSTANCES, NEURON, NVIDIA, Instance
from tools.kube.json_patch import value_at
from tools.kube.manifests import Manifests, Object, name_of
from tools.kube.quantity import pod_requests
from tools.kube.selectors import node_terms
from tools.kube.shapes import JOBS, META, OBJECTS, TEMPLATE, Misshape, misshapes, well_typed
from tools.simulator import wiring
from tools.simulator.command_line import literals, words
from tools.simulator.node import Given, Node
from tools.simulator.wiring import Analysis
from tools.workload import ControllerFault, Pod, PodsUnknown, Workload, kinds
from tools.workload.kinds import Unknown
from tools.workload.trainjob import TrainJob
from tools.workload.wrappers import Part

GROUPS: dict[str, str] = load("preflight/enums.yaml")["groups"]
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
NEURON_CORE, NEURON_DEVICE = f"{NEURON}core", f"{NEURON}device"
# Values that do not decide how the pods meet, if one of them is of a wrong type.
ASIDE = re.compile(
    r"\.(env\[|envFrom|volumes|volumeMounts|tolerations|affinity|nodeSelector|ports|labels|annotations"
    r"|securityContext|resources|imagePullSecrets|terminationGracePeriodSeconds|lifecycle|readinessProbe)"
)
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
    foreign: bool = False  # of a kind that is not modelled: its controller may add variables and volumes

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
        return next(((name, self.asks(name)) for name in ACCELERATORS if self.asks(name) > 0), ("", Decimal(0)))

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
    analysis: Analysis | None  # None if it is refused, or if a field that decides it is of a wrong type

    @property
    def item(self) -> Object:
        return self.workload.item

    @property
    def object(self) -> str:
        return title(self.item)

    @property
    def spec(self) -> Object:
        return self.workload.spec

    @property
    def nodes(self) -> int:
        """Return the largest number of ranks' pods of the job."""
        return self.workload.nodes


@dataclass(eq=False)
class Subject:
    """One manifest, parsed once for all rules.

    `every` has all objects, with those inside wrappers, and `objects` those of a valid shape.
    """

    manifests: Manifests
    every: list[Object]
    templates: list[Template] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)  # those of a valid shape, also without training
    jobs: list[Job] = field(default_factory=list)
    misshapen: list[tuple[Object, Misshape]] = field(default_factory=list)
    unseen: list[tuple[Object, Verdict]] = field(default_factory=list)  # several pods without a launcher
    unknown: list[Unknown] = field(default_factory=list)  # what runs pods, or may, and is not modelled
    inside: dict[str, tuple[str, str]] = field(default_factory=dict)  # title: wrapper and path in it
    operator: str = ""  # the release of the training operator, empty where it is unknown
    missing_right: str = ""  # without which the cluster does not tell the release
    base: Published | None = None  # what the model's config.json says, for the rule `config`

    @property
    def objects(self) -> list[Object]:
        return self.manifests.objects

    def training(self) -> list[Template]:
        return [template for template in self.templates if template.training]

    def operator_jobs(self) -> list[Job]:
        """Return the PyTorchJobs, for the rules about the training operator's fields."""
        return [job for job in self.jobs if job.workload.kind == "PyTorchJob"]

    def by_operator(self, verdict: Verdict) -> Verdict:
        """Return a verdict that depends on the operator's release, with the right that is missing to know it."""
        if self.operator or not self.missing_right:
            return verdict
        why = f"the training operator's release is unknown: this user may not {self.missing_right}"
        return replace(verdict, evidence=[*verdict.evidence, why])

    def written_variables(self) -> Iterator[tuple[Object, str, list[Object]]]:
        """Yield each list of variables as it is written, with its object and path.

        The templates of a TrainJob hold its variables and its runtime's as Trainer merges them: each once.
        """
        runtimes: dict[int, Object] = {}
        for job in (one for one in self.workloads if isinstance(one, TrainJob)):
            yield job.item, "spec.trainer.env", job.section("trainer").get("env") or []
            if job.runtime is not None:
                runtimes[id(job.runtime)] = job.runtime
        templates = [one for one in self.templates if not isinstance(one.workload, TrainJob)]
        templates += [one for item in runtimes.values() for one in _of_object(item, True)]
        for template in templates:
            for path, container in template.containers():
                yield template.item, f"{path}.env", container.get("env") or []

    def templates_of(self, item: Object) -> list[Template]:
        return [template for template in self.templates if template.item is item]

    def job_of(self, template: Template) -> Job | None:
        return next((job for job in self.jobs if job.item is template.item), None)

    def node_of(self, template: Template) -> Node | None:
        """Return the first pod of a training template in the rendezvous, None if it is not known."""
        job = self.job_of(template)
        nodes = job.analysis.nodes if job and job.analysis else []
        return next((node for node in nodes if node.pod.role == template.role.lower()), None)

    def started(self, template: Template) -> tuple[list[str], dict[str, str]]:
        """Return the words of a training template's launcher and its variables, with those that a script sets."""
        container, node = template.trainer()[1], self.node_of(template)
        if node is None:
            return words(container), literals(container)
        return node.launch.words, {**literals(container), **node.launch.environment}

    def located(self, verdict: Verdict) -> Verdict:
        """Return a verdict on an object inside a wrapper with the wrapper and the path in it."""
        name = str(verdict.details.get("object"))
        if name not in self.inside:
            return verdict
        wrapper, prefix = self.inside[name]
        path = f"{prefix}{verdict.details.get('path', '')}"
        before, after = f"{name}: ", f"{wrapper}: {prefix}"
        evidence = [after + line.removeprefix(before) if line.startswith(before) else line for line in verdict.evidence]
        return replace(verdict, evidence=evidence, details={**verdict.details, "object": wrapper, "path": path})

    def named(self, kind: str, namespace: str) -> dict[str, Object]:
        """Return the objects of a kind that pods in `namespace` can see, by name."""
        return {
            name_of(item): item
            for item in self.manifests.of_kind(kind)
            if (kind not in GROUPS or known_kind(item))
            and (not namespace or (item["metadata"].get("namespace") or namespace) == namespace)
        }


def subject(manifests: Manifests, given: Given | None = None, operator: str = "") -> Subject:
    """Return the pods and jobs of a manifest, and the values of a wrong type.

    The pods and jobs are those of the manifest with these values converted, or left out. `given` says what
    containers without a command start, and `operator` is the release of the training operator.
    """
    found = kinds.find(Manifests(manifests.source, [_as_sent(item) for item in manifests.objects]), operator)
    every = [part.whole for part in found.parts]
    misshapen = [(part.item, fault) for part in found.parts for fault in _faults(part)]
    lost: dict[int, list[str]] = {}
    if misshapen:
        parts = [_well_typed(part, lost) for part in found.parts]
        found = kinds.among(parts, manifests.source, operator)
    kept = Manifests(manifests.source, [])
    result = Subject(kept, every, misshapen=misshapen, unknown=found.unknown, operator=operator)
    jobs = {id(one.item): one for one in found.workloads}
    others = {id(one.item) for one in found.unknown}
    for part in found.parts:
        if part.wrapper:
            result.inside[title(part.item)] = (part.wrapper, part.prefix)
        if not any(_faults(part)):
            workload = jobs.get(id(part.item))
            result.manifests.objects.append(part.item)
            result.templates += _of_workload(workload) if workload else _of_object(part.item, id(part.item) in others)
    for workload in jobs.values():
        if not workload.served or workload.misshapen:
            continue
        incomplete = any(not ASIDE.search(path) for path in lost.get(id(workload.item), ()))
        result.workloads += [] if incomplete else [workload]
        if workload.trains:
            templates = result.templates_of(workload.item)
            result.jobs.append(_job(workload, templates, None if incomplete else given or Given()))
        elif not incomplete and (verdict := wiring.unseen(workload, given)):
            result.unseen.append((workload.item, verdict))
    return result


def _faults(part: Part) -> Iterator[Misshape]:
    """Yield the values of a wrong type in an object."""
    yield from part.faults
    workload = kinds.of(part.item)
    if workload:
        yield from workload.misshapen
        return
    yield from misshapes(part.item, _shape(part.item), "")
    path = kinds.native_path(part.item)
    template = None if path is None else value_at(part.item, path)
    spec = template.get("spec") if isinstance(template, dict) else None
    if isinstance(spec, dict) and spec.get("containers") == []:
        yield Misshape(".".join([*(path or ()), "spec.containers"]), [], "at least one container")


def _shape(item: Object) -> Any:
    """Return the types of the fields that are read of an object, as in tools/kube/shapes.yaml."""
    workload = kinds.of(item)
    if workload:
        return {"metadata": META, **JOBS[type(workload).__name__]}
    path = kinds.native_path(item)
    shape = OBJECTS.get(known_kind(item), {}) if path is None else TEMPLATE
    for key in reversed(path or ()):
        shape = {f"{key}!": shape}
    return {"metadata": META, **shape}


def _well_typed(part: Part, lost: dict[int, list[str]]) -> Part:
    """Return an object with its values converted to the types of their fields."""
    if part.faults or not any(_faults(part)):
        return part
    paths: list[str] = []
    item = well_typed(part.item, _shape(part.item), "", paths)
    if item is None:
        return part
    lost[id(item)] = paths
    return replace(part, item=item)


def _as_sent(value: Any) -> Any:
    """Return a copy as the API server takes it: without null values, with keys as texts (`on: x` has the key true)."""
    if isinstance(value, dict):
        return {_key(key): _as_sent(inner) for key, inner in value.items() if inner is not None}
    return [_as_sent(inner) for inner in value] if isinstance(value, list) else value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def known_kind(item: Object) -> str:
    """Return the kind if the rules know it and its API group, else an empty text."""
    kind, group = str(item.get("kind")), str(item.get("apiVersion")).rpartition("/")[0]
    return kind if GROUPS.get(kind) == group else ""


def title(item: Object) -> str:
    return f"{item.get('kind')}/{name_of(item)}"


def texts(value: Any, skip: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield every string in an object with its path, except those below the keys `skip`."""
    yield from ((path, text) for path, text in walk(value, skip=skip) if isinstance(text, str))


def _job(workload: Workload, templates: list[Template], given: Given | None) -> Job:
    """Return a job; a refused one is wired as corrected. Without `given` its wiring is not judged."""
    admitted = workload.corrected() if workload.refused else workload
    if admitted is None:
        return Job(workload, templates, [], None)
    try:
        pods = admitted.pods()
    except (ControllerFault, PodsUnknown):
        pods = []
    return Job(workload, templates, pods, wiring.analyse(admitted, given) if given else None)


def _of_workload(workload: Workload) -> list[Template]:
    """Return the pod templates of a workload."""
    found = []
    for role in workload.roles:
        nodes, metadata = workload.nodes if role.trains else 1, role.template.get("metadata") or {}
        place = workload.item, role.path, role.name, role.replicas, nodes
        found.append(Template(*place, metadata, role.template["spec"], workload, role.trains))
    return found


def _of_object(item: Object, unknown: bool) -> list[Template]:
    """Return the pod templates of any other object. `unknown`: it is of no kind that is modelled."""
    path = kinds.native_path(item)
    count = value_at(item, ("spec", "replicas")) if path is not None else None
    found = [(".".join(path), value_at(item, path))] if path is not None else []
    if unknown and path is None:
        found = [(where, one) for where, one in kinds.templates(item) if not any(misshapes(one, TEMPLATE, ""))]
    foreign, pods = path is None, count if isinstance(count, int) else 1
    return [
        Template(item, where, "", pods, 1, one.get("metadata") or {}, one["spec"], foreign=foreign)
        for where, one in found
    ]


def _selected(template: Template) -> Selected:
    """Read the node selector, or else the terms of the required affinity, which are alternatives."""
    selector = template.spec.get("nodeSelector") or {}
    labels = [label for label in INSTANCE_LABELS if label in selector]
    if labels:
        names = [selector[label] for label in labels if "$" not in selector[label]]
        return Selected(names, f"{template.spec_path}.nodeSelector[{labels[0]}]")
    each = [_allowed(term) for term in node_terms(template.spec) or []]
    allowed = [name for names in each for name in names] if all(each) else []
    return Selected(allowed, f"{template.spec_path}.affinity.nodeAffinity")


def _allowed(term: Object) -> list[str]:
    lists = [
        [name for name in expression.get("values") or [] if "$" not in name]
        for expression in term.get("matchExpressions") or []
        if expression["key"] in INSTANCE_LABELS and expression["operator"] == "In"
    ]
    return [name for name in lists[0] if all(name in other for other in lists)] if lists else []
