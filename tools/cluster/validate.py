"""Has a cluster all that a job needs: judged by what nodes advertise and controllers serve, never by names.

Each check reads a State; what could not be seen is CANNOT TELL. The two that ask the API server itself (may
I, does the webhook answer) take a kubectl and are left out where a kept State is judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from tools.aws.retry_budget import Patience
from tools.cluster import platform
from tools.cluster.finding import Finding, Level, bad, good, unclear, warn
from tools.cluster.nodes import HEALTH_LABEL, Node, table
from tools.cluster.spec import Spec
from tools.cluster.state import CRD, OPERATOR_WEBHOOK, State
from tools.core import output, repo
from tools.core.errors import UserError
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES, Instance
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object

JOBS = "pytorchjobs.kubeflow.org"
FSX = "fsx.csi.aws.com"
CLAIM = "trainyard"
NAMESPACE = "base/plugins/namespace/namespace.yaml"
SLICES = "endpointslices.discovery.k8s.io"
# Conditions that the EKS node monitoring agent sets (EKS user guide, node health).
AGENT_CONDITIONS = ("AcceleratedHardwareReady", "KernelReady", "NetworkingReady", "StorageReady")
# What submitting, watching and ending a job takes (base/pytorchjob, yard job).
RIGHTS = (
    *((verb, JOBS) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(("create", kind) for kind in ("configmaps", "serviceaccounts", "networkpolicies.networking.k8s.io")),
    *(("list", kind) for kind in ("pods", "events")),
    *(("get", "pods/log"), ("create", "pods/exec")),
)
WEBHOOK_ATTEMPTS, WEBHOOK_SECONDS = 5, 3.0
# How the API server says it: of admission, as its versions spell it, and of a type's conversion.
WEBHOOK_DOWN = ("failed calling webhook", "failed to call webhook", "conversion webhook for")
FREE_PODS = 3  # a worker, a debug pod, a preparation job

Check = Callable[[Spec, State], Finding]


def judge(spec: Spec, state: State) -> list[Finding]:
    """Return the findings of all checks that a State answers."""
    found = []
    for name, kinds, check in CHECKS:
        hidden = [state.unseen[kind] for kind in kinds if kind in state.unseen]
        found.append(unclear(name, hidden[0]) if hidden else check(spec, state))
    return [one for one in found if one.summary]


def nodes_ready(spec: Spec, state: State) -> Finding:
    """Judge whether nodes are there and ready."""
    rows = table(state)
    ill = [
        f"{one.name}: {'; '.join(one.troubles) or 'not ready'}"
        for one in rows
        if one.troubles or not one.ready
    ]
    if not any(one.ready for one in rows):
        return bad(
            "nodes", f"none of {len(rows)} nodes is ready", f"yard cluster scale {spec.title} GROUP N", *ill
        )
    if ill:
        return warn("nodes", f"{len(ill)} of {len(rows)} nodes are not well", "yard cluster nodes", *ill)
    return good("nodes", f"{len(rows)} ready")


def devices(spec: Spec, state: State) -> Finding:
    """Judge the accelerators that ready nodes advertise against the table of machines."""
    wanted = [(one, machine) for one, machine in _machines(state) if machine.accelerators]
    if not wanted:
        return Finding("devices", Level.PASS, "")
    fewer = [
        f"{one.name} ({one.instance}): {one.devices} of {machine.accelerators} {machine.device_resource}"
        for one, machine in wanted
        if one.devices < machine.accelerators
    ]
    if fewer:
        remedy = "the device plugin (base/plugins); a node with some of its devices is ill: replace it"
        return bad("devices", f"{len(fewer)} of {len(wanted)} nodes advertise too few", remedy, *fewer)
    return good("devices", f"{len(wanted)} nodes advertise all their devices")


def efa(spec: Spec, state: State) -> Finding:
    """Judge the EFA interfaces that accelerator nodes advertise."""
    wanted = [(one, machine) for one, machine in _machines(state) if machine.efa and machine.accelerators]
    if not wanted:
        return Finding("efa", Level.PASS, "")
    none = [f"{one.name} ({one.instance}): 0 of {machine.efa}" for one, machine in wanted if one.efa == 0]
    if none:
        remedy = "efaEnabled for the group, and the EFA device plugin (base/plugins/efa)"
        return bad("efa", f"{len(none)} of {len(wanted)} nodes advertise no {EFA}", remedy, *none)
    fewer = [
        f"{one.name} ({one.instance}): {one.efa} of {machine.efa}"
        for one, machine in wanted
        if one.efa < machine.efa
    ]
    if fewer:
        return warn(
            "efa",
            f"{len(fewer)} nodes have fewer interfaces than their machine",
            "yard cluster stack",
            *fewer,
        )
    return good("efa", f"{len(wanted)} nodes have all interfaces of their machine")


def operator(spec: Spec, state: State) -> Finding:
    """Judge whether the API server serves PyTorchJobs: the CRD is established, its webhook has endpoints."""
    crd = state.find(CRD, JOBS)
    if crd is None:
        return bad("operator", f"{JOBS} is not served", f"yard platform {spec.title}/plugins, or Flux")
    conditions = (crd.get("status") or {}).get("conditions") or []
    if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
        return bad("operator", f"the CRD {JOBS} is not established", f"kubectl describe crd {JOBS}")
    deaf = []
    for configuration in state.of(OPERATOR_WEBHOOK):
        for hook in configuration.get("webhooks") or []:
            service = (hook.get("clientConfig") or {}).get("service")
            if (
                service
                and _is_about_jobs(hook)
                and not _has_endpoint(state, service["namespace"], service["name"])
            ):
                deaf.append(f"{hook['name']}: {service['namespace']}/{service['name']} has no ready endpoint")
    if deaf:
        return bad(
            "operator",
            "PyTorchJobs are served, and their webhook does not answer",
            "wait, or look at its pods",
            *deaf,
        )
    return good("operator", "PyTorchJobs are served, and their webhooks have endpoints")


def dns(spec: Spec, state: State) -> Finding:
    """Judge whether somebody answers for the cluster's DNS."""
    if _has_endpoint(state, "kube-system", "kube-dns"):
        return good("dns", "kube-system/kube-dns has ready endpoints")
    return bad("dns", "kube-system/kube-dns has no ready endpoint", "the add-on coredns, and a node for it")


