"""Reads the facts of a cluster from its API server, for `yard cluster init`.

What was looked for and is missing is `none`. What could not be seen is not written; `unknown` has the reason.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tools.aws import Session
from tools.cluster import context, fit, machines, snapshot
from tools.cluster.cluster_env import Fact
from tools.cluster.component_checks import CLAIM
from tools.cluster.discover import Found, discover
from tools.cluster.node_checks import is_on_ec2
from tools.cluster.nodes import ZONE_LABEL
from tools.cluster.snapshot import CLAIMS, CLASSES, CRD, DAEMONS, DEPLOYMENTS, JOBS, OF_TEAM, QUEUES, Snapshot
from tools.cluster.spec import REGION, ZONE, Spec
from tools.core.tables import load
from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.kube import Kubectl, Object, name_of, selectors
from tools.kube.images import last_word
from tools.workload.kinds import KINDS as JOB_KINDS

KINDS = ("nodes", "namespaces", CRD, CLASSES, CLAIMS, DAEMONS, DEPLOYMENTS, QUEUES)
NO_CONTEXT = "storage classes, claims, operators and queues: no context leads to the cluster"
NONE = "none"
TEAM = "trainyard/team"  # the label of namespaces that base/plugins/namespace makes
NEW_TEAM = "training"  # where no namespace is a team's
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
WORD = re.compile(r"[A-Za-z0-9][\w.:/@-]{0,252}")  # names that need no quotes in a list
EKS_REGISTRY = re.compile(r"\d{12}\.dkr\.ecr\.[\w-]+\.amazonaws\.com(?:\.cn)?(?=/eks/)")
REGION_LABEL = "topology.kubernetes.io/region"
_OPERATORS: list[str] = load("cluster/tables.yaml")["operators"]


@dataclass(frozen=True)
class Asked:
    """The cluster that the user names: a context (None: the current one), or a cluster in AWS."""

    context: str | None
    namespace: str | None
    eks: str | None
    hyperpod: str | None


def read(session: Session | None, spec: Spec, asked: Asked) -> tuple[Found, Snapshot, str]:
    """Return what AWS (with a `session`) and the API server show, a Snapshot, and from where it was read."""
    found, chosen, sources = Found(), asked.context, []
    if session is not None:
        found, row = discover(session, spec, asked.eks, asked.hyperpod)
        sources.append(f"HyperPod cluster {asked.hyperpod}" if asked.hyperpod else f"EKS cluster {asked.eks}")
        chosen = context.leading_to(str(row.get("endpoint")))
        if chosen is None:
            found.missing.append(f"{NO_CONTEXT}: yard cluster kubeconfig {spec.title}, then repeat this command")
            if asked.namespace or "TEAM_NAMESPACE" not in spec.facts:
                found.put("TEAM_NAMESPACE", asked.namespace or NEW_TEAM)
            return found, Snapshot({}, dict.fromkeys(KINDS, NO_CONTEXT)), sources[0]
    kubectl = Kubectl(chosen)
    live = context.read(kubectl, asked.namespace)
    known = {**spec.facts, **{name: Fact(value) for name, value in found.facts.items()}}
    team = asked.namespace or known.get("TEAM_NAMESPACE", Fact(live.namespace)).value
    seen = snapshot.collect(kubectl, team, KINDS)
    _add_types(kubectl, seen)
    named = known.get("CLUSTER_NAME", Fact("")).value
    if named not in ("", live.get("CLUSTER_NAME")) and session is None:
        found.missing.append(f"{live.source} is not known to be the EKS cluster {named} of {spec.source}")
    more = observe(kubectl, live, asked.namespace, known, seen)
    found.facts = {**more.facts, **found.facts}
    found.unknown |= more.unknown
    found.missing += more.missing
    return found, seen, " and ".join([*sources, live.source])


def _add_types(kubectl: Kubectl, seen: Snapshot) -> None:
    """Add the names of the types that are served, which everyone may see, where CRDs are hidden."""
    if CRD in seen.unseen:
        done = kubectl.run("api-resources", "--verbs=create", "--output=name")
        if done.returncode == 0:
            seen.objects[CRD] = [{"metadata": {"name": name}} for name in done.stdout.split()]
            del seen.unseen[CRD]


def observe(kubectl: Kubectl, spec: Spec, team: str | None, known: Mapping[str, Fact], seen: Snapshot) -> Found:
    """Return the facts that a Snapshot of KINDS shows. `known` are those that the directory has.

    `team` is the namespace that the user has named. Raises UserError.
    """
    found = Found()
    if not known:
        found.put("ADOPTED", "true")  # trainyard did not create it
        for name in ("CLUSTER_NAME", "AWS_REGION"):
            found.put(name, spec.get(name))
    minor = context.version(kubectl)
    if minor is None:
        found.unknown["KUBERNETES_VERSION"] = "the API server does not say it"
    found.put("KUBERNETES_VERSION", minor)
    place = team or _team(spec, known, seen, found)
    found.put("TEAM_NAMESPACE", place)
    own = snapshot.collect(kubectl, place, OF_TEAM)  # seen may have only those of another namespace
    seen.objects.update(own.objects)
    classes = seen.of(CLASSES)
    tables: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("STORAGE_CLASSES", CLASSES, lambda: _listed(map(name_of, classes))),
        ("DEFAULT_STORAGE_CLASS", CLASSES, lambda: _listed(name_of(one) for one in classes if is_default(one))),
        ("CLAIMS", CLAIMS, lambda: _listed(_in(place, seen.of(CLAIMS)))),
        ("JOB_KINDS", CRD, lambda: _listed(_job_kinds(seen))),
        ("OPERATORS", DEPLOYMENTS, lambda: _listed(_operators(seen))),
        ("QUEUES", QUEUES, lambda: _listed(_in(place, seen.of(QUEUES)))),
    )
    for fact, kind, ask in tables:
        if "resource type" in seen.unseen.get(kind, ""):
            found.put(fact, NONE)
        elif kind in seen.unseen:
            found.unknown[fact] = seen.unseen[kind]
        else:
            found.put(fact, ask())
    _nodes(known, seen, found)
    return found


def lacking(team: str, seen: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield each folder of base/plugins that the cluster lacks, and why. What was not seen is not lacking."""
    if "namespaces" not in seen.unseen and seen.find("namespaces", team) is None:
        yield "namespace", f"the namespace {team} does not exist"
    if CRD not in seen.unseen and seen.find(CRD, JOBS) is None:
        yield "training-operator/flux", "PyTorchJobs are not served"
    for folder, resource in (("nvidia", NVIDIA), ("neuron", NEURON), ("efa", EFA)):
        without = [name_of(node) for node in seen.of("nodes") if _has_without(node, resource)]
        if without:
            yield folder, f"{len(without)} nodes have devices and do not advertise {resource}"


