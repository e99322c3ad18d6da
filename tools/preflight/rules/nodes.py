"""Rules on the machines that a pod selects."""

import functools
import re
from collections.abc import Iterator
from dataclasses import replace

from tools.core import Verdict, bad, doubtful, good, nearest
from tools.facts.instances import INSTANCES
from tools.facts.node_labels import HYPERPOD, KNOWN, OPEN, RESERVED, VALUES
from tools.kube.manifests import Object
from tools.kube.selectors import REQUIRED, ZONE, allowed_values, node_terms, selects
from tools.preflight.rule import Place, rule
from tools.preflight.rules.security import labels_of
from tools.preflight.subject import INSTANCE_LABELS, Job, Subject, Template

TOPOLOGY, GROUP = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-group-name"
ZONE_ID = "topology.k8s.aws/zone-id"
ZONES = (ZONE, ZONE_ID)
# Labels of nodes that share one zone: EKS's groups of the network lie in a zone.
WITHIN_ZONE = re.compile(rf"{re.escape(ZONE)}|{re.escape(ZONE_ID)}|topology\.k8s\.aws/network-node-layer-[1-9]")
REGION = re.compile(r"[a-z]{2}(?:-[a-z]{2,9}){1,3}-\d")  # of AWS, whose zones have a letter behind it
TYPE_NAME = re.compile(r"[a-z]+[0-9][a-z0-9-]*\.(nano|micro|small|medium|large|xlarge|[0-9]+xlarge|metal(-[0-9]+xl)?)")
FAMILIES = {name.partition(".")[0] for name in INSTANCES}
ALMOST = 0.85  # similarity of a misspelt label to the right one
CLOSE = 0.75  # of a misspelt type to the right one
ARCH_LABELS = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
ARCHITECTURES = {"arm64": "arm64", "aarch64": "arm64", "amd64": "amd64", "x86_64": "amd64", "x86-64": "amd64"}


@rule("instance-types", each="templates")
def instance_types(subject: Subject, template: Template) -> Iterator[Verdict]:
    selected = template.selected
    if not selected.names:
        return
    place = Place(template.object, selected.path, ", ".join(selected.names))
    wrong = [name for name in selected.unknown if _misspelt(name)]
    contradiction = _contradiction(template)
    if wrong:
        match = nearest(wrong[0], INSTANCES)
        remedy = f"did you mean {match}?" if match else "see the instance types of EC2"
        yield bad(place, f"{wrong[0]} is not an instance type", remedy)
    elif contradiction:
        yield bad(place, f"node selector and affinity exclude each other: {contradiction}", "keep one")
    elif selected.unknown:
        others = [name for name in selected.unknown if not TYPE_NAME.fullmatch(name)]
        summary = f"{', '.join(selected.unknown)}: not in tools/facts/instances.yaml"
        remedy = f"kubectl get nodes -L {INSTANCE_LABELS[0]} shows the types of a cluster" if others else "add its row"
        yield doubtful(place, f"{summary}: whether the pod fits is not checked", remedy)
    else:
        yield good(place, "known instance types")


def _misspelt(name: str) -> bool:
    """Return whether a name is meant as a type of EC2 and is not one. Other clouds have names of other forms."""
    if TYPE_NAME.fullmatch(name) or "$" in name:
        return False
    return name.partition(".")[0].lower() in FAMILIES or nearest(name, INSTANCES, cutoff=CLOSE) is not None


def _contradiction(template: Template) -> str:
    """Return both sides if no instance type satisfies selector and affinity, else an empty text."""
    selector = template.spec.get("nodeSelector") or {}
    fixed = [selector[label] for label in INSTANCE_LABELS if label in selector]
    spec = {key: value for key, value in template.spec.items() if key != "nodeSelector"}
    allowed = replace(template, spec=spec).selected.names
    if not fixed or not allowed or all(name in allowed for name in fixed):
        return ""
    return f"{', '.join(fixed)} and {', '.join(allowed)}"


