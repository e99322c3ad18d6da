"""Checks the path to a job's rendezvous: pod, Service, endpoints, policies, and name and port from pods."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tools.core import Say, State, UserError, Verdict, command_line, repo, tables, wait
from tools.job.diagnosis.hangs import admits
from tools.job.snapshot import JobPod, Snapshot
from tools.job.snapshot.log_lines import last_line
from tools.kube import Kubectl, Object, name_of, network_policy, selectors
from tools.workload.operator_pods import DEFAULT_PORT

CLUSTER_DNS = "kubernetes.default.svc"
MOST = 16  # pods that the check runs from
PORT = re.compile(r"[0-9]{1,5}")
TORCHRUN_PORT = 29500
# torchrun's options with a literal value, in one word, in two, or in a script.
ENDPOINT = re.compile(r"--rdzv[-_]endpoint[=\s]([\w.:-]+)")
ADDRESS = re.compile(r"--master[-_]addr[=\s]([\w.-]+)")
PORTS = re.compile(r"--master[-_]port[=\s]([0-9]{1,5})")
STARTS = 60.0  # seconds for an ephemeral container to start
LIVES = 300  # seconds that it runs, because it cannot be removed from the pod
PORT_REMEDIES: dict[str, str] = tables.load("job/tables.yaml")["ports"]


@dataclass(frozen=True)
class Rendezvous:
    """The host and port where the job's agents meet, and the pod of that name if there is one.

    `services` are the names that may be the Service of the host: a Service for each pod has the pod's name,
    one for all pods is the part of the host behind the first dot.
    """

    host: str
    port: int
    pod: JobPod | None

    @property
    def services(self) -> list[str]:
        subdomain = str(self.pod.spec.get("subdomain") or "") if self.pod else ""
        return list(dict.fromkeys(filter(None, [self.host, subdomain, *self.host.split(".")[:2]])))

    @property
    def address(self) -> str | None:
        return self.pod.address if self.pod else None


def rendezvous(seen: Snapshot) -> Rendezvous:
    """Return the rendezvous in the pods' environment or on their command line.

    Raises UserError for a job without pods, and with exit code 3 if neither names it.
    """
    first = next(iter(seen.training_pods), seen.require_pods()[0])
    values = first.environment
    endpoint = values.get("PET_RDZV_ENDPOINT") or _option(first, ENDPOINT)
    host, _, port = endpoint.partition(":")
    names = ("PET_MASTER_ADDR", "MASTER_ADDR")
    host = host or next((values[name] for name in names if values.get(name)), "") or _option(first, ADDRESS)
    port = port or values.get("PET_MASTER_PORT", "") or values.get("MASTER_PORT", "") or _option(first, PORTS)
    if not host and seen.workload.kind == "PyTorchJob":
        host = first.name
    if not host:
        message = f"{seen.name}: neither the pods' environment nor their command names the rendezvous"
        raise UserError(message, "debug reads PET_RDZV_ENDPOINT, MASTER_ADDR and torchrun's options", 3)
    bare = host.removesuffix(".cluster.local").removesuffix(".svc").removesuffix(f".{seen.namespace}")
    found = next((pod for pod in seen.pods if bare in pod.addresses), None)
    default = DEFAULT_PORT if seen.workload.kind == "PyTorchJob" else TORCHRUN_PORT
    return Rendezvous(host, int(port) if PORT.fullmatch(port) else default, found)


def _option(pod: JobPod, pattern: re.Pattern[str]) -> str:
    """Return the literal value of an option in the pod's command, or an empty text."""
    words = [*(pod.container_spec.get("command") or []), *(pod.container_spec.get("args") or [])]
    found = pattern.search("\n".join(word for word in words if isinstance(word, str)))
    return found[1] if found else ""


def check_objects(seen: Snapshot, slices: list[Object] | None) -> Iterator[Verdict]:
    """Yield the hops that the API server describes. `slices` are the EndpointSlices, None if not readable."""
    there = rendezvous(seen)
    yield _pod(there)
    yield _service(seen, there)
    yield _endpoints(there, slices)
    yield _policy(seen, there)


def _hop(name: str, state: State, summary: str, source: str = "", remedy: str | None = None) -> Verdict:
    return Verdict(state, summary, remedy=remedy, details={"hop": name, "from": source or None})


