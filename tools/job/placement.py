"""Why no node takes a pod: recomputed from nodes and requests, never read from the scheduler's message.

The rules are those of kube-scheduler (kubernetes pkg/scheduler/framework/plugins, v1.36): node name,
cordon, taints, node selector and affinity, the zone of a bound volume, required pod anti-affinity by host,
resources, and the number of pods. What is not computed is named in `ignored`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.preflight.amounts import amount, plain

Object = dict[str, Any]
HOST_LABEL = "kubernetes.io/hostname"
CORDON = "node.kubernetes.io/unschedulable"
# Taints that a node has until it can be used, or while it does not answer.
NOT_READY = (
    *(f"node.kubernetes.io/{one}" for one in ("not-ready", "unreachable", "network-unavailable")),
    "node.cloudprovider.kubernetes.io/uninitialized",
)
# What a device is called by people.
NAMES = {NVIDIA: "GPUs", EFA: "EFA interfaces", NEURON: "Neuron devices", "cpu": "CPUs", "memory": "memory"}
# A pod that needs a device is short of the device first: the order in which a shortage is named.
FIRST = (NVIDIA, NEURON, EFA)


@dataclass(frozen=True)
class Obstacle:
    """Why one node does not take the pod: a kind (`selector`, `taint`, ...) and the fact.

    `resource` and `never` are of the kind `resource`: never means that the node is too small even when empty.
    """

    kind: str
    fact: str
    resource: str = ""
    never: bool = False


@dataclass(frozen=True)
class Fit:
    """What every node says to one pod; a node with no obstacle takes it."""

    obstacles: dict[str, list[Obstacle]]
    ignored: list[str] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        """Return the nodes that would take the pod."""
        return [node for node, found in self.obstacles.items() if not found]

    def nearest(self) -> dict[str, list[Obstacle]]:
        """Return the nodes that come nearest to taking the pod, by the first kind that stops them.

        A node that the pod did not select is farther away than one that is tainted, and that one farther than
        one that is only full.
        """
        ranked = {
            node: min(ORDER.index(one.kind) for one in found)
            for node, found in self.obstacles.items()
            if found
        }
        best = max(ranked.values(), default=-1)
        return {node: self.obstacles[node] for node, rank in ranked.items() if rank == best}


# From what a pod can never be on to what only time or money is missing for.
ORDER = (
    "name",
    "selector",
    "affinity",
    "zone",
    "not ready",
    "cordoned",
    "taint",
    "apart",
    "pods",
    "resource",
)


@dataclass
class Nodes:
    """The cluster's nodes, and what is already taken on each."""

    nodes: list[Object]
    pods: list[Object]  # all pods of the cluster that have a node

    def __post_init__(self) -> None:
        self._on: dict[str, list[Object]] = {}
        self._used: dict[str, dict[str, Decimal]] = {}
        for pod in self.pods:
            node = (pod.get("spec") or {}).get("nodeName")
            if node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                self._on.setdefault(node, []).append(pod)

    def on(self, node: str) -> list[Object]:
        """Return the pods that hold resources of a node."""
        return self._on.get(node, [])

    def used(self, node: str) -> dict[str, Decimal]:
        """Return what the pods on a node request together, by resource."""
        if node not in self._used:
            total: dict[str, Decimal] = {}
            for pod in self.on(node):
                for resource, value in requests(pod["spec"]).items():
                    total[resource] = total.get(resource, Decimal(0)) + value
            self._used[node] = total
        return self._used[node]

    def fit(self, pod: Object, volumes: Iterable[Object] = ()) -> Fit:
        """Return what each node says to `pod`; `volumes` are those that its claims are bound to."""
        bound = list(volumes)
        spec = pod["spec"]
        checks: list[Callable[[Object], Iterable[Obstacle]]] = [
            lambda node: _by_name(spec, node),
            lambda node: _by_selector(spec, node),
            lambda node: _by_affinity(spec, node),
            lambda node: _by_zone(bound, node),
            lambda node: _by_taints(spec, node),
            lambda node: self._by_anti_affinity(pod, node),
            lambda node: self._by_count(node),
            lambda node: self._by_resources(spec, node),
        ]
        found = {
            node["metadata"]["name"]: [one for check in checks for one in check(node)] for node in self.nodes
        }
        return Fit(found, _ignored(spec))

    def _by_count(self, node: Object) -> Iterable[Obstacle]:
        most = _allocatable(node).get("pods")
        held = len(self.on(node["metadata"]["name"]))
        if most is not None and held >= most:
            yield Obstacle("pods", f"holds {held} of at most {plain(most)} pods")

    def _by_resources(self, spec: Object, node: Object) -> Iterable[Obstacle]:
        used, has = self.used(node["metadata"]["name"]), _allocatable(node)
        for resource, wanted in sorted(requests(spec).items(), key=lambda one: _weight(one[0])):
            free = has.get(resource, Decimal(0)) - used.get(resource, Decimal(0))
            if wanted > 0 and wanted > free:
                total = has.get(resource, Decimal(0))
                fact = (
                    f"{shown(resource, free)} of {shown(resource, total)} {name_of(resource)} free,"
                    f" {shown(resource, wanted)} wanted"
                )
                yield Obstacle("resource", fact, resource, never=wanted > total)

    def _by_anti_affinity(self, pod: Object, node: Object) -> Iterable[Obstacle]:
        terms = ((pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}).get(REQUIRED) or []
        namespace = pod["metadata"].get("namespace")
        for term in terms:
            if term.get("topologyKey") != HOST_LABEL:
                continue
            for other in self.on(node["metadata"]["name"]):
                same = other["metadata"].get("namespace") == namespace
                labels = other["metadata"].get("labels") or {}
                if same and selects(term.get("labelSelector"), labels):
                    yield Obstacle(
                        "apart", f"{other['metadata']['name']} is there, and the two exclude each other"
                    )
                    break


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def requests(spec: Object) -> dict[str, Decimal]:
    """Return what a pod requests, by resource: its containers together or its largest init container.

    The overhead comes on top. An init container that restarts always runs beside the others and counts so.
    """
    init = spec.get("initContainers") or []
    sidecars = [one for one in init if one.get("restartPolicy") == "Always"]
    total: dict[str, Decimal] = {}
    for container in [*(spec.get("containers") or []), *sidecars]:
        for resource, value in _requested(container).items():
            total[resource] = total.get(resource, Decimal(0)) + value
    for container in (one for one in init if one not in sidecars):
        for resource, value in _requested(container).items():
            total[resource] = max(total.get(resource, Decimal(0)), value)
    for resource, value in (spec.get("overhead") or {}).items():
        total[resource] = total.get(resource, Decimal(0)) + (amount(value) or Decimal(0))
    return total


