"""Whether the jobs of a manifest fit a cluster, as the facts of its cluster.env describe it, offline.

A fact that is not there is unknown, and `none` means that the cluster has nothing of the kind.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tools.cells.kustomize_graph import is_kustomization, reached
from tools.cluster import cluster_env, machines
from tools.cluster.machines import Machines
from tools.cluster.snapshot import VOLCANO_QUEUES
from tools.cluster.spec import Spec
from tools.core import State, Verdict, nearest, output, repo
from tools.facts import compatibility
from tools.kube import Manifests, Object, name_of, quantity
from tools.kube.manifests import parse
from tools.kube.selectors import REQUIRED, ZONE, node_terms, selects, untolerated, wants
from tools.workload import Role, Workload, kinds, operator_pods
from tools.workload.volcano import VolcanoJob

KUEUE, OPERATOR = "base/plugins/kueue", "base/plugins/training-operator"
OWN_IMAGE = re.compile(r"(?:^|/)trainer-(?:cpu|cuda)(?:[:@]|$)")
LOCK = "requirements.lock"  # which these images install
PODS = Decimal(110)  # the most on a node that its kubelet starts by default
HOST = "kubernetes.io/hostname"
VOLCANO = VolcanoJob.api.rpartition("/")[0]
NODE = "node"  # the resource of which each node has one
SPREAD = "topologySpreadConstraints"
STATED = ("cpu", "memory", "ephemeral-storage")  # what every node has, and a fact may not state
REASON = "the cluster must serve the job's kind and have its machines, claims and queue"


def check(cluster: Spec, manifests: Manifests) -> list[Verdict]:
    """Return a verdict for each thing that the jobs need of the cluster."""
    brought = {name_of(one) for one in manifests.of_kind("PersistentVolumeClaim")}
    found: list[Verdict] = []
    for job in kinds.find(manifests).workloads:
        kind = kind_name(job)
        found.append(_named(cluster, "JOB_KINDS", kind, f"the kind {kind}", "yard cluster validate"))
        taken: list[Mapping[str, float]] = []
        for role in job.roles:
            verdict, shares = _nodes(cluster, job, role)
            found.append(verdict)
            taken += [shares] if shares else []
            for claim in sorted(_claims(role.template["spec"]) - brought):
                found.append(_of_team(cluster, job, "CLAIMS", claim, f"the claim {claim}", "base/storage has claims"))
        if len(taken) > 1 and not _at_once(taken):
            summary = f"whether all roles of {job.kind} {job.name} fit at the same time is unknown"
            found.append(_verdict(State.CANNOT_TELL, summary, None, cluster.source))
        if isinstance(job, VolcanoJob) and job.queue != "default":  # which Volcano itself makes
            summary = f"whether Volcano has the queue {job.queue} is unknown: no fact states its queues"
            remedy = f"kubectl get {VOLCANO_QUEUES} {job.queue}"
            found.append(_verdict(State.CANNOT_TELL, summary, remedy, job.title))
        elif job.queue and not isinstance(job, VolcanoJob):
            what, remedy = f"the queue {job.queue}", "base/plugins/kueue/queue"
            found.append(_of_team(cluster, job, "QUEUES", job.queue, what, remedy))
            found += _without_integration(cluster, job)
        if job.kind == "HyperPodPyTorchJob":
            found.append(_hyperpod(cluster, job))
    kubernetes = {"kubernetes": [cluster.get("KUBERNETES_VERSION") or ""]}
    if cluster.get("HYPERPOD_CLUSTER_NAME") and (outside := compatibility.outside_hyperpod("service", kubernetes)):
        summary = "AWS documents HyperPod for other versions of Kubernetes"
        remedy = "AWS may document more by now: SageMaker developer guide, Getting started with Amazon EKS support"
        found.append(_verdict(State.WARN, summary, remedy, *outside, _at(cluster, "KUBERNETES_VERSION")))
    return list({one.summary: one for one in found}.values())


def kind_name(job: Workload | type[Workload]) -> str:
    """Return the name of a kind of job in JOB_KINDS: Volcano's Job has its group with it."""
    group = job.api.rpartition("/")[0]
    return f"{job.kind}.{group}" if group == VOLCANO else job.kind


