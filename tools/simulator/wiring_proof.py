"""The proof of a job's wiring: its own launch commands run here, with a probe in place of the trainer.

None of the manifest's own code runs. What starts is this Python, torchrun and `rank_probe`, by a command line
that is written here: the manifest gives numbers of nodes and ranks, time limits, and which pods meet. Its
variables, its other options and its texts stay outside. The processes listen on loopback only, and where the
kernel allows it they have a network of their own.

All pods share this machine's address, so each rendezvous of the job gets its own free port. Pods that would
not meet on a cluster do not meet here.
"""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.core import State, UserError, Verdict, output, processes, repo
from tools.simulator import environment, probe_launcher, rank_probe
from tools.simulator.local_pod import ADDRESS, FROM_THE_MACHINE, ON_LOOPBACK
from tools.simulator.node import Node
from tools.simulator.torchrun import OPTIONS
from tools.simulator.wiring import Analysis, world_size

# Processes started when the user gave no numbers. Each imports torch, which takes a processor some seconds.
AT_MOST_UNASKED = max(4, min(8, environment.cores()))
AT_MOST = 64
SCALED = 2  # pods, and processes a pod, of a larger job
TICK = 0.1
LAST_LINES = 3
PYTHON = (sys.executable, "-I", "-W", "ignore", "-u")  # reads no variables and no working directory
LAUNCHER = str(Path(probe_launcher.__file__).resolve())
PROBE = str(Path(rank_probe.__file__).resolve())
# What may stand in --rdzv-conf: time limits of torch/distributed/elastic/rendezvous/dynamic_rendezvous.py.
TIME_LIMIT = re.compile(r"(?:(?:join_|last_call_|close_|heartbeat_|read_)?timeout|keep_alive_interval)=[0-9]{1,6}")
# What else decides about the world; the command line is made of it.
PROVED = {
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank"),
    *("master-addr", "master-port", "local-addr", "max-restarts", "start-method"),
}
# Backends whose server is not part of the proof: torchrun's own, c10d, stands in for them.
ELSEWHERE = ("etcd", "etcd-v2", "hyperpod")
ISOLATED = "the launchers had a network of their own, with loopback only"
NOT_ISOLATED = "the launchers listened on loopback only; this machine gives no network namespace"


@dataclass(frozen=True)
class Scale:
    """The number of pods that run here and of processes in each. `whole`: that is the whole job."""

    pods: int
    processes: int
    whole: bool


def scale(nodes: Sequence[Node], pods: int | None, nproc: int | None) -> Scale:
    """Return the size of the proof: the whole job if it is small, else as asked, else 2 x 2. Raises UserError."""
    if pods is not None and pods > len(nodes):
        raise UserError(f"--pods {pods}: the job has {len(nodes)} pods", f"--pods 1 to --pods {len(nodes)}")
    total = world_size(nodes)
    own = nodes[0].processes
    if pods is None and nproc is None and total is not None and total <= AT_MOST_UNASKED:
        return Scale(len(nodes), own or 1, whole=True)
    asked = pods is not None or nproc is not None
    chosen = pods or min(len(nodes), len(nodes) if asked else SCALED)
    each = nproc or min(own or SCALED, own or SCALED if asked else SCALED)
    if any(node.launch.torchrun is None for node in nodes):
        each = 1
    if chosen * each > AT_MOST:
        raise UserError(
            f"{chosen} pods x {each} processes are too many for one machine", "--pods 2 --nproc 2 is enough"
        )
    return Scale(chosen, each, whole=chosen == len(nodes) and each == own)


def prove(analysis: Analysis, pods: int | None, nproc: int | None, timeout: float) -> Verdict:
    """Run the job's launchers with the probe and return the verdict. A FAIL of `analysis` stays a FAIL."""
    if analysis.verdict.state not in (State.PASS, State.WARN):
        return analysis.verdict
    if importlib.util.find_spec("torch") is None:
        reason = "torch is not installed here, so the job's launchers cannot run"
        return Verdict(State.CANNOT_TELL, reason, analysis.verdict.evidence, repo.how_to_install("train"))
    size = scale(analysis.nodes, pods, nproc)
    nodes = analysis.nodes[: size.pods]
    outside = any(node.meeting[0] in ELSEWHERE for node in nodes)
    if not outside and any(node.meeting[1] not in {item.pod.name for item in nodes} for node in nodes):
        reason = f"the first {size.pods} pods do not hold the rendezvous"
        return Verdict(State.CANNOT_TELL, reason, analysis.verdict.evidence)
    repo.local().mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wiring-", dir=repo.local(), ignore_cleanup_errors=True) as name:
        directory = Path(name)
        began = time.monotonic()
        ends, network = _run(nodes, size, directory, timeout)
        records = _records(nodes, directory)
        said = {node.pod.name: _last_lines(_log(directory, index)) for index, node in enumerate(nodes)}
    ran = f"ran here: {_sized(size)}, {time.monotonic() - began:.1f} s"
    evidence = [*analysis.verdict.evidence, ran, network, *_left_out(nodes), *_lines(nodes, records, ends, said)]
    return _judge(analysis, size, records, ends, evidence, timeout)


