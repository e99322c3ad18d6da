"""One pod of a job in the rendezvous: what it starts, and where it meets the others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.core import State, UserError
from tools.kube.manifests import Manifests, Object
from tools.simulator import environment, launch, script, volumes
from tools.simulator.command_line import option
from tools.simulator.launch import Launch
from tools.simulator.local_pod import gpus
from tools.simulator.shell_run import ENDLESS
from tools.simulator.torchrun import HYPERPOD, BadOptions, Torchrun
from tools.workload.hosts import Hosts, NoSuchHost
from tools.workload.pod import Pod

DEFAULT_MASTER_PORT = 29500  # torch/distributed/run.py
DEFAULT_C10D_PORT = 29400  # torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py
LONGEST_SHOWN = 500  # characters of a command in a verdict
MOST_FOLLOWED = 8_000_000  # characters of the commands of all pods together
# Options with which programs take their rendezvous themselves.
RENDEZVOUS = (
    *("init-method", "dist-url", "master-addr", "master-address", "main-process-ip", "coordinator-address"),
    *("rank", "node-rank", "machine-rank", "world-size", "num-nodes", "nnodes", "rdzv-endpoint"),
)
ADDRESSES = ("init-method", "dist-url", "dist-init-method")
OWN_ID = re.compile(r"\$\{?RANDOM\b\}?|\$\((?:uuidgen|date)\b[^)]{0,40}\)")  # a rendezvous id of each pod
ETCD = ("etcd", "etcd-v2")
GIVE_COMMAND = 'write it in the manifest as command: ["torchrun", ...], or give --command or --image-config'


class Finding(Exception):
    """The job's wiring is wrong or unknown: the state, reason and remedy of the verdict."""

    def __init__(self, reason: str, remedy: str | None = None, state: State = State.FAIL) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.state = reason, remedy, state


class Apart(Finding):
    """The pods do not meet by the variables that are known."""


class Idle(Finding):
    """The pod starts no program that trains."""


@dataclass(frozen=True)
class Node:
    """One pod in the rendezvous.

    `meeting` is (backend, the pod that hosts it, port, id); pods with equal values meet. `rank` is the node's
    rank where it is fixed (static rendezvous, RANK), else None. `processes` is None where torchrun counts
    devices itself.
    """

    pod: Pod
    launch: Launch
    meeting: tuple[str, str, int, str]
    nodes: tuple[int, int]
    processes: int | None
    rank: int | None

    def line(self) -> str:
        """The node as one line of evidence."""
        backend, host, port, _ = self.meeting
        nodes = f"{self.nodes[0]}:{self.nodes[1]}" if self.nodes[0] != self.nodes[1] else str(self.nodes[0])
        where = "its own" if host == self.pod.name and port == 0 else f"{host}:{port}"
        rank = "" if self.rank is None else f", node rank {self.rank}"
        count = "auto" if self.processes is None else self.processes
        return f"{self.pod.name}: {backend} rendezvous at {where}, nodes {nodes}, processes {count}{rank}"


@dataclass(frozen=True)
class Image:
    """What an image's configuration says: what starts, and its variables."""

    entrypoint: Sequence[str]
    command: Sequence[str]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """What the manifest does not say: configurations of images by name, or the whole command."""

    images: Mapping[str, Image] = field(default_factory=dict)
    command: Sequence[str] = ()


def node_of(pod: Pod, hosts: Hosts, given: Given) -> Node:
    """Return the node that a pod becomes. Raises Finding where it becomes none, or where that is unknown."""
    try:
        understood = launch_of(pod, hosts, given)
    except BadOptions as problem:
        raise Finding(f"{pod.name}: {problem}") from None
    except UserError as problem:
        raise Finding(f"{pod.name}: {problem.message}", problem.hint, State.CANNOT_TELL) from None
    if understood.unknown and understood.code and len(hosts.pods) == 1:
        return Node(pod, understood, ("env", pod.name, 0, ""), (1, 1), 1, 0)
    if understood.unknown:
        looked = f"looked at: {understood.shown[:LONGEST_SHOWN]}"
        kind = Idle if understood.idle else Finding
        raise kind(f"{pod.name}: {understood.unknown}; {looked}", None, State.CANNOT_TELL)
    if understood.torchrun is None:
        return _plain_node(pod, hosts, understood)
    try:
        return _torchrun_node(pod, hosts, understood, understood.torchrun)
    except BadOptions as problem:
        raise Finding(f"{pod.name}: {problem}") from None


def launch_of(pod: Pod, hosts: Hosts, given: Given) -> Launch:
    """Return what a pod starts. Raises UserError where only its image knows it, and BadOptions."""
    manifests = hosts.job.manifests
    resolved = environment.resolve(pod, pod.container, manifests, share=1)
    words, known, complete = start_of(pod.container, resolved.values, given)
    size = sum(map(len, words))
    if size * len(hosts.pods) > MOST_FOLLOWED:
        raise UserError(f"the commands of all pods have more than {MOST_FOLLOWED:,} characters")
    if not pod.spec.get("hostNetwork"):
        known = {"HOSTNAME": pod.spec.get("hostname") or pod.full_name, **known}
    files = {**pod.files, **volumes.texts(pod, pod.container, manifests)}
    plain = volumes.unexecutable(pod, pod.container, manifests)
    return launch.read(words, known, files, gpus(pod), complete, plain, resolved)


