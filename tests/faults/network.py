"""Faults of meshes and between agents: a lost host, a cut link, no rendezvous, a process of another job."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.bed import (
    INTERVAL,
    Bed,
    Course,
    NoFaultError,
    NotTriedError,
    Outcome,
    continued,
    course,
    kill,
    last_step,
    resumed_from,
    wait_for,
)
from tests.faults.processes import all_below, judged
from tests.parts.ports import free_port
from tests.training.jobs import Job

JOIN_SECONDS = 40
HANG_SECONDS = 5
GLOO_SECONDS = 10
CUT_SECONDS = 90  # the longest cut: the join time-out, and a hang that is found before


@dataclass
class Place:
    """Where one agent runs: the words before its command, its variables, and the address of the first one."""

    words: tuple[str, ...] = ()
    interface: str = "lo"
    host: str = "localhost"
    own: str = "localhost"


HERE = Place()
MESHES: dict[str, tuple[int, int, tuple[str, ...]]] = {  # agents, ranks of each, keys
    "fsdp": (1, 2, ("parallel.sharding=fsdp",)),
    "fsdp with tensor parallelism": (
        1,
        4,
        ("parallel.sharding=fsdp", "parallel.tensor=2", "model.tie_word_embeddings=false"),
    ),
    "hsdp": (2, 2, ("parallel.sharding=hsdp",)),
}


def _node(bed: Bed, number: int, port: int, place: Place = HERE, nproc: int = 1, **more: Any) -> Job:
    """Start agent `number` of two, as the operator's variables start it."""
    conf = f"is_host={int(number == 0)},join_timeout={JOIN_SECONDS},read_timeout=20"
    variables: dict[str, Any] = {
        "PET_NNODES": "2", "PET_NODE_RANK": str(number), "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "job",
        "PET_RDZV_ENDPOINT": f"{place.host}:{port}", "PET_RDZV_CONF": conf, "PET_LOCAL_ADDR": place.own,
        "GLOO_SOCKET_IFNAME": place.interface, "HOSTNAME": f"node-{number}",
        "TRAINYARD_HANG_SECONDS": str(HANG_SECONDS),
    }  # fmt: skip
    if place.interface != "lo":
        variables["TRAINYARD_LOOPBACK"] = ""
    return bed.start(
        agent=(),
        nproc=nproc,
        alone=False,
        prefix=place.words,
        words=(f"--timeout={GLOO_SECONDS}",),
        **variables,
        **more,
    )


def each_mesh(bed: Bed) -> Outcome:
    """SIGKILL of the last rank of a mesh, by the seed; all ranks continue in place."""
    name, (nodes, nproc, keys) = list(MESHES.items())[bed.seed]

    def started(run: str) -> list[Job]:
        if nodes == 1:
            return [bed.start(run, nproc=nproc, keys=keys)]
        port = free_port()
        return [_node(bed, number, port, nproc=nproc, keys=keys, name=run) for number in range(nodes)]

    calm = started("calm")
    if max(job.wait() for job in calm):
        raise NoFaultError(f"the run without a fault failed: {calm[0].text()[-300:]}")
    jobs, at = started("job"), bed.draw.randint(8, 25)
    jobs[0].until(lambda: last_step(jobs[0]) >= at)
    before = [pid for job in jobs for pid in job.workers()]
    struck, reached = kill(before[-1:]), last_step(jobs[0])
    seconds = continued(jobs[0], before, struck)
    code = max(job.wait() for job in jobs)
    proof = f"process {before[-1]} of the last of {len(before)} ranks ended at step {reached}"
    found = judged(bed, jobs[0], course(calm[0]), code, reached, seconds, proof)
    found.seen = f"{name}: {found.seen}"
    return found


def host_lost(bed: Bed) -> Outcome:
    """SIGKILL for the first agent, which hosts the rendezvous, and all its processes."""
    calm, at = bed.calm(), bed.draw.randint(8, 25)
    nodes = [_node(bed, number, port) for port in [free_port()] for number in (0, 1)]
    nodes[0].until(lambda: last_step(nodes[0]) >= at)
    struck, reached = kill(all_below(nodes[0].process.pid)), last_step(nodes[0])
    code = nodes[1].wait(200)
    seconds = time.time() - struck
    proof = f"node 0 was killed at step {reached}, node 1 ended with code {code} after {seconds:.0f} s"
    found = _again(bed, calm, reached, proof)
    found.seconds = seconds
    found.held = found.held and (bed.plain or code >= 128)
    return found


def _again(bed: Bed, calm: Course, reached: int, proof: str, place: Sequence[Place] = (HERE, HERE)) -> Outcome:
    """Start both agents again, and compare the run's end with that of the calm one."""
    port = free_port()
    nodes = [_node(bed, number, port, place[number]) for number in (0, 1)]
    codes = [node.wait(150) for node in nodes]
    start, same = resumed_from(nodes[0]), course(nodes[0]) == calm
    lost = max(0, reached - start)
    seen = (
        f"started again: from step {start}, codes {codes}, losses and weights {'bitwise equal' if same else 'differ'}"
    )
    return Outcome(codes == [0, 0] and same and lost <= INTERVAL, proof, seen, lost)


def no_rendezvous(bed: Bed) -> Outcome:
    """The second agent finds a closed port, and then a name that does not resolve."""
    codes, told = [], []
    for host in ("localhost", "nowhere.invalid"):
        began = time.time()
        job = _node(bed, 1, free_port(), Place(host=host), name=host)
        codes.append(job.wait(150))
        told.append(f"{host}: code {codes[-1]}, {time.time() - began:.0f} s")
    named = all(code == 163 for code in codes)
    return Outcome(named, "no other agent was started", "; ".join(told))


