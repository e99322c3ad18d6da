"""Why no node takes a pod: recomputed from nodes and requests, never read from the scheduler's message.

The rules are those of kube-scheduler (kubernetes pkg/scheduler/framework/plugins, v1.36): node name,
cordon, taints, node selector and affinity, the place of volumes and of devices that are allocated, the rules
between pods (`pod_constraints`), resources, and the number of pods. What is not computed is named in
`ignored`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.job.diagnosis import pod_constraints
from tools.kube import selectors
from tools.kube.manifests import Object
from tools.kube.quantity import amounts, plain, pod_requests
from tools.kube.selectors import CORDON, labels_of

# Taints that a node has until it can be used, or while it does not answer.
NOT_READY = (
    *(f"node.kubernetes.io/{one}" for one in ("not-ready", "unreachable", "network-unavailable")),
    "node.cloudprovider.kubernetes.io/uninitialized",
)
# What a device is called by people.
NAMES = {NVIDIA: "GPUs", EFA: "EFA interfaces", NEURON: "Neuron devices", "cpu": "CPUs", "memory": "memory"}
# What device plugins call accelerators and parts of them: MIG slices, shared cards, cores.
MIG = "nvidia.com/mig-"
ACCELERATORS = (NVIDIA, MIG, NEURON, "amd.com/gpu", "habana.ai/")


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
class Place:
    """Where something that a pod needs can be had: a volume, or devices that are allocated to its claim.

    `kind` is that of the obstacle (`zone`, `device-place`), `what` its name in words.
    """

    kind: str
    what: str
    terms: list[Object]  # of node selectors


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


# From what a pod can never be on to what only time or money is missing for. A node that only a rule between
# pods closes has room: the rule is what stops the pod there, and without it nothing would.
ORDER = (
    *("name", "selector", "affinity", "zone", "device-place"),
    *("not ready", "cordoned", "taint", "volume", "pods", "resource"),
    *("ports", "together", "apart", "spread"),
)


@dataclass
class Nodes:
    """The cluster's nodes, and what is already taken on each."""

    nodes: list[Object]
    pods: list[Object]  # all pods of the cluster that have a node

    def __post_init__(self) -> None:
        self._on: dict[str, list[Object]] = {}
        self._used: dict[str, dict[str, Decimal]] = {}
        self._has = {node["metadata"]["name"]: _allocatable(node) for node in self.nodes}
        for pod in self.pods:
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                self._put(pod)

    def _put(self, pod: Object) -> None:
        if node := (pod.get("spec") or {}).get("nodeName"):
            self._on.setdefault(node, []).append(pod)
            self._used.pop(node, None)

    def place(self, pod: Object, node: str) -> None:
        """Let a pod be on a node, as if it had been placed there."""
        self._put(pod | {"spec": pod["spec"] | {"nodeName": node}})

    def on(self, node: str) -> list[Object]:
        """Return the pods that hold resources of a node."""
        return self._on.get(node, [])

    def used(self, node: str) -> dict[str, Decimal]:
        """Return what the pods on a node request together, by resource."""
        if node not in self._used:
            total: dict[str, Decimal] = {}
            for pod in self.on(node):
                for resource, value in pod_requests(pod["spec"]).items():
                    total[resource] = total.get(resource, Decimal(0)) + value
            self._used[node] = total
        return self._used[node]

    def fit(self, pod: Object, places: Iterable[Place] = (), alone: Iterable[str] = ()) -> Fit:
        """Return what each node says to `pod`.

        `places` are where its volumes and devices are, `alone` the claims that one pod alone may mount.
        """
        bound, exclusive = list(places), set(alone)
        spec = pod["spec"]
        wanted = sorted(pod_requests(spec).items(), key=lambda one: rank(one[0]))
        rules = pod_constraints.checks(pod, self.nodes, self.on)
        held = list(self._by_volume(pod, exclusive))
        checks: list[Callable[[Object], Iterable[Obstacle]]] = [
            lambda node: _by_name(spec, node),
            lambda node: _by_selector(spec, node),
            lambda node: _by_affinity(spec, node),
            lambda node: _by_place(bound, node),
            lambda node: _by_taints(spec, node),
            lambda node: (Obstacle(*fact) for rule in rules for fact in rule(node)),
            lambda node: held,
            lambda node: self._by_count(node),
            lambda node: self._by_resources(wanted, node),
        ]
        found = {
            node["metadata"]["name"]: [one for check in checks for one in check(node)] for node in self.nodes
        }
        return Fit(found, pod_constraints.unknown(pod))

    def _by_count(self, node: Object) -> Iterable[Obstacle]:
        most = self._has[node["metadata"]["name"]].get("pods")
        held = len(self.on(node["metadata"]["name"]))
        if most is not None and held >= most:
            yield Obstacle("pods", f"holds {held} of at most {plain(most)} pods")

    def _by_resources(self, asked: list[tuple[str, Decimal]], node: Object) -> Iterable[Obstacle]:
        name = node["metadata"]["name"]
        used, has = self.used(name), self._has[name]
        for resource, wanted in asked:
            free = has.get(resource, Decimal(0)) - used.get(resource, Decimal(0))
            if wanted > 0 and wanted > free:
                total = has.get(resource, Decimal(0))
                fact = (
                    f"{shown(resource, free)} of {shown(resource, total)} {name_of(resource)} free,"
                    f" {shown(resource, wanted)} wanted{_instead(resource, has) if wanted > total else ''}"
                )
                yield Obstacle("resource", fact, resource, never=wanted > total)

    def _by_volume(self, pod: Object, exclusive: set[str]) -> Iterable[Obstacle]:
        """A volume of access mode ReadWriteOncePod is one pod's, wherever that is."""
        namespace = pod["metadata"].get("namespace")
        for other in (one for there in self._on.values() for one in there) if exclusive else ():
            mounted = {
                (volume.get("persistentVolumeClaim") or {}).get("claimName")
                for volume in other["spec"].get("volumes") or []
            }
            if other["metadata"].get("namespace") == namespace:
                for name in sorted(exclusive & mounted):
                    fact = f"claim {name} is ReadWriteOncePod, and {other['metadata']['name']} has it"
                    yield Obstacle("volume", fact)


