"""Which labels a selector takes, and which nodes a pod's own words: as Kubernetes reads them."""

from __future__ import annotations

from tools.kube.manifests import Object
from tools.kube.quantity import amount

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def selects(selector: Object | None, labels: Object) -> bool:
    """Say whether a label selector (matchLabels, matchExpressions) takes `labels`; None takes nothing."""
    if selector is None:
        return False
    wanted = (selector.get("matchLabels") or {}).items()
    exact = all(labels.get(key) == value for key, value in wanted)
    return exact and all(expression(one, labels) for one in selector.get("matchExpressions") or [])


def expression(one: Object, labels: Object) -> bool:
    """Say whether one expression (key, operator, values) is true of `labels`."""
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


def term(one: Object, node: Object) -> bool:
    """Say whether a node selector term takes a node; one without a word takes none."""
    labels = labels_of(node)
    fields = {"metadata.name": node["metadata"]["name"]}
    expressions, by_field = one.get("matchExpressions") or [], one.get("matchFields") or []
    if not expressions and not by_field:
        return False
    return all(expression(each, labels) for each in expressions) and all(
        expression(each, fields) for each in by_field
    )


def node_terms(spec: Object) -> list[Object] | None:
    """Return the terms of a pod's required node affinity, None where it has none."""
    wanted = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return (wanted.get("nodeSelectorTerms") or []) if wanted else None


def wants(spec: Object, node: Object) -> bool:
    """Say whether a pod's node selector and required affinity take a node."""
    labels, terms = labels_of(node), node_terms(spec)
    selected = all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())
    return selected and (terms is None or any(term(one, node) for one in terms))


def untolerated(spec: Object, node: Object) -> list[Object]:
    """Return the taints that keep a pod from a node, an unschedulable node's own among them."""
    own = node.get("spec") or {}
    taints = list(own.get("taints") or [])
    if own.get("unschedulable") and not any(one["key"] == CORDON for one in taints):
        taints.append({"key": CORDON, "effect": "NoSchedule"})
    tolerations = spec.get("tolerations") or []
    return [
        taint
        for taint in taints
        if taint.get("effect") != "PreferNoSchedule" and not _tolerated(taint, tolerations)
    ]


CORDON = "node.kubernetes.io/unschedulable"


def labels_of(item: Object) -> Object:
    """Return an object's labels."""
    return item["metadata"].get("labels") or {}


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