def _listed(cluster: Spec, name: str) -> list[str] | None:
    """Return the names in a fact, or None where it is not set."""
    value = cluster.get(name)
    return None if value is None else [] if value == "none" else [one.strip() for one in value.split(",")]


def _at(cluster: Spec, name: str) -> str:
    """Return file, line and value of a fact."""
    return f"{cluster.at(name)}: {f'{name}={cluster.get(name)}' if name in cluster.facts else f'no {name}'}"


def _named(cluster: Spec, fact: str, name: str, what: str, remedy: str) -> Verdict:
    there = _listed(cluster, fact)
    if there is None:
        hint = "yard cluster init NAME reads it"
        return _verdict(State.CANNOT_TELL, f"whether the cluster has {what} is unknown", hint, _at(cluster, fact))
    if name in there:
        return _verdict(State.PASS, f"the cluster has {what}", None, _at(cluster, fact))
    match = nearest(name, there)
    hint = f"did you mean {match}?" if match else remedy
    return _verdict(State.FAIL, f"the cluster does not have {what}", hint, _at(cluster, fact))


def _of_team(cluster: Spec, job: Workload, fact: str, name: str, what: str, remedy: str) -> Verdict:
    """Look a name up in a fact about the team's namespace, of which it says nothing for jobs in another one."""
    own, team = job.item["metadata"].get("namespace"), cluster.get("TEAM_NAMESPACE")
    if own and team and own != team:
        summary = f"whether namespace {own} has {what} is unknown: {fact} is of namespace {team}"
        return _verdict(State.CANNOT_TELL, summary, f"yard cluster init NAME -n {own} reads it", _at(cluster, fact))
    return _named(cluster, fact, name, what, remedy)


def _hyperpod(cluster: Spec, job: Workload) -> Verdict:
    """Compare the versions with those for which AWS documents the operator of HyperPodPyTorchJobs."""
    kubernetes, tags = cluster.get("KUBERNETES_VERSION"), _kueue(cluster)
    images = {str(one.get("image")): _torch(str(one.get("image"))) for one in job.training_containers()}
    running: dict[str, set[str | None]] = {
        "kubernetes": {kubernetes},
        "kueue": set(tags),
        "torch": set(images.values()),
    }
    known = {name: [one for one in texts if one] for name, texts in running.items()}
    outside = compatibility.outside_hyperpod("own operator", known)
    seen = [_at(cluster, "KUBERNETES_VERSION"), *(f"{KUEUE}: Kueue {tag}" for tag in tags)]
    seen += [f"{image}: torch {found or 'unknown'}" for image, found in images.items()]
    if outside:
        remedy = "submit a PyTorchJob (no feature hyperpod-job), or use documented versions"
        summary = "AWS documents HyperPod's training operator for other versions than these"
        return _verdict(State.WARN, summary, remedy, *outside, *seen)
    if unknown := [name for name, texts in running.items() if None in texts]:
        summary = f"whether AWS documents HyperPod's training operator for this {' and '.join(unknown)} is unknown"
        oldest, newest = compatibility.HYPERPOD["own operator"][unknown[-1]]
        remedy = f"compare {unknown[-1]} yourself: {oldest} to {newest} are documented"
        return _verdict(State.CANNOT_TELL, summary, remedy, *seen)
    return _verdict(State.PASS, "AWS documents HyperPod's training operator for these versions", None, *seen)


def _torch(image: str) -> str | None:
    """Return the torch of an image: the locked one for an image of images/, else by the name, or None."""
    if not OWN_IMAGE.search(image):
        return compatibility.torch_of_image(image)
    locked = re.search(r"(?m)^torch==([\w.]+)", (repo.root() / LOCK).read_text(encoding="utf-8"))
    return locked[1] if locked else None