def name_of(resource: str) -> str:
    """Return how a resource is called: GPUs for nvidia.com/gpu."""
    if resource.startswith(MIG):
        return f"MIG slices {resource.removeprefix(MIG)}"
    return NAMES.get(resource, resource)


def is_accelerator(resource: str) -> bool:
    """Say whether a resource is an accelerator or a part of one."""
    return resource.startswith(ACCELERATORS)


def rank(resource: str) -> tuple[int, str]:
    """Return the place of a resource among those that a pod is short of: devices are named first."""
    if is_accelerator(resource):
        return 0, resource
    return (1 if resource == EFA else 2), resource


def shown(resource: str, value: Decimal) -> str:
    """Return an amount for people: memory and huge pages in GiB."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{value / 2**30:.1f} GiB"
    return plain(round(value, 2))


def _allocatable(node: Object) -> dict[str, Decimal]:
    status = node.get("status") or {}
    return amounts(status.get("allocatable") or status.get("capacity") or {})


def _instead(resource: str, has: dict[str, Decimal]) -> str:
    """Return what a node has instead of an accelerator that it has too few of: another cut of its cards."""
    others = [one for one in sorted(has) if is_accelerator(one) and one != resource and has[one] > 0]
    if not is_accelerator(resource) or not others:
        return ""
    return f"; it has {', '.join(f'{plain(has[one])} {one}' for one in others)}"


def _by_name(spec: Object, node: Object) -> Iterable[Obstacle]:
    wanted = spec.get("nodeName")
    if wanted and wanted != node["metadata"]["name"]:
        yield Obstacle("name", f"the pod names {wanted}")


def _by_selector(spec: Object, node: Object) -> Iterable[Obstacle]:
    labels = labels_of(node)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            yield Obstacle("selector", f"{key} is {labels.get(key, 'absent')}, {value} is selected")


def _by_affinity(spec: Object, node: Object) -> Iterable[Obstacle]:
    terms = selectors.node_terms(spec)
    if terms is not None and not any(selectors.term(one, node) for one in terms):
        yield Obstacle("affinity", _not_matched(terms, node))


def _not_matched(terms: list[Object], node: Object) -> str:
    labels = labels_of(node) | {"metadata.name": node["metadata"]["name"]}
    for term in terms:
        for one in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]:
            if not selectors.expression(one, labels):
                wanted = ", ".join(one.get("values") or [])
                has = labels.get(one["key"], "absent")
                return f"{one['key']} is {has}, {one['operator']} {wanted} is asked"
    return "no term of the affinity matches"


def _by_place(places: list[Place], node: Object) -> Iterable[Obstacle]:
    for place in places:
        if not any(selectors.term(one, node) for one in place.terms):
            yield Obstacle(place.kind, f"{place.what}: {_not_matched(place.terms, node)}")


def _by_taints(spec: Object, node: Object) -> Iterable[Obstacle]:
    for taint in selectors.untolerated(spec, node):
        value = f"={taint['value']}" if taint.get("value") else ""
        text = f"taint {taint['key']}{value}:{taint.get('effect')}"
        kinds = {CORDON: ("cordoned", "is cordoned")}
        if taint["key"] in NOT_READY:
            kinds[taint["key"]] = ("not ready", "is not ready")
        kind, fact = kinds.get(taint["key"], ("taint", text))
        yield Obstacle(kind, fact)