def file_system(spec: Spec, state: State) -> Finding:
    """Judge whether ready nodes serve FSx, and hand new file systems over to the jobs' user."""
    if spec.get("FSX_FILE_SYSTEM_ID") is None and spec.get("FSX_SUBNET_ID") is None:
        return Finding("fsx", Level.PASS, "")
    driver = state.find("csidrivers", FSX)
    if driver is None:
        return bad("fsx", f"no CSI driver {FSX}", f"yard platform {spec.title}/plugins, or the EKS add-on")
    ready = [one.name for one in table(state) if one.ready]
    serving = {
        one["metadata"]["name"]
        for one in state.of("csinodes")
        if any(item["name"] == FSX for item in (one.get("spec") or {}).get("drivers") or [])
    }
    without = [name for name in ready if name not in serving]
    if without:
        return bad(
            "fsx", f"{len(without)} of {len(ready)} nodes do not serve {FSX}", "its node pods", *without
        )
    if (driver.get("spec") or {}).get("fsGroupPolicy") != "File":
        return bad("fsx", "the driver leaves new file systems to root (fsGroupPolicy is not File)", FIX)
    return good("fsx", f"{len(ready)} nodes serve {FSX}")


def namespace(spec: Spec, state: State) -> Finding:
    """Judge whether the team's namespace is there."""
    if state.find("namespaces", spec.namespace) is None:
        return bad("namespace", f"there is no namespace {spec.namespace}", FIX)
    return good("namespace", spec.namespace)


def claim(spec: Spec, state: State) -> Finding:
    """Judge whether the team's claim is bound."""
    found = state.find("persistentvolumeclaims", CLAIM, spec.namespace)
    if found is None:
        return bad(
            "claim", f"{spec.namespace} has no claim {CLAIM}", f"yard platform {spec.title}/storage, or Flux"
        )
    phase = (found.get("status") or {}).get("phase")
    if phase != "Bound":
        return bad("claim", f"{CLAIM} is {phase}", f"kubectl describe pvc {CLAIM} -n {spec.namespace}")
    return good("claim", f"{CLAIM} is bound")