@rule("hyperpod-nodes", each="training")
def hyperpod_nodes(subject: Subject, template: Template) -> Iterator[Verdict]:
    names, item = template.selected.names, template.item
    keys = [*(item["metadata"].get("annotations") or {}), *(template.spec.get("nodeSelector") or {})]
    if not names or (item.get("kind") != "HyperPodPyTorchJob" and not any(key.startswith(HYPERPOD) for key in keys)):
        return
    place = Place(template.object, template.selected.path, ", ".join(names))
    if any(name.startswith("ml.") for name in names):
        yield good(place, "HyperPod's names are included")
    else:
        yield bad(place, "no node of HyperPod has these labels", f"add ml.{names[0]}")


@rule("efa-one-zone", each="jobs")
def efa_one_zone(subject: Subject, job: Job) -> Iterator[Verdict]:
    templates = [one for one in job.templates if one.training and one.efa > 0]
    if not templates or max(one.nodes for one in templates) < 2:
        return
    zones = [zone for one in templates if (zone := _zone(one))]
    place = Place(job.object, templates[0].spec_path, ", ".join(sorted(set(zones))) or "no zone")
    labels = [labels_of(subject, one) for one in templates]
    spread = next((path for one, its in zip(templates, labels, strict=True) if (path := _spread(one, its))), "")
    if len(set(zones)) > 1:
        yield bad(place, "pods with EFA are placed in different zones, and EFA does not cross one", "one zone")
    elif spread:
        yield bad(place, f"{spread} puts pods with EFA into different zones, which EFA does not cross", "remove it")
    elif len(zones) == len(templates) or _by_kueue(templates) or all(map(_together, templates, labels)):
        yield good(place, "the pods are kept in one zone")
    else:
        remedy = f"a required podAffinity over {ZONE} that selects the job's pods"
        if any(TOPOLOGY in (one.metadata.get("annotations") or {}) for one in templates):
            remedy += f"; {TOPOLOGY} needs a queue, a label of one zone, and the same {GROUP} in all roles"
        yield doubtful(place, "nothing keeps pods with EFA in one zone, and EFA does not cross one", remedy)


def _zone(template: Template) -> str:
    """Return the only zone that a pod may be in, an empty text if it may be in several."""
    for label in ZONES:
        fixed = (template.spec.get("nodeSelector") or {}).get(label)
        allowed = set(allowed_values(template.spec, label))
        if fixed or len(allowed) == 1:
            return str(fixed or allowed.pop())
    return ""


def _spread(template: Template, labels: dict[str, str]) -> str:
    """Return the field that puts the pods of a template into different zones, an empty text without one."""
    if any(one["topologyKey"] in ZONES and _own(one, template, labels) for one in _terms(template, "podAntiAffinity")):
        return "podAntiAffinity"
    if _zone(template):  # the only one that a constraint counts
        return ""
    constraints = template.spec.get("topologySpreadConstraints") or []
    hard = [one for one in constraints if one["whenUnsatisfiable"] == "DoNotSchedule" and one["topologyKey"] in ZONES]
    spreads = any(_own(one, template, labels) and (one.get("maxSkew") or 1) < template.nodes for one in hard)
    return "topologySpreadConstraints" if spreads else ""


def _by_kueue(templates: list[Template]) -> bool:
    """Return whether Kueue places all pods in one zone: it places each template by itself, or those of a group."""
    notes = [one.metadata.get("annotations") or {} for one in templates]
    asked = all(WITHIN_ZONE.fullmatch(one.get(TOPOLOGY) or "") for one in notes)
    job, groups = templates[0].workload, {one.get(GROUP) for one in notes}
    return bool(asked and job and job.queue) and (len(notes) == 1 or (len(groups) == 1 and None not in groups))


def _together(template: Template, labels: dict[str, str]) -> bool:
    """Return whether pod affinity keeps a job's pods in one zone."""
    terms = _terms(template, "podAffinity")
    return any(WITHIN_ZONE.fullmatch(term["topologyKey"]) and _own(term, template, labels) for term in terms)


def _terms(template: Template, kind: str) -> list[Object]:
    return ((template.spec.get("affinity") or {}).get(kind) or {}).get(REQUIRED) or []


