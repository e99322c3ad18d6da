"""Whether a job's pods form one world, by the manifest, the operator's rules and the launcher's options.

`analyse` starts nothing. It finds each pod's rendezvous and fails a job whose pods cannot meet, with the
reason. `wiring_proof` then runs what passed, with a probe in place of the trainer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools.core import State, UserError, Verdict, output
from tools.core.secret_patterns import mask
from tools.facts.instances import NVIDIA
from tools.simulator import environment
from tools.simulator.launch import Launch
from tools.simulator.local_pod import gpus, shown_gpus
from tools.simulator.node import LONGEST_SHOWN, Apart, Finding, Given, Idle, Node, endless_init, launch_of, node_of
from tools.simulator.torchrun import HYPERPOD, BadOptions
from tools.workload import ControllerFault, Pod, PodsUnknown, Workload
from tools.workload.hosts import Hosts

# What a job without known pods raises, and one that is not of the form that Kubernetes takes.
NO_PODS = (ControllerFault, PodsUnknown, UserError, AttributeError, LookupError, TypeError, ValueError)
MOST_EFFORT = 500_000  # commands that are followed in all pods together


class Crowded(Finding):
    """The pods meet, and start more ranks than they have devices."""


@dataclass(frozen=True)
class Analysis:
    """A static verdict on a job, and its known nodes. `one_world`: at most the number of processes is at fault."""

    verdict: Verdict
    nodes: list[Node]
    one_world: bool = False


def analyse(job: Workload, given: Given | None = None) -> Analysis:
    """Check the wiring of `job` without starting anything; an object that the file lacks may give the pods names."""
    found = _analyse(job, given or Given())
    lacks = None if job.misshapen else job.nameless
    if found.verdict.state is not State.CANNOT_TELL or lacks is None or lacks.possible is None:
        return found
    whole = replace(job, manifests=replace(job.manifests, objects=[*job.manifests.objects, lacks.possible]))
    with_it = _analyse(whole, given or Given())
    verdict = found.verdict
    if with_it.verdict.state is State.FAIL and with_it.nodes and len(with_it.nodes) == len(_pods(job)):
        verdict = replace(with_it.verdict, evidence=[*with_it.verdict.evidence, f"unknown: {lacks.reason}"])
    return Analysis(verdict, with_it.nodes)


def _analyse(job: Workload, given: Given) -> Analysis:
    evidence: list[str] = []
    nodes: list[Node] = []
    idle: list[Idle] = []
    pods: list[Pod] = []
    effort = 0
    try:
        evidence.append(_made_by(job))
        pods = _pods(job)
        hosts = Hosts(job, pods)
        for pod in pods:
            try:
                nodes.append(node_of(pod, hosts, given))
            except Idle as one:
                idle.append(one)
                continue
            effort += nodes[-1].launch.effort
            if effort > MOST_EFFORT:
                raise Finding("the scripts of all pods are too long to follow", None, State.CANNOT_TELL)
        evidence += [node.line() for node in nodes]
        if idle:
            raise _beside(idle, nodes)
        evidence += _about_launch(nodes[0].launch)
        _judge(nodes, job)
        warning = _warning(nodes)
    except Finding as finding:
        unknown = job.injects or _unread(pods[:1], job) if isinstance(finding, Apart) else ""
        if unknown and not (nodes and all(map(_alone_by_option, nodes))):
            finding = Finding(f"{finding.reason}; unknown: {unknown}", None, State.CANNOT_TELL)
        found = Verdict(finding.state, mask(finding.reason), evidence, finding.remedy)
        return Analysis(found, nodes, isinstance(finding, Crowded))
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        reason = f"the job is not of the form that Kubernetes takes ({str(problem)[:80]})"
        return Analysis(Verdict(State.CANNOT_TELL, reason, evidence), nodes)
    if warning:
        found = Verdict(State.WARN, f"{job.name} forms one world, but {warning}", evidence)
        return Analysis(found, nodes, one_world=True)
    return Analysis(Verdict(State.PASS, f"{job.name} forms one world", evidence), nodes, one_world=True)


def _unread(pods: Sequence[Pod], job: Workload) -> str:
    """Return the ConfigMap outside of the manifest that may set the variables of a rendezvous, else an empty text."""
    unread = [environment.resolve(pod, pod.container, job.manifests, share=1).unread for pod in pods]
    return f"the variables of {unread[0]}, which is not in the manifest" if any(unread) else ""


def unseen(job: Workload, given: Given | None = None) -> Verdict | None:
    """Return the verdict on a job in which no launcher is seen, None if its pods cannot be a training.

    It is PASS for one pod that runs Python. It is CANNOT TELL where several pods start programs that may train,
    where one does and others with GPUs only wait, and where one with GPUs starts a program of its image. With a
    launcher in what is given, the verdict is that of `analyse`.
    """
    given = given or Given()
    shown: dict[str, str] = {}
    count, waiting, opaque, launcher = 0, 0, False, ""
    try:
        pods = job.pods()
        for pod in {pod.role: pod for pod in reversed(pods)}.values():
            reading = _read(pod, Hosts(job, pods), given)
            if isinstance(reading, Launch) and reading.torchrun is not None:
                return analyse(job, given).verdict
            same = sum(one.role == pod.role for one in pods)
            idle = isinstance(reading, Launch) and reading.idle
            waiting += same if idle and gpus(pod) else 0
            if not idle or gpus(pod):
                count += 0 if idle else same
                named = reading.launcher if isinstance(reading, Launch) and not reading.unknown else None
                launcher = named or launcher
                opaque = opaque or (not idle and named is None and gpus(pod) > 0)
                text = reading if isinstance(reading, str) else reading.shown[:LONGEST_SHOWN]
                shown[pod.role] = f"{pod.role}: {output.count(same, 'pod')}: {mask(text)}"
    except NO_PODS as problem:
        return Verdict(State.CANNOT_TELL, f"the pods are not known: {str(problem)[:80]}", [_made_by(job)])
    if count + (waiting if count else 0) < 2 and not opaque:
        alone = count == 1 and launcher
        return Verdict(State.PASS, f"one pod runs {launcher}, and meets no other", [_made_by(job)]) if alone else None
    reason = "no launcher is seen: whether the pods train as one job is not known"
    remedy = f"give --command or --image-config, or {job.to_meet}"
    return Verdict(State.CANNOT_TELL, reason, [_made_by(job), *shown.values()], remedy)


def _read(pod: Pod, hosts: Hosts, given: Given) -> Launch | str:
    """Return what a pod starts, or why it is not known."""
    try:
        return launch_of(pod, hosts, given)
    except BadOptions as problem:
        return str(problem)
    except UserError as problem:
        return problem.message


def _beside(idle: Sequence[Idle], nodes: Sequence[Node]) -> Finding:
    """Return the finding on pods that never train, which the others wait for if they need as many nodes."""
    first, wanted = idle[0], max((node.nodes[0] for node in nodes), default=0)
    if wanted <= max(1, len(nodes)):
        return first
    reason = f"it never starts: {wanted} nodes must join, and {output.count(len(nodes), 'pod')} can: {first.reason}"
    return Finding(reason, "start the same launcher in each pod that is a rank")


def _about_launch(found: Launch) -> list[str]:
    """Return lines of evidence about the launcher's place in the container."""
    process = "is process 1" if found.why == "it is process 1" else f"is not process 1: {found.why}"
    lines = [f"{found.launcher} {process}"] if found.launcher else []
    if found.lost:
        lines.append(f"a failure of {found.launcher} is not seen: {found.lost}")
    return lines


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
        pods = job.ranks() or job.pods()  # a launcher may be given that the manifest does not show
    except ControllerFault as fault:
        raise Finding(str(fault)) from None
    except PodsUnknown as problem:
        raise Finding(problem.reason, problem.remedy, State.CANNOT_TELL) from None
    if not pods:
        raise Finding("the job has no pods")
    for pod in {pod.role: pod for pod in reversed(pods)}.values():
        if endless := endless_init(pod, job.manifests):
            raise Finding(f"{pod.name}: it never starts: {endless}", "an init container that ends")
    return pods