def _judge(
    analysis: Analysis,
    size: Scale,
    records: list[dict[str, Any]],
    ends: dict[str, int | None],
    evidence: list[str],
    timeout: float,
) -> Verdict:
    world = size.pods * size.processes
    details = {"world_size": world, "ranks": records}
    hung = [pod for pod, code in ends.items() if code is None]
    problem = _problem(records, world)
    if hung and problem:  # all ranks were counted: a launcher that ends slowly is not a fault
        reason = f"{len(hung)} of {len(ends)} pods were still waiting after {timeout:.0f} s"
        remedy = "check which pods wait, and where; --timeout N waits longer"
        if any(record["world"] != world or record["counted"] not in (None, [1] * world) for record in records):
            return Verdict(State.FAIL, reason, evidence, remedy, details)
        started = "those that had started agree" if records else "no rank had started"
        reason += f", and {started}: the machine may be slow"
        return Verdict(State.CANNOT_TELL, reason, evidence, remedy, details)
    failed = [pod for pod, code in ends.items() if code]
    if failed:
        return Verdict(State.FAIL, f"the launcher of {failed[0]} failed", evidence, None, details)
    if problem:
        return Verdict(State.FAIL, problem, evidence, None, details)
    evidence.append(f"one all-reduce over {output.count(world, 'rank')}: each rank was counted once on each of them")
    success = _success(analysis.nodes, size)
    if analysis.verdict.state is State.WARN:
        success = f"{success}, but {analysis.verdict.summary.partition(', but ')[2]}"
    return Verdict(analysis.verdict.state, success, evidence, None, details)


def _problem(records: list[dict[str, Any]], world: int) -> str | None:
    """Return what is wrong with the ranks that were seen, or None."""
    worlds = sorted({record["world"] for record in records})
    if worlds != [world]:
        return f"the ranks form worlds of {', '.join(map(str, worlds)) or 'no'} ranks, not one of {world}"
    ranks = Counter(record["rank"] for record in records)
    twice = [rank for rank, count in ranks.items() if count > 1]
    if twice:
        return f"rank {twice[0]} was assigned {ranks[twice[0]]} times"
    if sorted(ranks) != list(range(world)):
        return f"ranks {sorted(ranks)} were seen, not 0 to {world - 1}"
    wrong = [record["rank"] for record in records if record["counted"] != [1] * world]
    return f"the all-reduce of rank {wrong[0]} did not count every rank once" if wrong else None


def _success(nodes: Sequence[Node], size: Scale) -> str:
    job = nodes[0].pod.job
    ran = _sized(size)
    if size.whole:
        return f"{job} is one job of {output.count(size.pods * size.processes, 'rank')} ({ran})"
    total = world_size(nodes)
    whole = f"{total} ranks ({len(nodes)} pods)" if total is not None else f"{len(nodes)} pods"
    return f"{job} is one job of {whole}; run here as {ran}"


def _sized(size: Scale) -> str:
    return f"{output.count(size.pods, 'pod')} x {output.count(size.processes, 'process', 'processes')}"


def _run(nodes: Sequence[Node], size: Scale, directory: Path, timeout: float) -> tuple[dict[str, int | None], str]:
    """Start the launchers and wait. Returns exit codes, None for one that was killed, and a line about the network."""
    meetings = {meeting: (_free_port(), uuid.uuid4().hex) for meeting in {node.meeting for node in nodes}}
    processes.adopt_orphans()
    before = processes.children_of(os.getpid())
    started: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + timeout
    try:
        holder = _network(directory)
        own = {probe_launcher.NAMESPACE: str(holder)} if holder else {}
        for index, (node, address) in enumerate(zip(nodes, environment.addresses(len(nodes)), strict=True)):
            argv, variables = _command(node, size, address, *meetings[node.meeting])
            variables |= {**_environment(index, directory, timeout), **own}
            with _log(directory, index).open("wb") as log:
                started.append(processes.start(argv, variables, directory, log, log))
        while time.monotonic() < deadline and not _over(started):
            time.sleep(TICK)
        ends = {node.pod.name: process.poll() for node, process in zip(nodes, started, strict=True)}
        return ends, ISOLATED if holder else NOT_ISOLATED
    finally:
        processes.kill_tree(started)
        processes.kill_tree([], processes.children_of(os.getpid()) - before)


