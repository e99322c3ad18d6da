"""The proof of a job's wiring: its own launch commands run here, with a probe in place of the trainer.

None of the manifest's own code runs: only torchrun (or python) with the manifest's options and environment,
and `rank_probe`. All pods share this machine's address, so each rendezvous of the job gets its own free port.
Pods that would not meet on a cluster do not meet here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.core import output, processes, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.simulator import environment, rank_probe
from tools.simulator.local_pod import ADDRESS, FROM_THE_MACHINE, loopback
from tools.simulator.wiring import Analysis, Node, world_size

# Processes started when the user gave no numbers. Each imports torch, which takes a processor some seconds.
AT_MOST_UNASKED = max(4, min(8, environment.cores()))
AT_MOST = 64
SCALED = 2  # pods, and processes a pod, of a larger job
TICK = 0.1
LOADER_VARIABLES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "PYTHONHOME", "PYTHON_EXEC")
LAST_LINES = 3


@dataclass(frozen=True)
class Scale:
    """The number of pods that run here and of processes in each. `whole`: that is the whole job."""

    pods: int
    processes: int
    whole: bool


def scale(nodes: Sequence[Node], pods: int | None, nproc: int | None) -> Scale:
    """Return the size of the proof: the whole job if it is small, else the requested size, else 2 x 2.

    Raises UserError for a size that the job or this machine does not have.
    """
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
    if analysis.verdict.state is not State.PASS:
        return analysis.verdict
    if importlib.util.find_spec("torch") is None:
        reason = "torch is not installed here, so the job's launchers cannot run"
        return Verdict(
            State.CANNOT_TELL, reason, analysis.verdict.evidence, "install torch, or run make setup"
        )
    size = scale(analysis.nodes, pods, nproc)
    nodes = analysis.nodes[: size.pods]
    if any(node.meeting[1] not in {item.pod.name for item in nodes} for node in nodes):
        reason = f"the first {size.pods} pods do not hold the rendezvous"
        return Verdict(State.CANNOT_TELL, reason, analysis.verdict.evidence)
    with _scratch() as directory:
        began = time.monotonic()
        ends = _run(nodes, size, directory, timeout)
        records = _records(directory)
        said = {node.pod.name: _last_lines(directory / f"{node.pod.name}.log") for node in nodes}
    ran = f"ran here: {_sized(size)}, {time.monotonic() - began:.1f} s"
    evidence = [*analysis.verdict.evidence, ran, *_lines(nodes, records, ends, said)]
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
        return Verdict(
            State.FAIL,
            reason,
            evidence,
            "check which pods wait, and where; --timeout N waits longer",
            details,
        )
    failed = [pod for pod, code in ends.items() if code]
    if failed:
        return Verdict(State.FAIL, f"the launcher of {failed[0]} failed", evidence, None, details)
    if problem:
        return Verdict(State.FAIL, problem, evidence, None, details)
    evidence.append(
        f"one all-reduce over {output.count(world, 'rank')}: each rank was counted once on each of them"
    )
    return Verdict(State.PASS, _success(analysis.nodes, size), evidence, None, details)


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


def _run(nodes: Sequence[Node], size: Scale, directory: Path, timeout: float) -> dict[str, int | None]:
    """Start every pod's launcher and wait. Returns exit codes; None for a launcher that had to be killed."""
    ports = {meeting: _free_port() for meeting in sorted({node.meeting for node in nodes})}
    processes.adopt_orphans()
    before = processes.children_of(os.getpid())
    started: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + timeout
    try:
        for node, address in zip(nodes, environment.addresses(len(nodes)), strict=True):
            argv, variables = _command(node, size, address, ports[node.meeting], directory, timeout)
            with (directory / f"{node.pod.name}.log").open("wb") as log:
                started.append(processes.start(argv, variables, repo.root(), log, log))
        while time.monotonic() < deadline and not _over(started):
            time.sleep(TICK)
        return {node.pod.name: process.poll() for node, process in zip(nodes, started, strict=True)}
    finally:
        processes.kill_tree(started)
        processes.kill_tree([], processes.children_of(os.getpid()) - before)


def _over(started: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Return whether all have ended or one has failed."""
    codes = [process.poll() for process in started]
    return None not in codes or any(code for code in codes if code)


def _command(
    node: Node, size: Scale, address: str, port: int, directory: Path, timeout: float
) -> tuple[list[str], dict[str, str]]:
    """Return a pod's launch command with the probe in place of its program, and its environment."""
    variables = _environment(node, directory, timeout)
    script = str(Path(rank_probe.__file__).resolve())
    torchrun = node.launch.torchrun
    if torchrun is None:
        if node.meeting[2]:
            variables |= {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port), "WORLD_SIZE": str(size.pods)}
        return [sys.executable, "-u", script], variables
    options = [*torchrun.words, f"--local-addr={address}", f"--nproc-per-node={size.processes}"]
    if size.pods < node.nodes[0]:
        options.append(f"--nnodes={size.pods}")
    if torchrun.values["log-dir"] is not None:
        options.append(f"--log-dir={directory / 'logs'}")
    backend, _, asked, _ = node.meeting
    if backend == "static" and not torchrun.values["rdzv-endpoint"]:
        options += [f"--master-addr={ADDRESS}", f"--master-port={port}"]
    elif asked:
        options.append(f"--rdzv-endpoint={ADDRESS}:{port}")
    program = [script]
    if "module" in torchrun.flags:
        program = ["tools.simulator.rank_probe"]
    elif "no-python" in torchrun.flags:
        program = [sys.executable, "-u", script]
    return [sys.executable, "-m", torchrun.module, *options, *program], variables


def _environment(node: Node, directory: Path, timeout: float) -> dict[str, str]:
    """Return the pod's environment without the variables that lead the loader or Python into its image."""
    own = {name: value for name, value in node.launch.environment.items() if name not in LOADER_VARIABLES}
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        **{name: os.environ[name] for name in FROM_THE_MACHINE if name in os.environ},
        "OMP_NUM_THREADS": "1",
        **own,
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "HOSTNAME": node.pod.name,
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": loopback(),
        rank_probe.RECORDS: str(directory),
        rank_probe.SECONDS: str(timeout),
    }


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    repo.local().mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="wiring-", dir=repo.local()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind((ADDRESS, 0))
        return int(server.getsockname()[1])


def _records(directory: Path) -> list[dict[str, Any]]:
    records = [json.loads(path.read_text()) for path in directory.glob("*.json")]
    return sorted(records, key=lambda record: (record["rank"], record["pod"]))


def _lines(
    nodes: Sequence[Node],
    records: list[dict[str, Any]],
    ends: dict[str, int | None],
    said: dict[str, str],
) -> list[str]:
    """Return one line for each pod: its ranks, and how its launcher ended if it failed."""
    lines = []
    for node in nodes:
        name = node.pod.name
        own = [record for record in records if record["pod"] == name]
        ranks = ", ".join(f"rank {record['rank']} of {record['world']}" for record in own) or "no rank"
        code = ends[name]
        end = (
            "" if code == 0 else f"; {'still waiting' if code is None else f'exit code {code}'}: {said[name]}"
        )
        lines.append(f"{name}: {ranks}{end}")
    return lines


def _last_lines(log: Path) -> str:
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith("File ")]
    return " | ".join((errors or lines)[-LAST_LINES:])[:500]