def _has_without(node: Object, resource: str) -> bool:
    """Return whether a node has devices of a resource by its type or label, and advertises none."""
    machine = machines.instance(node)
    there = machine is not None and (
        bool(machine.efa and machine.accelerators) if resource == EFA else machine.device_resource == resource
    )
    there |= resource == NVIDIA and selectors.labels_of(node).get("nvidia.com/gpu.present") == "true"
    room = (node.get("status") or {}).get("allocatable") or {}
    parts = resource == NVIDIA and any(map(machines.PARTS.match, room))
    return there and resource not in room and not parts


def _team(spec: Spec, known: Mapping[str, Fact], seen: Snapshot, found: Found) -> str:
    """Return the team's namespace: that of the directory, of the context, or the only one with a claim."""
    if "TEAM_NAMESPACE" in known:
        return known["TEAM_NAMESPACE"].value
    if spec.namespace != "default" or "namespaces" in seen.unseen:
        return spec.namespace
    labelled = [name_of(one) for one in seen.of("namespaces") if selectors.labels_of(one).get(TEAM) == "true"]
    claimed = [str(one["metadata"].get("namespace")) for one in seen.of(CLAIMS) if name_of(one) == CLAIM]
    for names in (labelled, claimed):
        if len(set(names)) == 1:
            return names[0]
    several = sorted({*labelled, *claimed})
    why = f"several may be the team's: {', '.join(several)}" if several else "no namespace is a team's"
    found.missing.append(f"{why}; TEAM_NAMESPACE={NEW_TEAM} is chosen here, -n chooses another")
    return NEW_TEAM


def _nodes(known: Mapping[str, Fact], seen: Snapshot, found: Found) -> None:
    if "nodes" in seen.unseen:
        found.unknown["NODES_..."] = seen.unseen["nodes"]
        return
    nodes = seen.of("nodes")
    taking = [node for node in nodes if machines.usable(node)]
    if len(taking) < len(nodes):
        left = len(nodes) - len(taking)
        found.missing.append(f"{left} of {len(nodes)} nodes are not ready or refuse pods of jobs, and are left out")
    on_ec2 = list(filter(is_on_ec2, nodes))
    regions = {selectors.labels_of(node).get(REGION_LABEL, "") for node in on_ec2}
    zones = sorted({zone for node in on_ec2 if ZONE.fullmatch(zone := selectors.labels_of(node).get(ZONE_LABEL, ""))})
    if len(regions) == 1 and REGION.fullmatch(next(iter(regions))):
        if "AWS_REGION" not in known:
            found.put("AWS_REGION", next(iter(regions)))
        if "ZONES" not in known:
            found.put("ZONES", ",".join(zones))
    stated = known["ZONES"].value if "ZONES" in known else found.facts.get("ZONES", "")
    for name, value in machines.facts(taking, known, [one.strip() for one in stated.split(",")]).items():
        found.put(name, value)
    kept = (image for one in seen.of(DAEMONS) for image in snapshot.images(one))
    registry = next((match[0] for image in kept if (match := EKS_REGISTRY.match(image))), None)
    found.put("EKS_IMAGE_REGISTRY", registry)


def _listed(names: Iterable[str]) -> str:
    return ",".join(sorted({name for name in names if WORD.fullmatch(name)})) or NONE


def _in(namespace: str, items: Iterable[Object]) -> Iterator[str]:
    return (name_of(one) for one in items if one["metadata"].get("namespace") == namespace)


def is_default(item: Object) -> bool:
    """Return whether a storage class is the default one."""
    return (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"


def _job_kinds(seen: Snapshot) -> Iterator[str]:
    """Yield the modelled kinds of jobs that the API server serves. Kubernetes' own Job needs no CRD."""
    served = {name_of(one) for one in seen.of(CRD)}
    return (fit.kind_name(kind) for kind in JOB_KINDS if kind.resource in served or kind.api == "batch/v1")


def _operators(seen: Snapshot) -> Iterator[str]:
    """Yield name and version of each known controller, by the image of its Deployment."""
    for one in seen.of(DEPLOYMENTS):
        for image in snapshot.images(one):
            name, tag = last_word(image)
            if name in _OPERATORS:
                yield f"{name}:{tag or 'unknown'}"