def operator(directory: Path) -> str:
    """Return the release of the training operator that a cluster's directory states, empty without one."""
    fact = cluster_env.read(directory / cluster_env.FILE).get("OPERATORS")
    if fact is None:
        return operator_pods.LATEST if _takes(directory, f"{OPERATOR}/flux") else ""
    return operator_pods.release(one.strip() for one in fact.value.split(","))


def _takes(directory: Path, part: str) -> bool:
    """Return whether a cluster's directory takes a folder of base/."""
    plugins, root = directory / "plugins", cluster_env.root_of(directory)
    return is_kustomization(plugins) and root / part in reached(root, plugins)


def _release(cluster: Spec) -> Manifests:
    """Return the release of Kueue that the cluster's directory takes from base/, no objects if it takes none."""
    if not _takes(cluster.directory, KUEUE):
        return Manifests(KUEUE, [])
    path = cluster_env.root_of(cluster.directory) / KUEUE / "release.yaml"
    return parse(path.read_text(encoding="utf-8"), KUEUE)


def _kueue(cluster: Spec) -> list[str]:
    return [str(one["spec"]["ref"]["tag"]) for one in _release(cluster).of_kind("OCIRepository")]


def _without_integration(cluster: Spec, job: Workload) -> Iterator[Verdict]:
    """Yield that the directory's Kueue does not take jobs of this kind, so that their label has no effect."""
    name = f"{job.api.rpartition('/')[0]}/{job.kind}".lower()
    for one in _release(cluster).of_kind("HelmRelease"):
        text = one["spec"]["values"]["managerConfig"]["controllerManagerConfigYaml"]
        frameworks = yaml.safe_load(text)["integrations"]["frameworks"]
        if name not in frameworks:
            summary = f"Kueue has no integration of {job.kind}: the job starts without its queue {job.queue}"
            yield _verdict(State.WARN, summary, f"add {name}", f"{KUEUE}/release.yaml: {', '.join(frameworks)}")


def _nodes(cluster: Spec, job: Workload, role: Role) -> tuple[Verdict, dict[str, float]]:
    """Check that the pods of a role fit on the machines that their selectors allow.

    Also returns the share of these machines that they take, by zone as `_rooms`. It is empty where they may not fit.
    """
    spec, title = role.template["spec"], f"{output.count(role.replicas, 'pod')} of {job.kind} {job.name}"
    title += f" ({role.name})" if role.name else ""
    every = machines.read(cluster)
    if not every:
        hint = "yard cluster init NAME reads the nodes"
        summary = f"whether {title} fit is unknown: no nodes are described"
        return _verdict(State.CANNOT_TELL, summary, hint, _at(cluster, "NODES_...")), {}
    near, apart = (_topologies(job, role, kind) for kind in ("podAffinity", "podAntiAffinity"))
    spread = _spreads(job, role)
    skew = 0 if HOST in apart or _host_ports(spec) else spread.get(HOST, 0)
    alone = {NODE: Decimal(1)} if skew or HOST in apart or _host_ports(spec) else {}
    asked, together = quantity.pod_requests(spec) | alone, ZONE in near
    wanted = [replace(one, room={**one.room, NODE: Decimal(skew or 1)}) for one in every if _chosen(spec, one)]
    closed = {one.fact: taints for one in wanted if (taints := _untolerated(spec, one) - set(asked))}
    chosen = [one for one in wanted if one.fact not in closed]
    others = near - {ZONE} | apart - {HOST} | set(spread) - {HOST, ZONE}
    unseen = [f"which nodes share {key} is not stated" for key in sorted(others)]
    if ZONE in spread and not together and not _even(chosen, asked, role.replicas):
        unseen.append(f"{SPREAD} over {ZONE} need room in each zone")
    unclear = {one.fact: doubts for one in chosen if (doubts := [*_doubts(spec, one, asked, together), *unseen])}
    counts = {one.fact: output.count(_room(one, asked), "pod") for one in chosen}
    rows = [f"{_at(cluster, fact)}: {'at most ' if fact in unclear else ''}{pods}" for fact, pods in counts.items()]
    rows += [f"{_at(cluster, fact)}: the taint {', '.join(taints)}" for fact, taints in closed.items()]
    certain = _rooms([one for one in chosen if one.fact not in unclear], asked, together)
    shares = {zone: role.replicas / max(1, room) for zone, room in certain.items() if room >= role.replicas}
    if shares:
        return _verdict(State.PASS, f"{title} fit on the cluster's nodes", None, *rows), shares
    free = {key: value for key, value in asked.items() if key != NODE} if skew else asked
    possible = _rooms(chosen, free, together)
    if (unclear or skew) and max(possible.values()) >= role.replicas:
        reasons = dict.fromkeys(itertools.chain(*unclear.values()))
        reasons |= {f"nodes without a pod, also cordoned ones, count in {SPREAD} over {HOST}": None} if skew else {}
        summary = f"whether {title} fit is unknown: {'; '.join(reasons)}"
        return _verdict(State.CANNOT_TELL, summary, None, *rows), {}
    there = f"{cluster.source}: " + ", ".join(f"{one.count} of {one.title}" for one in every)
    need = ", ".join(f"{key} {quantity.plain(value)}" for key, value in sorted(asked.items()))
    why = f"each needs {need}"
    if not chosen:
        keys = sorted(set().union(*closed.values()))
        why = f"they do not tolerate {', '.join(keys)}" if keys else "no node is of the kind that they ask for"
    if sum(_room(one, asked) for one in chosen) >= role.replicas:  # it is only the zone
        places = ", ".join(f"{room} in {zone}" for zone, room in possible.items())
        why = f"they must be in one zone, and there is room for {places}"
    remedy = "choose another cell or --nodes, or add nodes"
    return _verdict(State.FAIL, f"{title} do not fit: {why}", remedy, *(rows or [there])), {}


