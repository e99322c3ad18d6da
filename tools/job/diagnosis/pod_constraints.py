"""What keeps a pod from a node for the sake of other pods: affinity, anti-affinity, spread, host ports.

The rules are those of kube-scheduler's plugins InterPodAffinity, PodTopologySpread and NodePorts (kubernetes
pkg/scheduler/framework/plugins, v1.36). Of a namespace only its name is known here: see `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tools.kube.manifests import Object
from tools.kube.selectors import REQUIRED, labels_of, selects, untolerated, wants

HOST_LABEL = "kubernetes.io/hostname"
NAME_LABEL = "kubernetes.io/metadata.name"  # every namespace has it
EVERY_ADDRESS = ("", "0.0.0.0", "::")
Fact = tuple[str, str]  # the kind of obstacle, and what shows it
Check = Callable[[Object], Iterable[Fact]]


def checks(pod: Object, nodes: list[Object], on: Callable[[str], list[Object]]) -> list[Check]:
    """Return what other pods have against `pod` on a node; `on` gives the pods of a node by its name."""
    placed = [(node, other) for node in nodes for other in on(node["metadata"]["name"])]
    return [
        _apart(pod, placed),
        _together(pod, placed),
        *(_spread(pod, one, nodes, on) for one in _constraints(pod["spec"])),
        lambda node: _ports(pod["spec"], on(node["metadata"]["name"])),
    ]


def unknown(pod: Object) -> list[str]:
    """Return what of these rules cannot be computed here: labels of namespaces are not looked at."""
    terms = [one for kind in ("podAffinity", "podAntiAffinity") for one in _terms(pod, kind)]
    return ["pod affinity by the labels of namespaces"] if any(map(_by_namespace_labels, terms)) else []


def _by_namespace_labels(term: Object) -> bool:
    selector = term.get("namespaceSelector") or {}
    keys = [
        *(selector.get("matchLabels") or {}),
        *(one["key"] for one in selector.get("matchExpressions") or []),
    ]
    return any(key != NAME_LABEL for key in keys)


def _terms(pod: Object, kind: str) -> list[Object]:
    return ((pod["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or []


def _meant(term: Object, owner: Object, other: Object) -> bool:
    """Say whether a term of `owner` is about `other`: without a word about namespaces, about its own."""
    namespace, names = _namespace(other), term.get("namespaces") or []
    selector = term.get("namespaceSelector")
    if not names and selector is None:
        there = namespace == _namespace(owner)
    else:
        there = namespace in names or selects(selector, {NAME_LABEL: namespace})
    return there and selects(term.get("labelSelector"), labels_of(other))


def _namespace(pod: Object) -> str:
    return str(pod["metadata"].get("namespace"))


def _where(key: str, value: str) -> str:
    return "there" if key == HOST_LABEL else f"in {key}={value}"


def _apart(pod: Object, placed: list[tuple[Object, Object]]) -> Check:
    """Two pods exclude each other, by the terms of either."""
    taken: dict[tuple[str, str], str] = {}
    own = _terms(pod, "podAntiAffinity")
    for node, other in placed:
        if not own and "affinity" not in other["spec"]:
            continue
        for owner, about, terms, whose in (
            (pod, other, own, "the two exclude each other"),
            (other, pod, _terms(other, "podAntiAffinity"), "it excludes this pod"),
        ):
            for term in terms:
                key = str(term.get("topologyKey"))
                value = labels_of(node).get(key)
                if value is not None and _meant(term, owner, about):
                    fact = f"{other['metadata']['name']} is {_where(key, value)}, and {whose}"
                    taken.setdefault((key, value), fact)

    def check(node: Object) -> Iterator[Fact]:
        labels = labels_of(node)
        facts = [fact for (key, value), fact in taken.items() if labels.get(key) == value]
        yield from (("apart", fact) for fact in facts[:1])

    return check


def _together(pod: Object, placed: list[tuple[Object, Object]]) -> Check:
    """The pod wants to be where others are; the first of a series that wants its like may be anywhere."""
    terms = [one for one in _terms(pod, "podAffinity") if not _by_namespace_labels(one)]
    there = {
        (term["topologyKey"], labels_of(node).get(term["topologyKey"]))
        for node, other in placed
        if terms and all(_meant(one, pod, other) for one in terms)
        for term in terms
    }
    first = not there and all(_meant(one, pod, pod) for one in terms)

    def check(node: Object) -> Iterator[Fact]:
        for term in terms:
            key = term["topologyKey"]
            value = labels_of(node).get(key)
            if value is None:
                yield "together", f"has no label {key}, by which the pod wants to be with others"
            elif (key, value) not in there and not first:
                yield "together", f"none of the pods that this one wants to be with is {_where(key, value)}"

    return check


def _constraints(spec: Object) -> list[Object]:
    every = spec.get("topologySpreadConstraints") or []
    return [one for one in every if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]


def _spread(pod: Object, rule: Object, nodes: list[Object], on: Callable[[str], list[Object]]) -> Check:
    """The pods that a constraint counts may differ by at most maxSkew between any two domains."""
    spec, key = pod["spec"], rule["topologyKey"]
    keys = [one["topologyKey"] for one in _constraints(spec)]
    selector = _selector(rule, labels_of(pod))
    counts: dict[str, int] = {}
    for node in nodes:
        labels = labels_of(node)
        if all(one in labels for one in keys) and _counted(rule, spec, node):
            like = sum(_alike(selector, pod, other) for other in on(node["metadata"]["name"]))
            counts[labels[key]] = counts.get(labels[key], 0) + like
    domains, most = int(rule.get("minDomains") or 1), int(rule["maxSkew"])
    least = 0 if len(counts) < domains else min(counts.values(), default=0)
    own = int(selects(selector, labels_of(pod)))
    few = f"; {len(counts)} of at least {domains} values of {key} are there" if len(counts) < domains else ""

    def check(node: Object) -> Iterator[Fact]:
        value = labels_of(node).get(key)
        if value is None:
            yield "spread", f"has no label {key}, by which the pods are spread"
        elif counts and counts.get(value, 0) + own - least > most:
            yield (
                "spread",
                f"{key}={value} has {counts.get(value, 0)} of these pods, the least has {least},"
                f" maxSkew is {most}{few}",
            )

    return check


def _selector(rule: Object, labels: Object) -> Object | None:
    """Return a constraint's selector with what matchLabelKeys adds: the pod's own values of these keys."""
    selector: Object | None = rule.get("labelSelector")
    own = [key for key in rule.get("matchLabelKeys") or [] if key in labels]
    if selector is None or not own:
        return selector
    added = [{"key": key, "operator": "In", "values": [labels[key]]} for key in own]
    return selector | {"matchExpressions": [*(selector.get("matchExpressions") or []), *added]}


def _counted(rule: Object, spec: Object, node: Object) -> bool:
    """Say whether a node's domain counts: by default those that the pod's affinity takes, tainted or not."""
    chosen = rule.get("nodeAffinityPolicy", "Honor") == "Ignore" or wants(spec, node)
    return chosen and (rule.get("nodeTaintsPolicy", "Ignore") == "Ignore" or not untolerated(spec, node))


def _alike(selector: Object | None, pod: Object, other: Object) -> bool:
    going = "deletionTimestamp" in other["metadata"]
    return not going and _namespace(other) == _namespace(pod) and selects(selector, labels_of(other))


def _ports(spec: Object, there: list[Object]) -> Iterator[Fact]:
    """A port of the host is one pod's."""
    for address, protocol, port in _host_ports(spec):
        for other in there:
            if any(
                (protocol, port) == (its_protocol, its_port)
                and (address == its_address or address in EVERY_ADDRESS or its_address in EVERY_ADDRESS)
                for its_address, its_protocol, its_port in _host_ports(other["spec"])
            ):
                holder = f"{_namespace(other)}/{other['metadata']['name']}"
                yield "ports", f"port {port}/{protocol} of the host is taken by {holder}"
                return


def _host_ports(spec: Object) -> list[tuple[str, str, int]]:
    """Return address, protocol and number of a pod's host ports; on the host's network every port is one."""
    init = [one for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"]
    found = []
    for container in [*(spec.get("containers") or []), *init]:
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                found.append((str(port.get("hostIP") or ""), str(port.get("protocol") or "TCP"), int(number)))
    return found