def health(spec: Spec, state: State) -> Finding:
    """Judge whether the nodes' health is watched: EKS's agent by its conditions, HyperPod by its label."""
    silent = []
    for item in state.of("nodes"):
        kinds = {one["type"] for one in (item.get("status") or {}).get("conditions") or []}
        labelled = HEALTH_LABEL in (item["metadata"].get("labels") or {})
        if not labelled and not kinds & set(AGENT_CONDITIONS):
            silent.append(item["metadata"]["name"])
    if silent:
        remedy = "the add-on eks-node-monitoring-agent, or HyperPod's health monitoring agent"
        return warn("health agents", f"nobody watches {len(silent)} nodes", remedy, *silent)
    return good("health agents", "every node's health is watched")


def auto_resume(spec: Spec, state: State) -> Finding:
    """Judge whether HyperPod resumes jobs of the team by itself, as far as the namespace decides that."""
    if spec.get("HYPERPOD_CLUSTER_NAME") is None:
        return Finding("auto-resume", Level.PASS, "")
    if spec.namespace != "kubeflow" and not spec.namespace.startswith("hyperpod"):
        remedy = "TEAM_NAMESPACE=hyperpod-..., or resume by hand: yard job retry"
        return warn("auto-resume", f"HyperPod resumes no job in {spec.namespace} by itself", remedy)
    limit = "with --feature hyperpod twice a job; AWS documents it for the training operator 1.7.0 to 1.8.1"
    return good("auto-resume", f"{spec.namespace} is a namespace of HyperPod's auto-resume", limit)


def pod_room(spec: Spec, state: State) -> Finding:
    """Judge whether ready nodes take a few more pods."""
    full = [
        f"{one.name}: {one.pods_used} of {one.pods}"
        for one in table(state)
        if one.ready and one.pods - one.pods_used < FREE_PODS
    ]
    if full:
        remedy = f"yard cluster network {spec.title} --prefix-delegation on"
        return warn(
            "pods", f"{len(full)} nodes have room for fewer than {FREE_PODS} more pods", remedy, *full
        )
    return good("pods", "every node has room for more pods")


FIX = "yard cluster validate --fix does it"
CHECKS: tuple[tuple[str, tuple[str, ...], Check], ...] = (
    ("nodes", ("nodes",), nodes_ready),
    ("devices", ("nodes",), devices),
    ("efa", ("nodes",), efa),
    ("operator", (CRD, OPERATOR_WEBHOOK, SLICES), operator),
    ("dns", (SLICES,), dns),
    ("fsx", ("csidrivers", "csinodes", "nodes"), file_system),
    ("namespace", ("namespaces",), namespace),
    ("claim", ("persistentvolumeclaims",), claim),
    ("health agents", ("nodes",), health),
    ("auto-resume", (), auto_resume),
    ("pods", ("nodes", "pods"), pod_room),
)


def ask(kubectl: Kubectl, spec: Spec) -> list[Finding]:
    """Return what only the API server can say: what the caller may, and whether a job would be taken."""
    return [rights(kubectl, spec), webhook(kubectl, spec)]


def rights(kubectl: Kubectl, spec: Spec) -> Finding:
    """Judge by access reviews what the caller may do with a job and its parts in the team's namespace."""
    items = [_review(spec.namespace, verb, resource) for verb, resource in RIGHTS]
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    answer = "{.status.allowed}{'\\n'}"
    words = ("create", "--filename=-", f"--output=jsonpath={answer}")
    with Patience("the cluster").during("access reviews"):
        done = kubectl.run(*words, stdin=json.dumps(listing))
    allowed = done.stdout.split()
    if done.returncode != 0 or len(allowed) != len(RIGHTS):
        return unclear("rights", (done.stderr.strip().splitlines() or ["no answer"])[-1])
    missing = [" ".join(one) for one, said in zip(RIGHTS, allowed, strict=True) if said != "true"]
    if missing:
        remedy = f"yard cluster access {spec.title} PRINCIPAL --policy edit --namespace {spec.namespace}"
        return bad("rights", f"in {spec.namespace} you may not {', '.join(missing)}", remedy)
    return good("rights", f"in {spec.namespace} you may all that a job needs: {len(RIGHTS)} access reviews")


def _review(namespace: str, verb: str, resource: str) -> Object:
    """Return the question whether the caller may, of a resource as `kubectl auth can-i` spells it."""
    name, _, group = resource.partition(".")
    name, _, part = name.partition("/")
    asked = {"namespace": namespace, "verb": verb, "resource": name, "group": group, "subresource": part}
    spec = {"resourceAttributes": {key: value for key, value in asked.items() if value}}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}