def _judge(nodes: Sequence[Node], job: Workload) -> None:
    """Raise a Finding where the nodes cannot become one world."""
    remedy = job.to_meet
    if name := _unresolved(nodes):
        reason = f"it hangs: the pods ask the DNS of their node, which does not know {name}"
        raise Finding(reason, "dnsPolicy: ClusterFirstWithHostNet")
    late = next((role for role in job.roles if job.of_batch and role.most > role.replicas), None)
    if late:
        reason = f"{late.most} indices, of which {late.replicas} run at a time: the others start when pods have ended"
        raise Finding(reason, "parallelism must be the number of completions")
    _judge_processes(nodes)
    count = len(nodes)
    meetings = {node.meeting for node in nodes}
    first = nodes[0]
    if len(meetings) > 1:
        _judge_apart(nodes, job)
    low, high = first.nodes
    if any(node.nodes != first.nodes for node in nodes):
        raise Finding("the pods ask for different numbers of nodes, and wait for each other forever", remedy)
    if high < count:
        raise Finding(
            f"it trains as separate jobs: nnodes is {high}, but there are {count} pods",
            f"the maximum of the number of nodes must be {count}; {remedy}",
        )
    if low > count:
        raise Finding(
            f"it never starts: it waits for {low} nodes, but there are {count} pods",
            f"the minimum of the number of nodes must be {count}; {remedy}",
        )
    ranks = [node.rank for node in nodes if node.rank is not None]
    if ranks and sorted(ranks) != list(range(count)):
        listed = ", ".join(f"{node.pod.name} {node.rank}" for node in nodes)
        raise Finding(f"the node ranks are not 0 to {count - 1}: {listed}", remedy)
    _judge_devices(nodes)


