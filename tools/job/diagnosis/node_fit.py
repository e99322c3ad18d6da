"""Which nodes can take a pod, computed from the nodes, their pods and the pod's requests.

The rules are kube-scheduler's (kubernetes pkg/scheduler/framework/plugins, v1.36): node name, cordon, taints,
node selector and affinity, topology of volumes, resources, number of pods, and pod affinity over zones. For
all other rules `scheduler_message` quotes the scheduler.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from tools.job.diagnosis.resources import formatted, is_accelerator, name_of, rank
from tools.kube import Object, selectors
from tools.kube.quantity import amounts, plain, pod_requests
from tools.kube.selectors import CORDON, REQUIRED, ZONE, labels_of, selects

# Taints of a node that has not joined yet, or that does not answer.
NOT_READY = (
    *(f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "network-unavailable")),
    "node.cloudprovider.kubernetes.io/uninitialized",
)
# The kinds of obstacles, by what it takes to remove them: those at the front need other nodes or another pod,
# those at the end only time or capacity. `Fit.nearest` compares positions in this list. Pod affinity is last:
# a node that only this rule excludes has room for the pod.
ORDER = ("name", "selector", "affinity", "zone", "not ready", "cordoned", "taint", "pods", "resource", "together")


@dataclass(frozen=True)
class Obstacle:
    """Why one node does not take the pod: a kind of ORDER, and the fact that shows it.

    `resource` and `never` belong to the kind `resource`. `never` means that even the empty node is too small.
    """

    kind: str
    fact: str
    resource: str = ""
    never: bool = False


Check = Callable[[Object], Iterator[Obstacle]]


@dataclass(frozen=True)
class VolumeTopology:
    """The nodes that can mount a volume: its name for people, and node selector terms."""

    name: str
    terms: list[Object]


@dataclass(frozen=True)
class Fit:
    """The obstacles on every node for one pod; a node without obstacles can take it."""

    obstacles: dict[str, list[Obstacle]]

    @property
    def open(self) -> list[str]:
        """Return the nodes that can take the pod."""
        return [node for node, found in self.obstacles.items() if not found]

    def nearest(self) -> dict[str, list[Obstacle]]:
        """Return the nodes nearest to taking the pod, by the first kind in ORDER that excludes them."""
        ranked = {
            node: min(ORDER.index(obstacle.kind) for obstacle in found)
            for node, found in self.obstacles.items()
            if found
        }
        best = max(ranked.values(), default=-1)
        return {node: self.obstacles[node] for node, position in ranked.items() if position == best}


class Nodes:
    """The cluster's nodes, and the pods that hold their resources."""

    def __init__(self, nodes: list[Object], pods: list[Object]) -> None:
        self.nodes = nodes
        self._pods: dict[str, list[Object]] = {}
        self._used: dict[str, dict[str, Decimal]] = {}
        self._allocatable = {node["metadata"]["name"]: _allocatable(node) for node in nodes}
        for pod in pods:
            if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                self._add(pod)

    def _add(self, pod: Object) -> None:
        if node := (pod.get("spec") or {}).get("nodeName"):
            self._pods.setdefault(node, []).append(pod)
            self._used.pop(node, None)

    def place(self, pod: Object, node: str) -> None:
        """Count a pod as placed on a node."""
        self._add(pod | {"spec": pod["spec"] | {"nodeName": node}})

    def on(self, node: str) -> list[Object]:
        """Return the pods that hold resources of a node."""
        return self._pods.get(node, [])

    def used(self, node: str) -> dict[str, Decimal]:
        """Return what the pods on a node request together, by resource."""
        if node not in self._used:
            total: dict[str, Decimal] = {}
            for pod in self.on(node):
                for resource, value in pod_requests(pod["spec"]).items():
                    total[resource] = total.get(resource, Decimal(0)) + value
            self._used[node] = total
        return self._used[node]

    def fit(self, pod: Object, volumes: list[VolumeTopology]) -> Fit:
        """Return the obstacles on each node for `pod`, whose volumes are `volumes`."""
        spec = pod["spec"]
        requested = sorted(pod_requests(spec).items(), key=lambda item: rank(item[0]))
        checks: list[Check] = [
            lambda node: _by_name(spec, node),
            lambda node: _by_selector(spec, node),
            lambda node: _by_affinity(spec, node),
            lambda node: _by_volumes(volumes, node),
            lambda node: _by_taints(spec, node),
            self._by_count,
            lambda node: self._by_resources(requested, node),
            self._zone_affinity(pod),
        ]
        return Fit(
            {
                node["metadata"]["name"]: [obstacle for check in checks for obstacle in check(node)]
                for node in self.nodes
            }
        )

    def _by_count(self, node: Object) -> Iterator[Obstacle]:
        most = self._allocatable[node["metadata"]["name"]].get("pods")
        number = len(self.on(node["metadata"]["name"]))
        if most is not None and number >= most:
            yield Obstacle("pods", f"runs {number} of at most {plain(most)} pods")

    def _by_resources(self, requested: list[tuple[str, Decimal]], node: Object) -> Iterator[Obstacle]:
        name = node["metadata"]["name"]
        used, allocatable = self.used(name), self._allocatable[name]
        for resource, value in requested:
            total = allocatable.get(resource, Decimal(0))
            free = total - used.get(resource, Decimal(0))
            if value > 0 and value > free:
                fact = (
                    f"{formatted(resource, free)} of {formatted(resource, total)} {name_of(resource)} free,"
                    f" {formatted(resource, value)} requested"
                    f"{_other_accelerators(resource, allocatable) if value > total else ''}"
                )
                yield Obstacle("resource", fact, resource, never=value > total)

    def _zone_affinity(self, pod: Object) -> Check:
        """Required pod affinity over zones. Affinity by labels of namespaces is left to the scheduler."""
        terms = ((pod["spec"].get("affinity") or {}).get("podAffinity") or {}).get(REQUIRED) or []
        zones = {
            labels_of(node).get(ZONE)
            for node in self.nodes
            for other in self.on(node["metadata"]["name"])
            if terms and all(_affine(term, pod, other) for term in terms)
        }
        # The first pod of a group that wants its own kind may be anywhere.
        first = not zones and all(_affine(term, pod, pod) for term in terms)
        by_zone = any(term["topologyKey"] == ZONE for term in terms)
        computed = by_zone and not any(term.get("namespaceSelector") for term in terms)
        there = f", which are in {', '.join(sorted(map(str, zones)))}" if zones else ""

        def check(node: Object) -> Iterator[Obstacle]:
            zone = labels_of(node).get(ZONE)
            if computed and (zone is None or not (first or zone in zones)):
                where = f"zone {zone}" if zone else f"it has no label {ZONE}, so it"
                yield Obstacle("together", f"{where} does not run the pods that this pod must be close to{there}")

        return check