def name_of(resource: str) -> str:
    """Return how a resource is called: GPUs for nvidia.com/gpu."""
    return NAMES.get(resource, resource)


def shown(resource: str, value: Decimal) -> str:
    """Return an amount for people: memory and huge pages in GiB."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{value / 2**30:.1f} GiB"
    return plain(round(value, 2))


def selects(selector: Object | None, labels: Object) -> bool:
    """Say whether a label selector (matchLabels, matchExpressions) takes `labels`; None takes nothing."""
    if selector is None:
        return False
    wanted = (selector.get("matchLabels") or {}).items()
    exact = all(labels.get(key) == value for key, value in wanted)
    return exact and all(_expression(one, labels) for one in selector.get("matchExpressions") or [])


def _requested(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    values = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: amount(value) or Decimal(0) for name, value in values.items()}


def _allocatable(node: Object) -> dict[str, Decimal]:
    status = node.get("status") or {}
    values = status.get("allocatable") or status.get("capacity") or {}
    return {name: amount(value) or Decimal(0) for name, value in values.items()}


def _weight(resource: str) -> tuple[int, str]:
    return (FIRST.index(resource) if resource in FIRST else len(FIRST), resource)


def _by_name(spec: Object, node: Object) -> Iterable[Obstacle]:
    wanted = spec.get("nodeName")
    if wanted and wanted != node["metadata"]["name"]:
        yield Obstacle("name", f"the pod names {wanted}")


def _by_selector(spec: Object, node: Object) -> Iterable[Obstacle]:
    labels = node["metadata"].get("labels") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            yield Obstacle("selector", f"{key} is {labels.get(key, 'absent')}, {value} is selected")


def _by_affinity(spec: Object, node: Object) -> Iterable[Obstacle]:
    wanted = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    if not wanted:
        return
    terms = wanted.get("nodeSelectorTerms") or []
    if not any(_term(term, node) for term in terms):
        yield Obstacle("affinity", _not_matched(terms, node))


def _term(term: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    expressions, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not by_field:
        return False
    return all(_expression(one, labels) for one in expressions) and all(
        _expression(one, fields) for one in by_field
    )


def _expression(one: Object, labels: Object) -> bool:
    has, value, wanted = one["key"] in labels, labels.get(one["key"]), one.get("values") or []
    if one["operator"] == "In":
        return has and value in wanted
    if one["operator"] == "NotIn":
        return not has or value not in wanted
    if one["operator"] in ("Exists", "DoesNotExist"):
        return has is (one["operator"] == "Exists")
    number, bound = amount(value), amount(wanted[0] if wanted else None)
    if number is None or bound is None:
        return False
    return number > bound if one["operator"] == "Gt" else number < bound


def _not_matched(terms: list[Object], node: Object) -> str:
    labels = node["metadata"].get("labels") or {}
    for term in terms:
        for one in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]:
            if not _expression(one, labels | {"metadata.name": node["metadata"]["name"]}):
                wanted = ", ".join(one.get("values") or [])
                return (
                    f"{one['key']} is {labels.get(one['key'], 'absent')}, {one['operator']} {wanted} is asked"
                )
    return "no term of the affinity matches"


def _by_zone(volumes: list[Object], node: Object) -> Iterable[Obstacle]:
    for volume in volumes:
        required = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms")
        if required and not any(_term(term, node) for term in required):
            yield Obstacle("zone", f"volume {volume['metadata']['name']}: {_not_matched(required, node)}")


def _by_taints(spec: Object, node: Object) -> Iterable[Obstacle]:
    taints = list((node.get("spec") or {}).get("taints") or [])
    if (node.get("spec") or {}).get("unschedulable") and not any(one["key"] == CORDON for one in taints):
        taints.append({"key": CORDON, "effect": "NoSchedule"})
    for taint in taints:
        if taint.get("effect") == "PreferNoSchedule" or _tolerated(taint, spec.get("tolerations") or []):
            continue
        value = f"={taint['value']}" if taint.get("value") else ""
        text = f"taint {taint['key']}{value}:{taint.get('effect')}"
        kinds = {CORDON: ("cordoned", "is cordoned")}
        if taint["key"] in NOT_READY:
            kinds[taint["key"]] = ("not ready", "is not ready")
        kind, fact = kinds.get(taint["key"], ("taint", text))
        yield Obstacle(kind, fact)


def _tolerated(taint: Object, tolerations: list[Object]) -> bool:
    for one in tolerations:
        effect = one.get("effect") in (None, "", taint.get("effect"))
        key = one.get("key") in (None, "", taint["key"])
        if one.get("operator") == "Exists":
            value = True
        else:
            value = one.get("key") == taint["key"] and (one.get("value") or "") == (taint.get("value") or "")
        if effect and key and value:
            return True
    return False


def _ignored(spec: Object) -> list[str]:
    """Return what decides about the pod's node and is not computed here."""
    affinity = spec.get("affinity") or {}
    anti = (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or []
    found = {
        "required pod affinity": bool((affinity.get("podAffinity") or {}).get(REQUIRED)),
        "pod anti-affinity beyond the host": any(term.get("topologyKey") != HOST_LABEL for term in anti),
        "topology spread constraints": any(
            one.get("whenUnsatisfiable") == "DoNotSchedule"
            for one in spec.get("topologySpreadConstraints") or []
        ),
        "host ports": any(
            port.get("hostPort") for one in spec.get("containers") or [] for port in one.get("ports") or []
        ),
        "resource claims (DRA)": bool(spec.get("resourceClaims")),
    }
    return [name for name, is_set in found.items() if is_set]