def _network(directory: Path) -> int | None:
    """Start the process that holds a network namespace; return its id, or None where there are none."""
    argv = [*PYTHON, "-S", LAUNCHER, probe_launcher.HOLD]
    holder = processes.start(argv, {}, directory, subprocess.PIPE, subprocess.DEVNULL)
    assert holder.stdout is not None
    with holder.stdout:
        ready = holder.stdout.readline().strip() == probe_launcher.READY.encode()
    return holder.pid if ready else None


def _left_out(nodes: Sequence[Node]) -> list[str]:
    """Return lines about what of the job's launch was not used here, if there is any."""
    backend = nodes[0].meeting[0]
    lines = [f"c10d stood in for the rendezvous backend {backend} here"] if backend in ELSEWHERE else []
    given = {
        f"--{name}"
        for node in nodes
        for name, value in (node.launch.torchrun.values if node.launch.torchrun else {}).items()
        if name not in PROVED and value != OPTIONS[name]
    }
    if given:
        lines.append(f"not given to the launchers here: {', '.join(sorted(given))}")
    return lines


def _over(started: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Return whether all have ended or one has failed."""
    codes = [process.poll() for process in started]
    return None not in codes or any(code for code in codes if code)


def _command(node: Node, size: Scale, address: str, port: int, meeting_id: str) -> tuple[list[str], dict[str, str]]:
    """Return a launch command with the probe as its program, and the variables of a rank that no torchrun starts."""
    launcher = [*PYTHON, LAUNCHER]
    backend, _, asked, _ = node.meeting
    torchrun = node.launch.torchrun
    if torchrun is None:
        rank = {"RANK": str(node.rank), "WORLD_SIZE": str(size.pods)}
        return launcher, {**rank, "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port)} if asked else {}
    nodes = f"{size.pods}" if size.pods < node.nodes[0] else f"{node.nodes[0]}:{node.nodes[1]}"
    options = [f"--nnodes={nodes}", f"--nproc-per-node={size.processes}", f"--local-addr={address}"]
    limits = [item for item in (torchrun.values["rdzv-conf"] or "").split(",") if TIME_LIMIT.fullmatch(item)]
    if limits:
        options.append(f"--rdzv-conf={','.join(limits)}")
    if not asked:
        options.append("--standalone")
    elif backend == "static":
        options += [f"--node-rank={node.rank}", f"--master-addr={ADDRESS}", f"--master-port={port}"]
    else:
        backend = "c10d" if backend in ELSEWHERE else backend
        options += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={ADDRESS}:{port}"]
    return [*launcher, *options, f"--rdzv-id={meeting_id}", "--no-python", *PYTHON, PROBE], {}


def _environment(index: int, directory: Path, timeout: float) -> dict[str, str]:
    """Return the environment of a pod's processes. Nothing in it comes from the manifest."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        **{name: os.environ[name] for name in FROM_THE_MACHINE if name in os.environ},
        **dict.fromkeys(("HOME", "TMPDIR", rank_probe.RECORDS), str(directory)),
        "HOSTNAME": str(index),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        **ON_LOOPBACK,
        rank_probe.SECONDS: str(timeout),
    }


def _log(directory: Path, index: int) -> Path:
    return directory / f"{index}.log"


def _free_port() -> int:
    with socket.socket() as server:
        server.bind((ADDRESS, 0))
        return int(server.getsockname()[1])


def _records(nodes: Sequence[Node], directory: Path) -> list[dict[str, Any]]:
    records = [json.loads(path.read_text()) for path in directory.glob("*.json")]
    for record in records:
        record["pod"] = nodes[int(record["pod"])].pod.name
    return sorted(records, key=lambda record: (record["rank"], record["pod"]))


def _lines(
    nodes: Sequence[Node], records: list[dict[str, Any]], ends: dict[str, int | None], said: dict[str, str]
) -> list[str]:
    """Return one line for each pod: its ranks, and how its launcher ended if it failed."""
    lines = []
    for node in nodes:
        name = node.pod.name
        own = [record for record in records if record["pod"] == name]
        ranks = ", ".join(f"rank {record['rank']} of {record['world']}" for record in own) or "no rank"
        code = ends[name]
        end = "" if code == 0 else f"; {'still waiting' if code is None else f'exit code {code}'}: {said[name]}"
        lines.append(f"{name}: {ranks}{end}")
    return lines


def _last_lines(log: Path) -> str:
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith("File ")]
    return " | ".join((errors or lines)[-LAST_LINES:])[:500]