def _pod(there: Rendezvous) -> Verdict:
    if there.pod is None:
        return _hop("pod", State.FAIL, f"no pod of the job is named {there.host}, the rendezvous of all pods")
    where = f"{there.host} on {there.pod.node or 'no node'}"
    if not there.pod.running:
        reason = there.pod.waiting[0] or there.pod.phase
        return _hop("pod", State.FAIL, f"{where} is not running: {reason}", remedy="yard job why")
    return _hop("pod", State.PASS, f"{where} is running, its address is {there.address or 'unknown'}")


def _service(seen: Snapshot, there: Rendezvous) -> Verdict:
    if not seen.saw("Service"):
        return _hop("service", State.CANNOT_TELL, f"Services: {seen.unseen.get('Service', 'not seen')}")
    service = service_of(seen, there)
    if service is None:
        remedy = f"{seen.workload.maker} or the manifest creates it: read the job's events"
        return _hop("service", State.FAIL, f"there is no Service {' or '.join(there.services)}", remedy=remedy)
    spec, name = service.get("spec") or {}, name_of(service)
    if there.pod and not selectors.selects({"matchLabels": spec.get("selector") or {}}, there.pod.labels):
        return _hop("service", State.FAIL, f"the Service {name} does not select the pod {there.pod.name}")
    kind = "headless" if spec.get("clusterIP") == "None" else f"at {spec.get('clusterIP')}"
    return _hop("service", State.PASS, f"the Service {name} is {kind} and selects the pod")


def service_of(seen: Snapshot, there: Rendezvous) -> Object | None:
    """Return the Service by which the rendezvous' host name resolves, None if there is none."""
    return next(filter(None, (seen.find("Service", name) for name in there.services)), None)


def _endpoints(there: Rendezvous, slices: list[Object] | None) -> Verdict:
    if slices is None:
        return _hop("endpoints", State.CANNOT_TELL, "the EndpointSlices could not be read")
    points = [point for one in slices for point in one.get("endpoints") or []]
    ready = [point for point in points if (point.get("conditions") or {}).get("ready") is not False]
    addresses = sorted({address for point in ready for address in point.get("addresses") or []})
    if not ready:
        why = "the pod is not Ready" if points else "it has no endpoint at all"
        return _hop("endpoints", State.FAIL, f"the Service of {there.host} has no ready endpoint: {why}")
    shown = f"{', '.join(addresses[:4])}{', ...' if len(addresses) > 4 else ''}"
    line = f"the endpoints are {shown}"
    if there.address and there.address not in addresses:
        remedy = "the endpoint controller is late or down"
        line += f", but the pod's address is {there.address}"
        return _hop("endpoints", State.FAIL, line, remedy=remedy)
    return _hop("endpoints", State.PASS, f"{line}: the pod's address is there")


def _policy(seen: Snapshot, there: Rendezvous) -> Verdict:
    if not seen.saw("NetworkPolicy") or there.pod is None:
        return _hop("policy", State.CANNOT_TELL, "the NetworkPolicies or the pod could not be read")
    labels = there.pod.labels
    selecting = [policy for policy in seen.of("NetworkPolicy") if network_policy.applies(policy, "Ingress", labels)]
    if not selecting:
        remedy = "admit only the job's pods, as base/pytorchjob/networkpolicy.yaml does"
        line = f"no NetworkPolicy selects {there.host}: any pod may reach it"
        return _hop("policy", State.WARN, line, remedy=remedy)
    admitting = [name_of(policy) for policy in selecting if admits(policy, "Ingress", there.pod)]
    if admitting:
        return _hop("policy", State.PASS, f"{', '.join(admitting)} admits the job's own pods")
    remedy = "admit the job's pods, as base/pytorchjob/networkpolicy.yaml does"
    names = ", ".join(map(name_of, selecting))
    line = f"{names} selects {there.host} and admits none of the job's pods"
    return _hop("policy", State.FAIL, line, remedy=remedy)


