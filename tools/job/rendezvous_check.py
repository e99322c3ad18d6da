"""The way to a job's rendezvous, hop by hop: pod, Service, endpoints, policy; from each pod name and port."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.job.diagnosis.hangs import admits
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube import network_policy
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object
from tools.kube.selectors import selects
from tools.simulator.operator_pods import DEFAULT_PORT

CLUSTER_DNS = "kubernetes.default.svc"
MOST = 16  # pods that are looked from; of a larger job the first ones
STARTS = 60.0  # seconds that an ephemeral container has to start
LIVES = 300  # seconds that it stays, for it cannot be taken out of the pod again


@dataclass(frozen=True)
class Meeting:
    """Where the job's agents meet: a host's name and a port, and the pod of that name where there is one."""

    host: str
    port: int
    pod: JobPod | None


def meeting(seen: Snapshot) -> Meeting:
    """Return where the pods' environment says that they meet; UserError for a job without pods."""
    if not seen.pods:
        raise UserError(f"{seen.name} has no pods", "yard job why says what it waits for", code=3)
    entries = seen.pods[0].container_spec.get("env") or []
    values = {str(one["name"]): str(one.get("value") or "") for one in entries}
    host, _, port = values.get("PET_RDZV_ENDPOINT", "").partition(":")
    host = host or values.get("MASTER_ADDR", "") or seen.pods[0].name
    port = port or values.get("MASTER_PORT", "")
    found = next((pod for pod in seen.pods if pod.name == host), None)
    return Meeting(host, int(port) if port.isdigit() else DEFAULT_PORT, found)


def told(seen: Snapshot, slices: list[Object] | None) -> Iterator[Verdict]:
    """Yield the hops that the API server tells of; `slices` are the EndpointSlices, None where not seen."""
    there = meeting(seen)
    yield _pod(there)
    yield _service(seen, there)
    yield _endpoints(there, slices)
    yield _policy(seen, there)


def _hop(name: str, state: State, summary: str, source: str = "", remedy: str | None = None) -> Verdict:
    return Verdict(state, summary, remedy=remedy, details={"hop": name, "from": source or None})


def address(pod: JobPod) -> str | None:
    """Return a pod's IP address."""
    return pod.status.get("podIP") or None


def _pod(there: Meeting) -> Verdict:
    if there.pod is None:
        return _hop("pod", State.FAIL, f"no pod of the job is called {there.host}, where all of them meet")
    where = f"{there.host} on {there.pod.node or 'no node'}"
    if not there.pod.running:
        reason = there.pod.waiting[0] or there.pod.phase
        return _hop("pod", State.FAIL, f"{where} does not run: {reason}", remedy="yard job why")
    return _hop("pod", State.PASS, f"{where} runs, its address is {address(there.pod) or 'not known'}")


def _service(seen: Snapshot, there: Meeting) -> Verdict:
    if not seen.saw("Service"):
        return _hop("service", State.CANNOT_TELL, f"Services: {seen.unseen.get('Service', 'not seen')}")
    service = seen.find("Service", there.host)
    if service is None:
        remedy = "the operator makes one Service a pod: look at its log, and at the job's events"
        return _hop("service", State.FAIL, f"there is no Service {there.host}", remedy=remedy)
    spec = service.get("spec") or {}
    if there.pod and not selects({"matchLabels": spec.get("selector") or {}}, there.pod.labels):
        return _hop("service", State.FAIL, f"the Service {there.host} does not select the pod of its name")
    kind = "headless" if spec.get("clusterIP") == "None" else f"at {spec.get('clusterIP')}"
    return _hop("service", State.PASS, f"the Service {there.host} is {kind} and selects the pod")


def _endpoints(there: Meeting, slices: list[Object] | None) -> Verdict:
    if slices is None:
        return _hop("endpoints", State.CANNOT_TELL, "the EndpointSlices could not be seen")
    points = [point for one in slices for point in one.get("endpoints") or []]
    ready = [point for point in points if (point.get("conditions") or {}).get("ready") is not False]
    addresses = sorted({found for point in ready for found in point.get("addresses") or []})
    if not ready:
        why = "the pod is not Ready" if points else "none at all"
        return _hop("endpoints", State.FAIL, f"the Service {there.host} has no ready endpoint: {why}")
    own = address(there.pod) if there.pod else None
    if own and own not in addresses:
        line = f"the endpoints are {', '.join(addresses)}, and the pod's address is {own}"
        return _hop("endpoints", State.FAIL, line, remedy="the endpoint controller lags behind, or is down")
    return _hop("endpoints", State.PASS, f"the endpoints are {', '.join(addresses)}, the pod's address")


def _policy(seen: Snapshot, there: Meeting) -> Verdict:
    if not seen.saw("NetworkPolicy") or there.pod is None:
        return _hop("policy", State.CANNOT_TELL, "the NetworkPolicies or the pod could not be seen")
    labels = there.pod.labels
    about = [
        policy for policy in seen.of("NetworkPolicy") if network_policy.applies(policy, "Ingress", labels)
    ]
    if not about:
        return _hop("policy", State.PASS, f"no NetworkPolicy selects {there.host}: everybody may reach it")
    names = [str(policy["metadata"]["name"]) for policy in about]
    letting = [str(policy["metadata"]["name"]) for policy in about if admits(policy, "Ingress", there.pod)]
    if letting:
        return _hop("policy", State.PASS, f"{', '.join(letting)} lets the job's own pods in")
    remedy = "let the job's pods reach each other: base/pytorchjob/networkpolicy.yaml does"
    line = f"{', '.join(names)} selects {there.host} and lets none of the job's pods in"
    return _hop("policy", State.FAIL, line, remedy=remedy)


