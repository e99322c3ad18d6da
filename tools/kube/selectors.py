"""Label selectors, node selectors and taints, evaluated as Kubernetes does."""

from tools.kube.manifests import Object
from tools.kube.quantity import amount

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
CORDON = "node.kubernetes.io/unschedulable"


def selects(selector: Object | None, labels: Object) -> bool:
    """Return whether a label selector selects `labels`; None selects nothing."""
    if selector is None:
        return False
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(expression(one, labels) for one in selector.get("matchExpressions") or [])


def expression(requirement: Object, labels: Object) -> bool:
    """Return whether `labels` meet one requirement (key, operator, values)."""
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values") or []
    value = labels.get(key)
    if operator == "In":
        return key in labels and value in values
    if operator == "NotIn":
        return key not in labels or value not in values
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) is (operator == "Exists")
    number, bound = amount(value), amount(values[0] if values else None)
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def term(node_term: Object, node: Object) -> bool:
    """Return whether a node selector term selects a node; an empty term selects none."""
    fields = {"metadata.name": node["metadata"]["name"]}
    by_label, by_field = node_term.get("matchExpressions") or [], node_term.get("matchFields") or []
    if not by_label and not by_field:
        return False
    return all(expression(one, labels_of(node)) for one in by_label) and all(
        expression(one, fields) for one in by_field
    )


def node_terms(spec: Object) -> list[Object] | None:
    """Return the terms of a pod's required node affinity, or None if it has none."""
    wanted = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return (wanted.get("nodeSelectorTerms") or []) if wanted else None


def allowed_values(spec: Object, label: str) -> list[str]:
    """Return the values of a label that the required node affinity allows, none if one of its terms allows any."""
    each = [
        [str(value) for one in term.get("matchExpressions") or [] for value in one.get("values") or []
         if one.get("key") == label and one.get("operator") == "In"]
        for term in node_terms(spec) or []
    ]  # fmt: skip
    return [value for values in each for value in values] if all(each) else []


def wants(spec: Object, node: Object) -> bool:
    """Return whether a pod's node selector and required affinity select a node."""
    labels, terms = labels_of(node), node_terms(spec)
    selected = all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())
    return selected and (terms is None or any(term(one, node) for one in terms))


def untolerated(spec: Object, node: Object) -> list[Object]:
    """Return the taints that keep a pod from a node. A cordoned node counts as tainted."""
    node_spec = node.get("spec") or {}
    taints = list(node_spec.get("taints") or [])
    if node_spec.get("unschedulable") and not any(taint["key"] == CORDON for taint in taints):
        taints.append({"key": CORDON, "effect": "NoSchedule"})
    tolerations = spec.get("tolerations") or []
    return [
        taint
        for taint in taints
        if taint.get("effect") != "PreferNoSchedule"
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def labels_of(item: Object) -> Object:
    return item["metadata"].get("labels") or {}


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")