def check_from_pods(kubectl: Kubectl, seen: Snapshot, sources: list[tuple[JobPod, str]], say: Say) -> Iterator[Verdict]:
    """Yield the result of each source (a pod and its container): cluster DNS, the host's name, its port."""
    there = rendezvous(seen)
    script = (repo.root() / "base/services/debug/reach.py").read_text(encoding="utf-8")
    for pod, container in sources:
        say(f"checking from {pod.name}")
        targets = [CLUSTER_DNS, there.host, f"{there.host}:{there.port}"]
        targets += [f"{there.address}:{there.port}"] if there.address else []
        words = ("python3", "-", "--json", *targets)
        done = kubectl.run("exec", f"--container={container}", "--stdin", names=[pod.name], command=words, stdin=script)
        try:
            hops = list(checked(there, pod, json.loads(done.stdout)))
        except (ValueError, TypeError, KeyError, RecursionError):  # whoever made the image wrote the answer
            line = f"{pod.short} cannot run the check: {last_line(done.stderr)}"
            hops = [_hop("look", State.CANNOT_TELL, line, pod.name)]
        yield from hops


def checked(there: Rendezvous, pod: JobPod, found: list[Object]) -> Iterator[Verdict]:
    """Yield the hops of one pod from the answers of base/services/debug/reach.py there."""
    dns, name, by_name, *direct = found
    good = dns["state"] == "good"
    remedy = "the cluster's DNS: kubectl get pods -n kube-system; a NetworkPolicy must allow egress to port 53"
    yield _from(pod, "dns", good, dns["line"], remedy)
    right = name["state"] == "good" and there.address in (None, *name["addresses"])
    line, remedy = name["line"], "the hops service and endpoints show which part is missing"
    if name["addresses"] and not right:
        line += f", but the pod is {there.address}"
        remedy = "a stale DNS answer: the record expires after its TTL"
    yield _from(pod, "name", right, line, remedy)
    for one in [*direct, *([by_name] if by_name["state"] != "unresolved" else [])]:
        yield _from(pod, "port", one["state"] == "good", one["line"], PORT_REMEDIES.get(one["state"]))


def _from(pod: JobPod, hop: str, good: bool, line: str, remedy: str | None) -> Verdict:
    state = State.PASS if good else State.FAIL
    return _hop(hop, state, f"{pod.short}: {line}", pod.name, None if good else remedy)


def sources(kubectl: Kubectl, seen: Snapshot, ephemeral: bool, say: Say) -> list[tuple[JobPod, str]]:
    """Return the pods to check from, each with a running container.

    With `ephemeral`, pods whose own container does not run get one with the same image. It shares the pod's
    network and labels, fits the restricted Pod Security standard, and ends by itself.
    """
    found = []
    for pod in seen.pods[:MOST]:
        if pod.running:
            found.append((pod, pod.container_name))
        elif ephemeral and pod.node and pod.phase == "Running":
            found.append((pod, _ephemeral_container(kubectl, pod, say)))
    return found


def _ephemeral_container(kubectl: Kubectl, pod: JobPod, say: Say) -> str:
    name = f"yard-debug-{uuid.uuid4().hex[:5]}"
    say(f"adding the ephemeral container {name} to {pod.name}; it ends after {LIVES} s")
    image = f"--image={pod.container_spec.get('image')}"
    words: tuple[str, ...] = ("debug", image, f"--container={name}", "--profile=restricted", "--attach=false")
    words += ("--image-pull-policy=IfNotPresent", "--quiet")
    kubectl.text(*words, names=[pod.name], command=["sleep", str(LIVES)])

    def state() -> Object:
        status = kubectl.json("get", "pod", names=[pod.name]).get("status") or {}
        added = status.get("ephemeralContainerStatuses") or []
        return next((dict(one["state"]) for one in added if one["name"] == name), {})

    last = wait.settled(state, lambda found: "running" in found, STARTS, 0.5)
    if "running" not in last:
        raise UserError(f"the ephemeral container of {pod.name} does not start: {json.dumps(last)}", code=3)
    return name


def slices(kubectl: Kubectl, seen: Snapshot) -> list[Object] | None:
    """Return the EndpointSlices of the rendezvous' Service, None if they may not be read."""
    try:
        there = rendezvous(seen)
        service = service_of(seen, there)
        label = command_line.selector("kubernetes.io/service-name", name_of(service) if service else there.host)
        return kubectl.items("endpointslices.discovery.k8s.io", label)
    except UserError:
        return None