def _own(term: Object, template: Template, labels: dict[str, str]) -> bool:
    """Return whether a term selects the template's own pods, which have these labels."""
    here = template.namespace in (term.get("namespaces") or [template.namespace])
    return here and selects(term.get("labelSelector"), labels)


@rule("architecture", each="templates")
def architecture(subject: Subject, template: Template) -> Iterator[Verdict]:
    nodes = _node_architectures(template)
    if len(nodes) > 1:
        place = Place(template.object, template.spec_path, ", ".join(sorted(nodes)))
        yield bad(place, "node selector and instance type have different architectures", "keep one")
        return
    for path, container in template.containers():
        image = str(container.get("image") or "")
        built = {value for key, value in ARCHITECTURES.items() if re.search(rf"(?<![a-z0-9]){key}(?![a-z0-9])", image)}
        if len(built) != 1 or not nodes:
            continue
        place = Place(template.object, f"{path}.image", image)
        if built == nodes:
            yield good(place, f"the image and the nodes are {built.pop()}")
        else:
            need = next(iter(nodes))
            yield bad(place, f"an image for {built.pop()} on {need} nodes", f"use an image for {need}")


def _node_architectures(template: Template) -> set[str]:
    """Return the architectures of the pod's nodes, as far as the manifest shows them."""
    selector = template.spec.get("nodeSelector") or {}
    architectures = {selector[label] for label in ARCH_LABELS if label in selector}
    for name in template.selected.bare:
        if name in INSTANCES:
            architectures.add(INSTANCES[name].architecture)
        elif re.match(r"[a-z]+[0-9]+g[a-z]*\.", name):  # Graviton: c7g, m8gd, g5g
            architectures.add("arm64")
    return architectures & {"arm64", "amd64"}


@rule("node-labels", each="templates")
def node_labels(subject: Subject, template: Template) -> Iterator[Verdict]:
    terms = node_terms(template.spec) or []
    for path, key, values in _wanted_labels(template, terms):
        place = Place(template.object, path, f"{key}: {', '.join(values)}" if values else key)
        alternative = ".nodeSelector[" not in path and len(terms) > 1
        summary, remedy = _label_fault(key, values)
        if not summary:
            if key in KNOWN:
                yield good(place, "a label that nodes have")
        elif remedy and not alternative:
            yield bad(place, summary, remedy)
        else:
            yield doubtful(place, summary, remedy or "see kubectl get nodes --show-labels")


def _wanted_labels(template: Template, terms: list[Object]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield path, key and allowed values of each label that a node must have."""
    for key, value in (template.spec.get("nodeSelector") or {}).items():
        yield f"{template.spec_path}.nodeSelector[{key}]", key, [value]
    for term in terms:
        for one in term.get("matchExpressions") or []:
            if one["operator"] not in ("NotIn", "DoesNotExist"):
                values = one.get("values") or [] if one["operator"] == "In" else []
                yield f"{template.spec_path}.affinity.nodeAffinity[{one['key']}]", one["key"], values


@functools.lru_cache(maxsize=256)
def _nearest_label(key: str) -> str | None:
    # A short name, such as `zone`, is a label of the team's own.
    return nearest(key, KNOWN, cutoff=ALMOST) if "/" in key else None


def _label_fault(key: str, values: list[str]) -> tuple[str, str]:
    """Return what is wrong with a label, and the remedy if no node can have it; empty texts if nothing is."""
    if "$" in key or key.startswith(OPEN):
        return "", ""
    if key == ZONE and values and all(map(REGION.fullmatch, values)):
        return f"{values[0]} is a region, and no node has it as its zone", f"{key}: {values[0]}a, or another zone"
    if key in KNOWN:
        allowed = VALUES.get(key)
        if allowed is None or not values or any(value in allowed or "$" in value for value in values):
            return "", ""
        return f"no node has {key}: {values[0]}", f"one of {', '.join(allowed)}"
    match = _nearest_label(key)
    if match:
        return f"no node has the label {key}", f"did you mean {match}?"
    return (f"{key} is not a label that Kubernetes or its providers set", "") if key.startswith(RESERVED) else ("", "")