def webhook(kubectl: Kubectl, spec: Spec) -> Finding:
    """Judge by a dry run whether a job would be taken; a webhook that is not up yet is given time."""

    def dry_run() -> str | None:
        words = ("create", "--dry-run=server", "--filename=-")
        with Patience("the cluster").during("a PyTorchJob's dry run"):
            done = kubectl.run(*words, stdin=json.dumps(_job(spec)))
        if done.returncode == 0:
            return None
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1]

    reason = _patiently(dry_run)
    if reason is None:
        return good("admission", "a PyTorchJob is taken (dry run)")
    if "orbidden" in reason:
        return unclear("admission", reason)
    waited = f" for {WEBHOOK_ATTEMPTS} attempts" if _is_not_up(reason) else ""
    return bad(
        "admission",
        f"a PyTorchJob is refused{waited}: {reason}",
        "the findings on operator and namespace say why",
    )


def _patiently(attempt: Callable[[], str | None]) -> str | None:
    """Return why an attempt failed, None if it did not; one that meets a webhook not yet up is repeated."""
    reason = attempt()
    for number in range(2, WEBHOOK_ATTEMPTS + 1):
        if reason is None or not _is_not_up(reason):
            break
        output.note(f"a webhook is not up yet: attempt {number} of {WEBHOOK_ATTEMPTS}")
        time.sleep(WEBHOOK_SECONDS)
        reason = attempt()
    return reason


def _is_not_up(reason: str) -> bool:
    return any(words in reason for words in WEBHOOK_DOWN)


@dataclass(frozen=True)
class Fix:
    """A change that a finding wants: the words of kubectl, and its input."""

    line: str
    words: tuple[str, ...]
    stdin: str | None = None


def fixes(spec: Spec, findings: list[Finding]) -> list[Fix]:
    """Return what can be put right from here: each changes one object."""
    wanted = {one.name for one in findings if one.level is Level.FAIL and one.remedy == FIX}
    found = []
    if "namespace" in wanted:
        text = (repo.root() / NAMESPACE).read_text(encoding="utf-8")
        words = ("apply", "--server-side", "--filename=-")
        line = f"make the namespace {spec.namespace}"
        found.append(Fix(line, words, platform.substitute(text, spec.facts)))
    if "fsx" in wanted:
        patch = '{"spec":{"fsGroupPolicy":"File"}}'
        patched = ("patch", "csidriver", FSX, "--type=merge", f"--patch={patch}")
        found.append(Fix(f"set fsGroupPolicy of {FSX} to File", patched))
    return found


def carry_out(kubectl: Kubectl, fix: Fix) -> str | None:
    """Make a change; return why it was not made, or None. A webhook that is not up is given time."""

    def change() -> str | None:
        try:
            kubectl.text(*fix.words, stdin=fix.stdin)
        except UserError as problem:
            return problem.message
        return None

    return _patiently(change)


def _job(spec: Spec) -> Object:
    container = {"name": "pytorch", "image": "registry.k8s.io/pause:3.10", "command": ["/pause"]}
    worker = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "trainyard-validate", "namespace": spec.namespace},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def _machines(state: State) -> list[tuple[Node, Instance]]:
    """Return the ready nodes whose machine the table knows."""
    rows = [
        (one, INSTANCES.get(one.instance.removeprefix(HYPERPOD_PREFIX))) for one in table(state) if one.ready
    ]
    return [(one, machine) for one, machine in rows if machine is not None]


def _is_about_jobs(hook: Object) -> bool:
    rules = hook.get("rules") or []
    return any("kubeflow.org" in rule.get("apiGroups", []) for rule in rules)


def _has_endpoint(state: State, namespace: str, service: str) -> bool:
    """Say whether a service has an endpoint that is ready; one that does not say so is."""
    for item in state.of(SLICES):
        metadata = item["metadata"]
        named = (metadata.get("labels") or {}).get("kubernetes.io/service-name") == service
        if named and metadata.get("namespace") == namespace:
            ready = [(one.get("conditions") or {}).get("ready") for one in item.get("endpoints") or []]
            if any(one is not False for one in ready):
                return True
    return False