def _allocatable(node: Object) -> dict[str, Decimal]:
    status = node.get("status") or {}
    return amounts(status.get("allocatable") or status.get("capacity") or {})


def _other_accelerators(resource: str, allocatable: dict[str, Decimal]) -> str:
    """Return which accelerators a node has instead: slices of another size, say."""
    others = [
        name for name in sorted(allocatable) if is_accelerator(name) and name != resource and allocatable[name] > 0
    ]
    if not is_accelerator(resource) or not others:
        return ""
    return f"; it has {', '.join(f'{plain(allocatable[name])} {name}' for name in others)}"


def _by_name(spec: Object, node: Object) -> Iterator[Obstacle]:
    wanted = spec.get("nodeName")
    if wanted and wanted != node["metadata"]["name"]:
        yield Obstacle("name", f"the pod names {wanted}")


def _by_selector(spec: Object, node: Object) -> Iterator[Obstacle]:
    labels = labels_of(node)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            yield Obstacle("selector", f"{key} is {labels.get(key, 'absent')}, the pod selects {value}")


def _by_affinity(spec: Object, node: Object) -> Iterator[Obstacle]:
    terms = selectors.node_terms(spec)
    if terms is not None and not any(selectors.term(term, node) for term in terms):
        yield Obstacle("affinity", _mismatch(terms, node))


def _mismatch(terms: list[Object], node: Object) -> str:
    labels = labels_of(node) | {"metadata.name": node["metadata"]["name"]}
    for term in terms:
        for requirement in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]:
            if not selectors.expression(requirement, labels):
                key, values = requirement["key"], ", ".join(requirement.get("values") or [])
                return f"{key} is {labels.get(key, 'absent')}, required: {requirement['operator']} {values}"
    return "no term of the affinity matches"


def _by_volumes(volumes: list[VolumeTopology], node: Object) -> Iterator[Obstacle]:
    for volume in volumes:
        if not any(selectors.term(term, node) for term in volume.terms):
            yield Obstacle("zone", f"{volume.name}: {_mismatch(volume.terms, node)}")


def _by_taints(spec: Object, node: Object) -> Iterator[Obstacle]:
    for taint in selectors.untolerated(spec, node):
        if taint["key"] == CORDON:
            yield Obstacle("cordoned", "is cordoned")
        elif taint["key"] in NOT_READY:
            yield Obstacle("not ready", "is not ready")
        else:
            value = f"={taint['value']}" if taint.get("value") else ""
            yield Obstacle("taint", f"taint {taint['key']}{value}:{taint.get('effect')}")


def _affine(term: Object, owner: Object, other: Object) -> bool:
    """Return whether a pod affinity term of `owner` selects `other`; without namespaces it means its own."""
    names, selector = term.get("namespaces") or [], term.get("namespaceSelector")
    namespace = other["metadata"].get("namespace")
    own = not names and selector is None and namespace == owner["metadata"].get("namespace")
    return (own or selector == {} or namespace in names) and selects(term.get("labelSelector"), labels_of(other))