def _at_once(taken: list[Mapping[str, float]]) -> bool:
    """Return whether roles fit at the same time by the shares that they take, in a zone that is the same for all."""
    zones = {zone for shares in taken for zone in shares if zone} or {""}
    return any(sum(shares.get(zone, shares.get("", 2.0)) for shares in taken) <= 1 for zone in zones)


def _own(job: Workload, role: Role, terms: Iterable[Object]) -> list[Object]:
    """Return the terms that select pods of the job."""
    labels = {**((role.template.get("metadata") or {}).get("labels") or {}), **job.selector}
    here = (one for one in terms if job.namespace in (one.get("namespaces") or [job.namespace]))
    return [one for one in here if selects(one.get("labelSelector"), labels)]


def _spreads(job: Workload, role: Role) -> dict[str, int]:
    """Return the labels over which the pods of a role must be spread, each with the most that they may differ."""
    hard = (one for one in role.template["spec"].get(SPREAD) or [] if one.get("whenUnsatisfiable") == "DoNotSchedule")
    found = {str(one.get("topologyKey")): one.get("maxSkew") or 1 for one in _own(job, role, hard)}
    return found if role.replicas > 1 else {}


def _even(some: list[Machines], asked: Mapping[str, Decimal], pods: int) -> bool:
    """Return whether each zone of some machines has room for its share of the pods."""
    rooms = _rooms(some, asked, True)
    return all(len(one.labels.get(ZONE, ())) == 1 for one in some) and min(rooms.values()) >= -(-pods // len(rooms))


def _topologies(job: Workload, role: Role, kind: str) -> set[str]:
    """Return the labels by which required pod (anti-)affinity keeps the pods of a role near to others of the job."""
    terms = ((role.template["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or []
    found = {str(one.get("topologyKey")) for one in _own(job, role, terms)}
    return found if sum(one.replicas for one in job.roles) > 1 else set()


def _host_ports(spec: Object) -> bool:
    """Return whether pods take ports of their node, which has each only once."""
    field = "containerPort" if spec.get("hostNetwork") else "hostPort"
    return any(port.get(field) for one in spec["containers"] for port in one.get("ports") or [])


def _doubts(spec: Object, one: Machines, asked: Mapping[str, Decimal], together: bool) -> list[str]:
    """Return what is not known of machines and decides whether they take the pods."""
    zones = one.labels.get(ZONE, ())
    unknown = _unknown(spec, one) | _unstated(one, asked) | ({ZONE} if together and not zones else set())
    within = [zone for zone in zones if _chosen(spec, replace(one, labels={**one.labels, ZONE: (zone,)}))]
    matters = len(zones) > 1 and (together or len(within) < len(zones))
    several = [f"{one.fact} is in {len(zones)} zones"] if matters else []
    closed = set() if one.by_device else _untolerated(spec, one)
    several += [f"{one.fact} has the taint {key}, which some clusters let pods past that ask for it" for key in closed]
    return [*([f"{one.fact} does not state {', '.join(sorted(unknown))}"] if unknown else []), *several]


def _untolerated(spec: Object, one: Machines) -> set[str]:
    """Return the keys of the taints that keep pods from machines."""
    return {str(taint["key"]) for taint in untolerated(spec, {"spec": {"taints": list(one.taints)}})}


def _rooms(some: list[Machines], asked: Mapping[str, Decimal], together: bool) -> dict[str, int]:
    """Return for how many pods there is room: in each zone for pods that stay together, else as {"": room}.

    Machines of several zones count in each of them, and those of an unknown zone in all.
    """
    zones = sorted({zone for one in some for zone in one.labels.get(ZONE, ())}) if together else []
    there = {zone: [one for one in some if zone in one.labels.get(ZONE, (zone,))] for zone in zones} or {"": some}
    return {zone: sum(_room(one, asked) for one in group) for zone, group in there.items()}


def _keys(spec: Object) -> set[str]:
    """Return the labels that a pod's selectors ask for."""
    terms = node_terms(spec) or []
    rules = (one for term in terms for key in ("matchExpressions", "matchFields") for one in term.get(key) or [])
    asked = {str(one["key"]) for one in rules}
    return asked | set(spec.get("nodeSelector") or {})


def _unknown(spec: Object, one: Machines) -> set[str]:
    """Return the labels that a pod's selectors ask for, and of which nothing is known."""
    return _keys(spec) - set(one.labels) - one.absent


def _chosen(spec: Object, one: Machines) -> bool:
    """Return whether the selectors of a pod allow machines, as far as their labels are known."""
    unknown = _unknown(spec, one)
    known = {"nodeSelector": {k: v for k, v in (spec.get("nodeSelector") or {}).items() if k not in unknown}}
    terms = [
        [rule for rule in term.get("matchExpressions") or [] if rule["key"] not in unknown]
        for term in node_terms(spec) or []
    ]
    if terms and all(terms):  # an empty term is one of which nothing is known
        affinity = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": rules} for rules in terms]}}
        known["affinity"] = {"nodeAffinity": affinity}
    labels = [dict(zip(one.labels, values, strict=True)) for values in itertools.product(*one.labels.values())]
    return any(wants(known, {"metadata": {"name": "node", "labels": each}}) for each in labels)


def _unstated(one: Machines, asked: Mapping[str, Decimal]) -> set[str]:
    """Return what pods ask for, every node has, and of which the fact does not say how much."""
    return {key for key in STATED if asked.get(key) and key not in one.room}


def _room(one: Machines, asked: Mapping[str, Decimal]) -> int:
    """Return how many pods the machines take together, each with its own share; the most where a fact lacks one."""
    shares = [one.room.get(key, Decimal(0)) // value for key, value in {"pods": Decimal(1), **asked}.items()
              if value > 0 and (key in one.room or quantity.extended(key))]  # fmt: skip
    return int(min(shares, default=PODS)) * one.count


def _claims(spec: Object) -> set[str]:
    volumes = (one.get("persistentVolumeClaim") or {} for one in spec.get("volumes") or [])
    return {str(one["claimName"]) for one in volumes if one.get("claimName")}


def _verdict(state: State, summary: str, remedy: str | None, *evidence: str) -> Verdict:
    return Verdict(state, summary, list(evidence), remedy, {"rule": "cluster"})
