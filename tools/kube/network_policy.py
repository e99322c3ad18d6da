"""NetworkPolicies: whether they let the pods of a job reach each other.

Policies add up: traffic passes when one of the policies that select a pod admits it, and a pod that no policy
selects is open. Source: kubernetes.io/docs/concepts/services-networking/network-policies.
"""

from collections.abc import Mapping

from tools.kube.manifests import Object
from tools.kube.selectors import selects

PEERS = {"Ingress": "from", "Egress": "to"}
ALL_PORTS = range(1, 65536)


def applies(policy: Object, direction: str, labels: Object) -> bool:
    """Return whether a policy restricts traffic of one direction (Ingress, Egress) of pods with `labels`."""
    spec = policy.get("spec") or {}
    directions = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return direction in directions and selects(spec.get("podSelector"), labels)


def admits(
    policy: Object, direction: str, peers: Object, ports: range = ALL_PORTS, named: Mapping[str, int] | None = None
) -> bool:
    """Return whether a rule of a policy admits TCP between the pods it selects and pods with labels `peers`.

    The rule must admit all of `ports`; `named` has the numbers of the container's named ports. Address blocks
    and namespace selectors are not resolved: they count as the pods' own.
    """
    rules = (policy.get("spec") or {}).get(direction.lower()) or []
    return any(
        _admits_peers(rule.get(PEERS[direction]), peers) and _admits_ports(rule.get("ports"), ports, named or {})
        for rule in rules
    )


def is_open(policy: Object, port: int, named: Mapping[str, int]) -> bool:
    """Return whether an ingress rule opens a port to pods of every namespace or to any address."""
    rules = (policy.get("spec") or {}).get("ingress") or []
    return any(
        (not rule.get("from") or any(map(_is_anybody, rule["from"])))
        and _admits_ports(rule.get("ports"), range(port, port + 1), named)
        for rule in rules
    )


def _is_anybody(peer: Object) -> bool:
    """Return whether a peer is every namespace, with no selection among their pods, or every address."""
    if "ipBlock" in peer:
        return str(peer["ipBlock"].get("cidr", "")).endswith("/0")
    every = "namespaceSelector" in peer and not any((peer["namespaceSelector"] or {}).values())
    return every and not any((peer.get("podSelector") or {}).values())


def _admits_peers(listed: list[Object] | None, peers: Object) -> bool:
    return not listed or any(
        "ipBlock" in peer or "podSelector" not in peer or selects(peer["podSelector"], peers) for peer in listed
    )


def _admits_ports(listed: list[Object] | None, ports: range, named: Mapping[str, int]) -> bool:
    if not listed:
        return True
    for entry in listed:
        if entry.get("protocol", "TCP") != "TCP":
            continue
        if entry.get("port") is None:
            return True
        first = named.get(entry["port"], entry["port"])
        if isinstance(first, int) and first <= ports[0] and ports[-1] <= entry.get("endPort", first):
            return True
    return False