FOREIGN = """
import os, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(os.environ["RANK"])
"""


def foreign_process(bed: Bed) -> Outcome:
    """An agent that does not know the run's own id joins at the same address, before the second agent."""
    calm, port, mark = bed.calm(), free_port(), bed.place / "joined"
    script = bed.place / "foreign.py"
    script.write_text(FOREIGN)
    first = _node(bed, 0, port)
    if not wait_for(lambda: _listens(port), 60):
        raise NoFaultError("the rendezvous did not open")
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--node-rank=1", "--rdzv-backend=c10d",
             f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=job", "--rdzv-conf=is_host=0,join_timeout=25",
             str(script), str(mark)]  # fmt: skip
    foreign = bed.jobs.run("foreign", words, alone=False)
    if not wait_for(lambda: _connected(foreign.process.pid, port), 40):
        raise NoFaultError("the foreign process did not connect")
    time.sleep(3)
    second = _node(bed, 1, port)
    joined = wait_for(mark.exists, 8)
    proof = f"process {foreign.process.pid} was connected to port {port}"
    if joined:
        return Outcome(False, proof, f"it became rank {mark.read_text()}")
    codes = [first.wait(), second.wait()]
    same = course(first) == calm
    seen = f"it did not become a rank; losses and weights {'are bitwise equal' if same else 'differ'}"
    return Outcome(codes == [0, 0] and same and not mark.exists(), proof, seen)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
        return True
    return False


def _connected(pid: int, port: int) -> bool:
    """Whether a process has an established connection to this local port."""
    rows = (
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    )
    inodes = {row[9] for row in rows if row[3] == "01" and row[2].endswith(f":{port:04X}")}
    with contextlib.suppress(OSError):
        return any(os.readlink(each) in {f"socket:[{i}]" for i in inodes} for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


@contextlib.contextmanager
def two_networks() -> Iterator[tuple[Place, Place]]:
    """Yield two network namespaces that one link connects. Raises NotTriedError."""
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "3600"]) for _ in range(2)]
    try:
        time.sleep(0.3)
        first, second = ["nsenter", "-t", str(holders[0].pid), "-n"], ["nsenter", "-t", str(holders[1].pid), "-n"]
        target = str(holders[1].pid)
        for words in (
            [*first, "ip", "link", "add", "link0", "type", "veth", "peer", "name", "link1", "netns", target],
            *([*inside, "ip", "link", "set", "lo", "up"] for inside in (first, second)),
            *([*inside, "ip", "addr", "add", f"10.99.0.{n + 1}/24", "dev", f"link{n}"]
              for n, inside in enumerate((first, second))),
            *([*inside, "ip", "link", "set", f"link{n}", "up"] for n, inside in enumerate((first, second))),
        ):  # fmt: skip
            _net(words)
        host, other = "10.99.0.1", "10.99.0.2"
        yield Place(tuple(first), "link0", host, host), Place(tuple(second), "link1", host, other)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def _net(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as why:
        raise NotTriedError(f"no network namespace can be made: {why}") from None
    if done.returncode != 0:
        raise NotTriedError(f"no network namespace can be made: {done.stderr.strip()[:100]}: run as root")


@contextlib.contextmanager
def cut(place: Place) -> Iterator[None]:
    """Take a link down inside the block: neither side hears of the other."""
    _net([*place.words, "ip", "link", "set", place.interface, "down"])
    yield
    _net([*place.words, "ip", "link", "set", place.interface, "up"])


def partition(bed: Bed) -> Outcome:
    """The link is cut for less than the limit of a hang, and for longer. What either side commits then is counted."""
    calm, at = bed.calm(), bed.draw.randint(8, 15)
    with two_networks() as places:
        port = free_port()
        nodes = [_node(bed, number, port, places[number]) for number in (0, 1)]
        nodes[0].until(lambda: last_step(nodes[0]) >= at)
        before = [node.workers() for node in nodes]
        with cut(places[1]):
            held = last_step(nodes[0])
            time.sleep(3)
            stood = last_step(nodes[0]) - held <= 1
        nodes[0].until(lambda: last_step(nodes[0]) >= held + 4)
        if not stood:
            raise NoFaultError("the ranks stepped while the link was cut")
        kept = [node.workers() for node in nodes] == before
        with cut(places[1]):
            committed = _steps(nodes[0])
            wait_for(lambda: _codes(nodes) != [None, None], CUT_SECONDS)
            time.sleep(HANG_SECONDS)
            more, during = _steps(nodes[0]) - committed, _codes(nodes)
        reached = last_step(nodes[0])
        wait_for(lambda: None not in _codes(nodes), CUT_SECONDS)
        after = _codes(nodes)
        for node in nodes:
            node.close()
        proof = f"no step was made in 3 s of a cut; codes {during} in the long cut, {after} when the link was back"
        found = _again(bed, calm, reached, proof, places)
    told = "the same ranks continued after the short cut" if kept else "the short cut cost a restart"
    found.seen = f"{told}; {len(more)} commits during the long one, which ended with codes {after}; {found.seen}"
    found.held = found.held and kept and not more
    return found


def _codes(nodes: Sequence[Job]) -> list[int | None]:
    return [node.process.poll() for node in nodes]


def _steps(job: Job) -> set[str]:
    return {path.name for path in (job.run / "checkpoints").glob("step-????????")}