def _unresolved(nodes: Sequence[Node]) -> str:
    """Return the pod that others look up and cannot find: the DNS of a node does not know the cluster's names.

    Source: kubernetes.io/docs/concepts/services-networking/dns-pod-service, "Pod's DNS Policy".
    """
    for node in nodes:
        spec, (backend, host, port, _) = node.pod.spec, node.meeting
        policy = spec.get("dnsPolicy") or "ClusterFirst"
        outside = policy == "Default" or (policy == "ClusterFirst" and spec.get("hostNetwork"))
        own = spec.get("dnsConfig") or spec.get("hostAliases")
        if outside and not own and port and backend != "hyperpod" and host != node.pod.name:
            return host
    return ""


def _judge_processes(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if node.processes is not None and node.processes < 1:
            raise Finding(f"{node.pod.name}: {node.processes} processes a node", "--nproc-per-node must be 1 or more")
        wanted = node.launch.environment.get("PET_NPROC_PER_NODE", "")
        if node.launch.torchrun is None and wanted.isdigit() and int(wanted) > 1:
            raise Finding(
                f"{node.pod.name}: nprocPerNode is {wanted}, but the command starts one python process",
                "start it with torchrun",
            )


def _judge_devices(nodes: Sequence[Node]) -> None:
    for node in nodes:
        devices = gpus(node.pod)
        shown = shown_gpus(devices, node.launch.environment)
        if devices and shown < min(devices, node.processes or 1):
            reason = f"CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES leaves {shown} of {output.count(devices, 'GPU')}"
            raise Finding(f"{node.pod.name}: {reason} to {node.processes or 'its'} processes", "remove the variable")
        if devices and (node.processes or 0) > devices and node.launch.torchrun is not None:
            raise Crowded(
                f"{node.pod.name}: {node.processes} processes share {output.count(devices, 'GPU')}"
                f" ({NVIDIA}), and NCCL refuses two ranks on one device",
                f"--nproc-per-node {devices}, or request {node.processes} GPUs",
            )


def _warning(nodes: Sequence[Node]) -> str:
    """Return what is doubtful about a job whose pods meet, or an empty text."""
    for node in nodes:
        devices, torchrun = gpus(node.pod), node.launch.torchrun
        if torchrun is None and devices > 1 and len(nodes) > 1 and node.launch.launcher:
            return f"{node.pod.name} requests {devices} GPUs, and {node.launch.launcher} starts one process"
        if torchrun and torchrun.launcher == HYPERPOD and torchrun.nodes()[1] not in (1, len(nodes)):
            return f"hyperpodrun ignores --nnodes {torchrun.nodes()[1]}: the operator says {len(nodes)}"
        if torchrun is not None and node.processes is not None and node.processes < devices:
            asked = output.count(devices, "GPU")
            started = output.count(node.processes, "process", "processes")
            return f"{node.pod.name} requests {asked} and starts {started}"
    return ""


def _judge_apart(nodes: Sequence[Node], job: Workload) -> None:
    """Raise a Finding for several rendezvous: the pods train separately, or wait forever."""
    count = len({node.meeting for node in nodes})
    alone = all(node.nodes[0] == 1 for node in nodes)
    effect = f"it trains as {count} separate jobs" if alone else f"it hangs: {len(nodes)} pods wait in {count} places"
    raise Apart(f"{effect}: {_why_apart(nodes[0], job)}", job.to_meet)


def _alone_by_option(node: Node) -> bool:
    """Whether torchrun's own --standalone keeps a pod alone, whatever variables the pod gets."""
    torchrun = node.launch.torchrun
    return torchrun is not None and torchrun.launcher == "torchrun" and "standalone" in torchrun.flags


def _why_apart(node: Node, job: Workload) -> str:
    torchrun = node.launch.torchrun
    address = node.launch.environment.get("MASTER_ADDR", "").strip()
    if torchrun is None and address and node.launch.environment.get("RANK"):
        return f"MASTER_ADDR is {address} in {node.pod.name}, which is not the same pod for all"
    if torchrun is None:
        given = "; the operator sets them only with a Master" if job.kind == "PyTorchJob" else ""
        return f"python starts without RANK and MASTER_ADDR{given}"
    if torchrun.launcher == "deepspeed" and "standalone" in torchrun.flags:
        return "deepspeed without a hostfile starts on its own pod only"
    if torchrun.launcher == "accelerate" and "standalone" in torchrun.flags:
        given = " ".join(torchrun.words).replace("-", "_")
        lacks = "--multi_gpu, with one GPU," if "num_machines" in given else "--num_machines"
        return f"accelerate without {lacks} starts on its own pod only"
    if "standalone" in torchrun.flags:
        return "--standalone makes each pod its own world"
    if any(word.startswith(("--nnodes", "--rdzv", "--master")) for word in torchrun.words):
        return f"its options ({' '.join(torchrun.words)}) give each pod its own rendezvous"
    return f"{job.no_rendezvous}, and torchrun falls back to the pod itself"