def endless_init(pod: Pod, manifests: Manifests) -> str:
    """Return why an init container surely never ends, or an empty text."""
    for container in pod.spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always" or not container.get("command"):
            continue
        values = environment.resolve(pod, container, manifests, share=1).values
        words, known, _ = start_of(container, values, Given())
        programs = script.follow(words, known, volumes.texts(pod, container, manifests)).programs
        limited = any(parent.name == "timeout" for one in programs for parent in one.parents)
        last = programs[-1] if programs and not limited else None
        if last is not None and last.words[:2] in ENDLESS and not (last.condition or last.background):
            return f"the init container {container.get('name')} runs `{' '.join(last.words[:2])}`"
    return ""


def _need(pod: Pod, torchrun: Torchrun, *names: str) -> None:
    """Raise a Finding where the value of an option is not known."""
    for name in names:
        if name in torchrun.unknown:
            raise Finding(f"{pod.name}: --{name} is {torchrun.unknown[name]}", None, State.CANNOT_TELL)


def _torchrun_node(pod: Pod, hosts: Hosts, understood: Launch, torchrun: Torchrun) -> Node:
    _need(pod, torchrun, "nnodes", "rdzv-backend", "nproc-per-node")
    values, nodes, processes = torchrun.values, torchrun.nodes(), torchrun.processes()
    backend = values["rdzv-backend"] or "static"
    endpoint = values["rdzv-endpoint"]
    _need(pod, torchrun, "rdzv-endpoint")
    alone = backend == "static" and not endpoint and values["master-port"] is None and nodes[1] == 1
    if torchrun.launcher == HYPERPOD:
        return _hyperpod_node(pod, hosts, understood, nodes, processes)
    if "standalone" in torchrun.flags or (alone and "master-port" not in torchrun.unknown):
        return Node(pod, understood, ("c10d", pod.name, 0, "standalone"), (1, 1), processes, None)
    if backend == "static":
        _need(pod, torchrun, "node-rank", *(() if endpoint else ("master-addr", "master-port")))
        host, port = _endpoint(endpoint or f"{values['master-addr']}:{values['master-port'] or DEFAULT_MASTER_PORT}")
        rank = int(values["node-rank"] or 0)
        meeting = ("static", _host(host, pod, hosts), port, "")
        return Node(pod, understood, meeting, (nodes[1], nodes[1]), processes, rank)
    if len(hosts.pods) > 1 and (match := OWN_ID.search(torchrun.unknown.get("rdzv-id", ""))):
        raise Finding(f"{pod.name}: --rdzv-id is {match[0]}, another one in each pod", "the name of the job")
    _need(pod, torchrun, "rdzv-id", "rdzv-conf")
    meeting_id = values["rdzv-id"] or "none"
    if backend in ETCD:
        return Node(pod, understood, (backend, *_etcd(endpoint or "", pod, hosts), meeting_id), nodes, processes, None)
    if backend != "c10d":
        raise Finding(f"{pod.name}: the rendezvous backend {backend} is not known", None, State.CANNOT_TELL)
    if "is_host" in (values["rdzv-conf"] or ""):
        raise Finding(f"{pod.name}: --rdzv-conf is_host sets the host by hand", None, State.CANNOT_TELL)
    if not endpoint:
        raise Apart(f"{pod.name}: c10d rendezvous without an endpoint: {hosts.job.no_rendezvous}", hosts.job.to_meet)
    host, port = _endpoint(endpoint)
    meeting = ("c10d", _host(host, pod, hosts), port, meeting_id)
    return Node(pod, understood, meeting, nodes, processes, None)


def _hyperpod_node(pod: Pod, hosts: Hosts, understood: Launch, nodes: tuple[int, int], processes: int | None) -> Node:
    """Return a node of hyperpodrun. HyperPod's operator gives the ranks, and no other controller does."""
    if hosts.job.kind != "HyperPodPyTorchJob":
        raise Finding(
            f"{pod.name}: it never starts: hyperpodrun waits for HyperPod's operator, which only serves"
            f" HyperPodPyTorchJobs, not a {hosts.job.kind}",
            "use torchrun, or kind HyperPodPyTorchJob",
        )
    if nodes[0] != nodes[1]:
        raise BadOptions(f"hyperpodrun: --nnodes {nodes[0]}:{nodes[1]} is not supported: it must be one number")
    count = len(hosts.pods)
    return Node(pod, understood, ("hyperpod", hosts.pods[0].name, 8080, ""), (count, count), processes, None)


