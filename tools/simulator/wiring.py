"""Whether a job's pods form one world, by the manifest, the operator's rules and torchrun's options.

`analyse` starts nothing. It finds each pod's rendezvous and fails a job whose pods cannot meet, with the
reason. `wiring_proof` then runs what passed, with a probe in place of the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.simulator import environment, torchrun
from tools.simulator.local_pod import command_of
from tools.simulator.torchrun import BadOptions, Launch, Torchrun
from tools.workload.hosts import Hosts, NoSuchHost
from tools.workload.pod import ControllerFault, Pod, PodsUnknown
from tools.workload.workload import Workload

DEFAULT_MASTER_PORT = 29500  # torch/distributed/run.py
DEFAULT_C10D_PORT = 29400  # torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py
LONGEST_SHOWN = 500  # characters of a command in a verdict
WHY_NO_ENDPOINT = (
    "a job without Master and without elasticPolicy gets no rendezvous from the operator"
    " (no PET_RDZV_ENDPOINT, no MASTER_ADDR)"
)
USE_ELASTIC = (
    "give the job elasticPolicy with rdzvBackend: c10d, and torchrun no --nnodes, --rdzv* or --node-rank"
)


class Finding(Exception):
    """The job's wiring is wrong or unknown: the state, reason and remedy of the verdict."""

    def __init__(self, reason: str, remedy: str | None = None, state: State = State.FAIL) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.state = reason, remedy, state


class Apart(Finding):
    """The pods do not meet by the variables that are known."""


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
class Analysis:
    """A static verdict on one job, and its nodes where they are known."""

    verdict: Verdict
    nodes: list[Node]


def analyse(job: Workload) -> Analysis:
    """Check the wiring of `job`, of any kind, without starting anything."""
    evidence: list[str] = []
    nodes: list[Node] = []
    try:
        evidence.append(_made_by(job))
        pods = _pods(job)
        hosts = Hosts(job, pods)
        nodes += [_node(pod, hosts) for pod in pods]
        evidence += [node.line() for node in nodes]
        _judge(nodes)
    except Finding as finding:
        if isinstance(finding, Apart) and job.injects:
            finding = Finding(f"{finding.reason}; unknown: {job.injects}", None, State.CANNOT_TELL)
        return Analysis(Verdict(finding.state, finding.reason, evidence, finding.remedy), nodes)
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        reason = f"the job is not of the form that Kubernetes takes ({str(problem)[:80]})"
        return Analysis(Verdict(State.CANNOT_TELL, reason, evidence), nodes)
    return Analysis(Verdict(State.PASS, f"{job.name} forms one world", evidence), nodes)


def world_size(nodes: Sequence[Node]) -> int | None:
    """Return nodes x processes, or None where torchrun counts devices itself."""
    counts = [node.processes for node in nodes]
    return None if None in counts else sum(count for count in counts if count is not None)


def _made_by(job: Workload) -> str:
    counts = ", ".join(f"{role.name} {role.replicas}" for role in job.roles) or "no replicas"
    suspended = "; suspended, looked at as if it was started" if job.suspended else ""
    return f"{job.maker}: {job.name}, {counts}{suspended}"


def _pods(job: Workload) -> list[Pod]:
    if job.refused:
        raise Finding(f"the job is refused: {job.refused[0]}")
    try:
        pods = job.ranks()
    except ControllerFault as fault:
        raise Finding(str(fault)) from None
    except PodsUnknown as problem:
        raise Finding(problem.reason, problem.remedy, State.CANNOT_TELL) from None
    if not pods:
        raise Finding("the job has no pods")
    return pods


def _node(pod: Pod, hosts: Hosts) -> Node:
    try:
        values = environment.resolve(pod, pod.container, hosts.job.manifests, share=1).values
        understood = torchrun.read(command_of(pod, values), values)
    except BadOptions as problem:
        raise Finding(f"{pod.name}: {problem}") from None
    except UserError as problem:
        raise Finding(problem.message, problem.hint, State.CANNOT_TELL) from None
    if understood.unknown:
        looked = f"looked at: {understood.shown[:LONGEST_SHOWN]}"
        raise Finding(f"{pod.name}: {understood.unknown}; {looked}", None, State.CANNOT_TELL)
    if understood.torchrun is None:
        return _plain_node(pod, hosts, understood)
    try:
        return _torchrun_node(pod, hosts, understood, understood.torchrun)
    except BadOptions as problem:
        raise Finding(f"{pod.name}: {problem}") from None