def tried(
    kubectl: Kubectl, seen: Snapshot, sources: list[tuple[JobPod, str]], say: Callable[[str], None]
) -> Iterator[Verdict]:
    """Yield what each source (a pod and a container of it) finds: cluster DNS, the host's name, its port."""
    there = meeting(seen)
    script = (repo.root() / "base/services/debug/reach.py").read_text(encoding="utf-8")
    for pod, container in sources:
        say(f"looking from {pod.name}")
        targets = [CLUSTER_DNS, there.host, f"{there.host}:{there.port}"]
        own = address(there.pod) if there.pod else None
        targets += [f"{own}:{there.port}"] if own else []
        words = ("exec", pod.name, f"--container={container}", "--stdin", "--", "python3", "-", "--json")
        done = kubectl.run(*words, *targets, stdin=script)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
            yield _hop("look", State.CANNOT_TELL, f"{pod.short} could not be looked from: {said}", pod.name)
            continue
        yield from judge(there, pod, found)


def judge(there: Meeting, pod: JobPod, found: list[Object]) -> Iterator[Verdict]:
    """Yield the hops of one pod, by what base/services/debug/reach.py has found there."""
    dns, name, by_name, *direct = found
    who = pod.short
    good = dns["state"] == "good"
    remedy = "the cluster's DNS: kubectl get pods -n kube-system; egress to port 53 of a NetworkPolicy"
    yield _hop("dns", _state(good), f"{who}: {dns['line']}", pod.name, None if good else remedy)
    own = address(there.pod) if there.pod else None
    right = name["state"] == "good" and (own is None or own in name["addresses"])
    line = name["line"] if right or not name["addresses"] else f"{name['line']}, and the pod is {own}"
    remedy = "a stale DNS answer: it is right again after the record's time to live"
    remedy = remedy if name["addresses"] else "the hops service and endpoints say which part of it is missing"
    yield _hop("name", _state(right), f"{who}: {line}", pod.name, None if right else remedy)
    for one in [*direct, *([by_name] if by_name["state"] != "unresolved" else [])]:
        works = one["state"] == "good"
        yield _hop("port", _state(works), f"{who}: {one['line']}", pod.name, PORT_REMEDIES.get(one["state"]))


def _state(good: bool) -> State:
    return State.PASS if good else State.FAIL


PORT_REMEDIES = {
    "refused": "torchrun of that pod is not up, or has ended: its log says why",
    "silent": "a NetworkPolicy or a security group: nodes of a job let all traffic of their own group in",
    "unreachable": "the network between the nodes: routes, security groups, the network plugin",
}


def sources(
    kubectl: Kubectl, seen: Snapshot, ephemeral: bool, say: Callable[[str], None]
) -> list[tuple[JobPod, str]]:
    """Return the pods to look from, each with a container that runs.

    With `ephemeral` a container of the same image is added to pods whose own does not run: it shares their
    network and labels, fits the restricted Pod Security standard, and ends by itself.
    """
    found = []
    for pod in seen.pods[:MOST]:
        if pod.running:
            found.append((pod, pod.container_name))
        elif ephemeral and pod.node and pod.phase == "Running":
            found.append((pod, _added(kubectl, pod, say)))
    return found


def _added(kubectl: Kubectl, pod: JobPod, say: Callable[[str], None]) -> str:
    """Add an ephemeral container to a pod and wait until it runs; return its name."""
    name = f"yard-debug-{uuid.uuid4().hex[:5]}"
    say(f"adding the ephemeral container {name} to {pod.name}: it ends after {LIVES} s")
    image = f"--image={pod.container_spec.get('image')}"
    words = ("debug", pod.name, image, f"--container={name}", "--profile=restricted", "--attach=false")
    kubectl.text(*words, "--image-pull-policy=IfNotPresent", "--quiet", "--", "sleep", str(LIVES))
    began = time.monotonic()
    state: Object = {}
    while time.monotonic() - began < STARTS:
        status = (kubectl.json("get", "pod", pod.name).get("status") or {}).get("ephemeralContainerStatuses")
        state = next((one["state"] for one in status or [] if one["name"] == name), {})
        if "running" in state:
            return name
        time.sleep(0.5)
    raise UserError(f"the ephemeral container of {pod.name} does not start: {json.dumps(state)}", code=3)


def slices(kubectl: Kubectl, seen: Snapshot) -> list[Object] | None:
    """Return the EndpointSlices of the meeting's Service, None where they may not be seen."""
    label = f"--selector=kubernetes.io/service-name={meeting(seen).host}"
    try:
        return kubectl.items("endpointslices.discovery.k8s.io", label)
    except UserError:
        return None