def _etcd(endpoint: str, pod: Pod, hosts: Hosts) -> tuple[str, int]:
    """Return the etcd server of an endpoint, if it is a Service or a Pod of the same file."""
    host, port = _endpoint(endpoint.removeprefix("http://").removeprefix("https://"))
    bare = host.split(".")[0]
    manifests = hosts.job.manifests
    if any(one.name == bare and not _runs_etcd(one.spec) for one in hosts.pods):
        raise Finding(
            f"it never starts: the etcd rendezvous is at {bare}, which runs no etcd server", hosts.job.to_meet
        )
    for service in [one for one in manifests.of_kind("Service") if one["metadata"]["name"] == bare]:
        selector = (service.get("spec") or {}).get("selector") or {}
        found = [spec for labels, spec in _servers(manifests) if selector and selector.items() <= labels.items()]
        if any(_runs_etcd(spec) for spec in found):
            return bare, port
    if any(item["metadata"]["name"] == bare and _runs_etcd(item["spec"]) for item in manifests.of_kind("Pod")):
        return bare, port
    raise Finding(
        f"{pod.name}: the rendezvous is at the etcd server {host or 'of no name'}, which is not in this file",
        "add its Service and Deployment to the file, or use rdzvBackend: c10d, which needs no server",
        State.CANNOT_TELL,
    )


def _servers(manifests: Manifests) -> list[tuple[Mapping[str, str], Object]]:
    """Return labels and specs of the pods that are not the job's."""
    found = [(item["metadata"].get("labels") or {}, item["spec"]) for item in manifests.of_kind("Pod")]
    for kind in ("Deployment", "StatefulSet"):
        templates = [item["spec"]["template"] for item in manifests.of_kind(kind)]
        found += [((one.get("metadata") or {}).get("labels") or {}, one["spec"]) for one in templates]
    return found


def _runs_etcd(spec: Object) -> bool:
    return any(
        "etcd" in " ".join([str(one.get("image")), *map(str, one.get("command") or [])])
        for one in spec.get("containers") or []
    )


def _plain_node(pod: Pod, hosts: Hosts, understood: Launch) -> Node:
    """Return the node of one process started by python itself, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    values = understood.environment
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in needed:
        if name in understood.unsure:
            raise Finding(f"{pod.name}: {name} is {understood.unsure[name]}", None, State.CANNOT_TELL)
    missing = [name for name in needed if not values.get(name, "").strip()]
    given = option(understood.words, ADDRESSES)
    other = given and given[1].startswith("tcp://") and values.get("MASTER_ADDR", " ") not in given[1]
    if given and other and len(hosts.pods) > 1:
        reason = f"{pod.name}: {given[0]} {given[1]} is not the address that the controller gives"
        raise Finding(reason, f"{given[0]} env://", State.CANNOT_TELL)
    if missing and len(hosts.pods) > 1 and (given := option(understood.words, RENDEZVOUS)):
        reason = f"{pod.name}: the program gets its rendezvous by {given[0]}, which is not read here"
        raise Finding(reason, hosts.job.to_meet, State.CANNOT_TELL)
    if missing and len(hosts.pods) > 1 and values.get("MASTER_ADDR", "").strip():
        reason = f"{pod.name}: python starts with MASTER_ADDR and without {', '.join(missing)}"
        raise Finding(f"{reason}, which the program may set", hosts.job.to_meet, State.CANNOT_TELL)
    if missing:
        return Node(pod, understood, ("env", pod.name, 0, ""), (1, 1), 1, 0)
    try:
        rank, world, port = (int(values[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise Finding(f"{pod.name}: RANK, WORLD_SIZE and MASTER_PORT must be numbers") from None
    count, devices = len(hosts.pods), gpus(pod)
    if devices > 1 and world == count * devices:
        reason = f"WORLD_SIZE is {world} for {count} pods: whether the program starts {devices} processes itself"
        raise Finding(f"{pod.name}: {reason} is not known", "start it with torchrun", State.CANNOT_TELL)
    meeting = ("env", _host(values["MASTER_ADDR"], pod, hosts), port, "")
    return Node(pod, understood, meeting, (world, world), 1, rank)


def _endpoint(text: str) -> tuple[str, int]:
    host, separator, port = text.strip().rpartition(":")
    if not separator:
        return text, DEFAULT_C10D_PORT
    if not port.isdigit():
        raise BadOptions(f"rendezvous endpoint {text!r}: {port!r} is not a port")
    return host, int(port)


def _host(host: str, pod: Pod, hosts: Hosts) -> str:
    """Return the name of the pod that `host` means."""
    try:
        return hosts.pod_of(host, pod)
    except NoSuchHost as problem:
        state = State.FAIL if problem.certain else State.CANNOT_TELL
        raise Finding(problem.reason, problem.remedy, state) from None


def start_of(container: Object, values: Mapping[str, str], given: Given) -> tuple[list[str], dict[str, str], bool]:
    """Return a container's words, its variables, and whether those of its image are among them. Raises UserError."""
    image = given.images.get(str(container.get("image")))
    command, arguments = container.get("command") or [], container.get("args") or []
    if given.command:
        words = [*given.command]
    elif command:
        words = [*command, *arguments]
    elif image is not None:
        words = [*image.entrypoint, *(arguments or image.command)]
    else:
        raise UserError(f"container {container.get('name')} has no command: only its image knows it", GIVE_COMMAND)
    known = {**(image.variables if image else {}), **values}
    return [environment.expand(word, known) for word in words], known, image is not None