def _torchrun_node(pod: Pod, hosts: Hosts, understood: Launch, torchrun: Torchrun) -> Node:
    values, nodes, processes = torchrun.values, torchrun.nodes(), torchrun.processes()
    backend = values["rdzv-backend"] or "static"
    endpoint = values["rdzv-endpoint"]
    alone = backend == "static" and not endpoint and values["master-port"] is None and nodes[1] == 1
    if "standalone" in torchrun.flags or alone:
        return Node(pod, understood, ("c10d", pod.name, 0, "standalone"), (1, 1), processes, None)
    if backend == "static":
        host, port = _endpoint(
            endpoint or f"{values['master-addr']}:{values['master-port'] or DEFAULT_MASTER_PORT}"
        )
        rank = int(values["node-rank"] or 0)
        meeting = ("static", _host(host, pod, hosts), port, "")
        return Node(pod, understood, meeting, (nodes[1], nodes[1]), processes, rank)
    if backend != "c10d":
        raise Finding(
            f"{pod.name}: rendezvous backend {backend} needs a server outside the job",
            None,
            State.CANNOT_TELL,
        )
    if "is_host" in (values["rdzv-conf"] or ""):
        raise Finding(f"{pod.name}: --rdzv-conf is_host sets the host by hand", None, State.CANNOT_TELL)
    if not endpoint:
        raise Apart(f"{pod.name}: c10d rendezvous without an endpoint: {WHY_NO_ENDPOINT}", USE_ELASTIC)
    host, port = _endpoint(endpoint)
    meeting = ("c10d", _host(host, pod, hosts), port, values["rdzv-id"] or "none")
    return Node(pod, understood, meeting, nodes, processes, None)


def _plain_node(pod: Pod, hosts: Hosts, understood: Launch) -> Node:
    """Return the node of one process started by python itself, from RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT.
    """
    values = understood.environment
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if any(not values.get(name, "").strip() for name in needed):
        return Node(pod, understood, ("env", pod.name, 0, ""), (1, 1), 1, 0)
    try:
        rank, world, port = (int(values[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise Finding(f"{pod.name}: RANK, WORLD_SIZE and MASTER_PORT must be numbers") from None
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


def _judge(nodes: Sequence[Node]) -> None:
    """Raise a Finding where the nodes cannot become one world."""
    _judge_processes(nodes)
    count = len(nodes)
    meetings = {node.meeting for node in nodes}
    first = nodes[0]
    if len(meetings) > 1:
        _judge_apart(nodes)
    low, high = first.nodes
    if any(node.nodes != first.nodes for node in nodes):
        raise Finding(
            "the pods ask for different numbers of nodes, and wait for each other forever", USE_ELASTIC
        )
    if high < count:
        raise Finding(
            f"it trains as separate jobs: nnodes is {high}, but there are {count} pods",
            f"maxReplicas (or --nnodes) must be {count}; {USE_ELASTIC}",
        )
    if low > count:
        raise Finding(f"it never starts: it waits for {low} nodes, but there are {count} pods", USE_ELASTIC)
    ranks = [node.rank for node in nodes if node.rank is not None]
    if ranks and sorted(ranks) != list(range(count)):
        listed = ", ".join(f"{node.pod.name} {node.rank}" for node in nodes)
        raise Finding(f"the node ranks are not 0 to {count - 1}: {listed}", USE_ELASTIC)


def _judge_processes(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.processes is not None and node.processes < 1:
            raise Finding(
                f"{node.pod.name}: {node.processes} processes a node", "--nproc-per-node must be 1 or more"
            )
        wanted = node.launch.environment.get("PET_NPROC_PER_NODE", "")
        if node.launch.torchrun is None and wanted.isdigit() and int(wanted) > 1:
            raise Finding(
                f"{node.pod.name}: nprocPerNode is {wanted}, but the command starts one python process",
                "start it with torchrun",
            )


def _judge_apart(nodes: Sequence[Node]) -> None:
    """Raise a Finding for several rendezvous: the pods train separately, or wait forever."""
    count = len({node.meeting for node in nodes})
    alone = all(node.nodes[0] == 1 for node in nodes)
    effect = (
        f"it trains as {count} separate jobs"
        if alone
        else f"it hangs: {len(nodes)} pods wait in {count} places"
    )
    raise Apart(f"{effect}: {_why_apart(nodes[0])}", USE_ELASTIC)


def _why_apart(node: Node) -> str:
    torchrun = node.launch.torchrun
    if torchrun is None:
        return "python starts without RANK and MASTER_ADDR; the operator sets them only with a Master"
    if "standalone" in torchrun.flags:
        return "--standalone makes each pod its own world"
    if any(word.startswith(("--nnodes", "--rdzv", "--master")) for word in torchrun.words):
        return f"its options ({' '.join(torchrun.words)}) give each pod its own rendezvous"
    return f"{WHY_NO_ENDPOINT}, and torchrun falls back to the pod itself"
