"""Nothing of a cluster is outside its namespaces, and nothing of it outlives the process that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster import build
from tests.cluster.conftest import own_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.sandbox import BRIDGE_ADDRESS
from tests.parts.gomodule import Progress
from tools.core import processes, repo

# A run with etcd, an API server and control groups, that says where it is and then does nothing.
RUNNER = """
import sys, time
from pathlib import Path
from tests.cluster import build
from tests.cluster.conftest import own_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.sandbox import Sandbox
sandbox = Sandbox()
plane = ControlPlane(sandbox, build.ensure(print))
plane.start_etcd()
plane.start_api_server()
for hierarchy in Path("/sys/fs/cgroup").glob("*/cgroup.clone_children"):
    (hierarchy.parent / (sandbox.cgroup + "node-1") / "pods").mkdir(parents=True)
print("started", sandbox.root, sandbox.init.popen.pid, sandbox.cgroup, flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(say: Progress) -> Iterator[ControlPlane]:
    """Another cluster's etcd and API server, beside the session's."""
    with own_plane(say) as plane:
        plane.start_etcd()
        plane.start_api_server()
        yield plane
    assert not plane.sandbox.root.exists()


def test_two_clusters_side_by_side_do_not_meet(control_plane: ControlPlane, other: ControlPlane) -> None:
    """They have the same addresses and ports. Neither sees the other's objects or trusts its certificates."""
    other.kube.run("create", "namespace", "only-there")
    assert other.kube.get("namespace", "only-there") is not None
    assert control_plane.kube.get("namespace", "only-there") is None
    crossed = control_plane.kube.call("get", "ns", f"--kubeconfig={other.kube.kubeconfig}")
    assert crossed.code != 0
    assert "certificate" in crossed.err


def test_every_process_is_in_the_clusters_own_network(control_plane: ControlPlane) -> None:
    """So none of them can hold a port of this machine."""
    sandbox = control_plane.sandbox
    inside = processes.descendants([sandbox.init.pid, *(one.pid for one in sandbox.processes)])
    assert len(inside) >= 7
    networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in inside if processes.is_alive(pid)}
    assert os.readlink("/proc/self/ns/net") not in networks
    links = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, text=True, check=True).stdout)
    assert BRIDGE_ADDRESS not in {entry["local"] for link in links for entry in link["addr_info"]}
    assert not [link["ifname"] for link in links if link["ifname"].startswith(("br0", "node"))]


def test_there_is_no_way_out(control_plane: ControlPlane) -> None:
    """The only routes lead to the cluster's own networks."""
    routes = json.loads(control_plane.sandbox.run(["ip", "-j", "route"]))
    assert not [route for route in routes if route["dst"] == "default"]


def test_nothing_is_left_after_sigkill(say: Progress) -> None:
    build.ensure(say)
    runner = subprocess.Popen([sys.executable, "-c", RUNNER], cwd=repo.root(), stdout=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    words = next((line.split() for line in runner.stdout if line.startswith("started")), None)
    assert words is not None, "the run ended before it had started"
    root, first, cgroup = Path(words[1]), int(words[2]), words[3]
    inside = processes.descendants([first])
    assert root.exists()
    assert len(inside) >= 2
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    deadline = time.monotonic() + 30
    while (left := _left(root, cgroup)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert not [pid for pid in inside if processes.is_alive(pid)]


def _left(root: Path, cgroup: str) -> list[str]:
    """Return what is left of a cluster: processes, files, control groups."""
    alive = []
    for one in psutil.process_iter(["cmdline"]):
        words = " ".join(one.info["cmdline"] or [])
        if str(root) in words:
            alive.append(words)
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{cgroup}*")]
    return alive + groups + ([str(root)] if root.exists() else [])
