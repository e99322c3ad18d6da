"""Large clusters: 64 p5 machines until nothing is free, and a thousand that commands look at.

The times are those of an operator without a limit of requests; by default it asks 20 times a second at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube, renamed, shared_claim
from tests.cluster.machines import fake_node
from tests.parts.gomodule import Progress
from tools.cells.knobs import Knobs, applied
from tools.core import processes, repo
from tools.facts.instances import NVIDIA, instance
from tools.job.snapshot.collect import LOGS
from tools.kube.manifests import Manifests, name_of

MACHINES = 64
LARGE = "overlays/p5/llama-3-1-70b"
OTHERS = ("overlays/p5/llama-2-70b", "overlays/p5/llama-2-13b", "overlays/p5/llama-2-7b")

FLEET, GREAT, SMALL, JOBS = 1024, 512, 8, 63
COMMANDS = (
    ("job", "status", "p5-llama-3-1-70b-train-large"),
    ("job", "why", "p5-llama-3-1-70b-train-large"),
    ("job", "list"),
    ("cluster", "nodes"),
    ("cluster", "validate"),
)
CALLS = LOGS + 12  # of kubectl in one command, whatever the number of nodes and pods
LIST_CALLS = JOBS + 1 + 3  # one for each running job, one for their pods, two for the jobs
MEASURED = """
import json, resource, sys
from tools.kube.kubectl import Kubectl
from tools.cli import invoke
calls, run = 0, Kubectl.run
def counted(self, *words, **more):
    global calls
    calls += 1
    return run(self, *words, **more)
Kubectl.run = counted
code = invoke(sys.argv[1:])
used = [resource.getrusage(one) for one in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
cpu = sum(one.ru_utime + one.ru_stime for one in used)
found = {"code": code, "calls": calls, "cpu_s": round(cpu, 1), "mib": max(one.ru_maxrss for one in used) // 1024}
print(json.dumps(found), file=sys.stderr)
"""

pytestmark = pytest.mark.cluster_all


def test_512_gpus_hold_one_large_job_and_a_queue_of_others(
    kube: Kube, control_plane: ControlPlane, cells: list[Manifests], namespace: str, say: Progress
) -> None:
    by_name = {cell.source: cell for cell in cells}
    kube.put(shared_claim(namespace), namespace)
    began = time.monotonic()
    labels = {"trainyard-test": "kwok-scale"}
    kube.put([fake_node(instance("p5.48xlarge"), f"scale-{n}", labels) for n in range(MACHINES)])
    kube.put(by_name[LARGE].objects, namespace)
    kube.wait("the large job's pods", lambda: _running(kube, namespace) == 8, 120)
    say(f"{MACHINES} nodes up and 8 pods of {LARGE} running: {time.monotonic() - began:.1f} s")
    began, wanted, number = time.monotonic(), 8, 0
    while wanted < MACHINES:
        cell = by_name[OTHERS[number % len(OTHERS)]]
        pods = int(cell.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])
        if wanted + pods > MACHINES:
            cell = by_name[OTHERS[-1]]
            pods = 2
        kube.put(renamed(cell, f"other-{number}"), namespace)
        wanted, number = wanted + pods, number + 1
    kube.wait("every machine taken", lambda: _running(kube, namespace) == wanted == MACHINES, 300)
    say(f"{number} more jobs on the other {MACHINES - 8} machines: {time.monotonic() - began:.1f} s")
    kube.put(renamed(by_name[LARGE], "one-more"), namespace)
    selector = "training.kubeflow.org/job-name=one-more"
    kube.wait("the next job's pods", lambda: len(kube.list("pods", namespace, selector)) == 8, 60)
    kube.wait("its verdict", lambda: f"Insufficient {NVIDIA}" in _verdict(kube, namespace, selector), 60)
    taken = [pod["spec"].get("nodeName") for pod in kube.list("pods", namespace) if pod["spec"].get("nodeName")]
    assert len(taken) == len(set(taken)) == MACHINES
    megabytes = {one.name: _resident(one.pid) for one in control_plane.sandbox.processes}
    say("resident MB: " + ", ".join(f"{name} {size:.0f}" for name, size in sorted(megabytes.items())))
    assert name_of(by_name[LARGE].job()) in {name_of(job) for job in kube.list("pytorchjobs", namespace)}
    kube.call("delete", "nodes", "--selector=trainyard-test=kwok-scale", "--wait=false")


def _running(kube: Kube, namespace: str) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in kube.list("pods", namespace))


def _verdict(kube: Kube, namespace: str, selector: str) -> str:
    conditions = [
        one
        for pod in kube.list("pods", namespace, selector)
        for one in pod["status"].get("conditions") or []
        if one["type"] == "PodScheduled"
    ]
    return " ".join(str(one.get("message", "")) for one in conditions)


def _resident(pid: int) -> float:
    """Return the resident memory of a process and those below it, in MB."""
    pages = (
        int(Path(f"/proc/{one}/statm").read_text(encoding="utf-8").split()[1]) for one in processes.descendants([pid])
    )
    return sum(pages) * 4096 / 1e6


def test_a_thousand_machines_are_read_in_few_requests(
    kube: Kube, control_plane: ControlPlane, cells: list[Manifests], namespace: str, say: Progress
) -> None:
    """One job of 512 pods and 63 of 8, a node for each pod; then the commands that look at all of it."""
    (cell,) = (one for one in cells if one.source == LARGE)
    kube.put(shared_claim(namespace), namespace)
    labels = {"trainyard-test": "kwok-fleet"}
    kube.put([fake_node(instance("p5.48xlarge"), f"fleet-{n}", labels) for n in range(FLEET)])
    began, wanted = time.monotonic(), GREAT + JOBS * SMALL
    kube.put(applied(cell, Knobs(name="large", nodes=GREAT)).objects, namespace)
    for number in range(JOBS):
        kube.put(applied(cell, Knobs(name=f"small-{number}", nodes=SMALL)).objects, namespace)
    kube.wait(f"{wanted} pods running", lambda: _running(kube, namespace) == wanted, 900)
    say(f"{FLEET} nodes: {wanted} pods of {JOBS + 1} jobs bound and running: {time.monotonic() - began:.0f} s")
    taken = [pod["spec"]["nodeName"] for pod in kube.list("pods", namespace)]
    assert len(taken) == len(set(taken)) == wanted
    for words in COMMANDS:
        where = [] if words[:2] == ("cluster", "nodes") else ["-n", namespace]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *words, *where],
            cwd=repo.root(),
            env=kube.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        found = json.loads(done.stderr.splitlines()[-1])
        say(f"yard {' '.join(words[:2])}: {time.monotonic() - began:.1f} s, {found}")
        assert "Traceback" not in done.stderr, done.stderr
        assert found["calls"] <= (LIST_CALLS if words == ("job", "list") else CALLS), found
        assert found["mib"] < 1024, found
    kube.call("delete", "nodes", "--selector=trainyard-test=kwok-fleet", "--wait=false")
