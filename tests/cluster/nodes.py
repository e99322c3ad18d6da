"""Real nodes: containerd, runc, CNI, kubelet and kube-proxy, each node in namespaces of its own.

A node is 10.99.<index>.2 on the cluster's bridge, and its pods are 10.244.<index>.0/24. One kill ends the
node with all its pods. Found by trying: kubelet refuses cgroup v1 unless it is told not to; runc dies without
restrict_oom_score_adj where the machine gives no CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.cluster import image, registry
from tests.cluster.api import Object
from tests.cluster.control_plane import DNS_SERVICE, ControlPlane
from tests.cluster.kube import condition
from tests.cluster.packages import Packages
from tests.cluster.sandbox import BRIDGE_ADDRESS, UP_SECONDS, CannotStart, Process, Unsupported, is_root
from tools.core import processes, repo

TRAINER = "localhost/trainyard/trainer-cpu:0.1.0"  # the image that overlays/hardware/cpu names
PAUSE = "localhost/trainyard/pause:test"
# Where containers have the project and its environment: a checkout may lie below /tmp, which pods hide.
PROJECT, ENVIRONMENT = "/opt/project", "/opt/environment"
CGROUPS = Path("/sys/fs/cgroup")
PODS = "10.244.0.0/16"
_FIRST_PROCESS = """
set -e
mount --make-rprivate /
hostname "$1"
mount -t tmpfs tmpfs /run
mkdir -p /run/lock "$2/kubelet" "$2/log" "$2/lib" "$2/lib-work"
mount --bind "$2/log" /var/log
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$2/lib,workdir=$2/lib-work" /var/lib
mount --bind "$2/kubelet" "$2/kubelet"
mount --make-rshared "$2/kubelet"
touch "$2/ready"
while [ ! -e "$2/linked" ]; do sleep 0.02; done
ip link set lo up
ip addr add "$3/16" dev eth0
ip link set eth0 up
ip route add default via 10.99.0.1
echo 1 > /proc/sys/net/ipv4/ip_forward
trap '' CHLD
touch "$2/up"
exec sleep infinity
"""


class Node:
    """One node of a cluster, from start() to kill(). It ends with the cluster's sandbox."""

    def __init__(self, plane: ControlPlane, packages: Packages, index: int) -> None:
        if not is_root():
            raise Unsupported("nodes need control groups and veth pairs of the machine: run as root")
        self.plane, self.packages, self.index = plane, packages, index
        self.name = f"node-{index}"
        self.address = f"10.99.{index}.2"
        self.directory = plane.sandbox.root / self.name
        self.cgroup = plane.sandbox.cgroup + self.name
        self._parts: list[Process] = []
        self._images: Sequence[Path] = ()

    def start(self, images: Sequence[Path]) -> None:
        """Start the node with these images and wait until it is Ready. Raises CannotStart."""
        self._images = images
        self._make_cgroups()
        self._make_namespaces()
        containerd = self._containerd()
        for archive in images:
            self._ctr("k8s.io", "images", "import", str(archive))
        kubelet = self._kubelet()
        self._proxy()
        sandbox = self.plane.sandbox
        sandbox.wait(f"{self.name} Ready", self.is_ready, UP_SECONDS, [containerd, kubelet])

    def is_ready(self) -> bool:
        """Return whether the control plane reports the node as Ready."""
        return condition(self.plane.kube.get("node", self.name) or {}, "Ready") is not None

    def enter(self) -> list[str]:
        """Return the prefix that runs a command on the node."""
        return ["nsenter", f"--target={self._pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "--"]

    def push(self, archive: Path, name: str, under: str | None = None) -> str:
        """Push an image that the node does not have into the registry and return its digest.

        `under` is another name for it there.
        """
        target = f"{registry.ADDRESS}/{(under or name).partition('/')[2]}"
        self._ctr("push", "images", "import", str(archive))
        self._ctr("push", "images", "tag", name, target)
        self._ctr("push", "images", "push", "--plain-http", target)
        listed = self._ctr("push", "images", "list", f"name=={target}").splitlines()[1].split()
        return next(word for word in listed if word.startswith("sha256:"))

    def pulled(self) -> list[str]:
        """Return the names of the images that pods can use here."""
        return self._ctr("k8s.io", "images", "list", "--quiet").split()

    def kill_container(self, container: str) -> None:
        """Send SIGKILL to a container's first process, found by the container's id."""
        self._ctr("k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)

    def freeze(self) -> None:
        """Stop every process of the node, as when a machine hangs: it answers nothing and closes nothing."""
        for pid in processes.descendants([self._pid, *(part.pid for part in self._parts)]):
            os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Kill the node and its pods at once, as when a machine loses power."""
        for part in self._parts:  # the `nsenter` above each: until it ends, nobody collects its dead
            part.popen.kill()
        os.kill(self._pid, signal.SIGKILL)
        for process in (self._outer, *self._parts):
            process.popen.wait(timeout=30)
        with contextlib.suppress(CannotStart):  # the kernel takes it away by itself, but in its own time
            self.plane.sandbox.call_outside("ip", "link", "del", f"node{self.index}")

    def restart(self) -> None:
        """Start a killed node again, as a new machine with its name."""
        shutil.rmtree(self.directory)
        self.start(self._images)

    def _make_cgroups(self) -> None:
        """Make the group that kubelet puts its pods below, in each hierarchy of version 1."""
        hierarchies = [path for path in CGROUPS.iterdir() if (path / "cgroup.clone_children").exists()]
        if not hierarchies:
            raise Unsupported("this machine has only cgroup v2, which nodes of the test cluster do not use yet")
        for path in hierarchies:
            (path / self.cgroup).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            wanted = (CGROUPS / "cpuset" / name).read_text(encoding="utf-8")
            (CGROUPS / "cpuset" / self.cgroup / name).write_text(wanted, encoding="utf-8")
        # A machine's worth: by default all pods of the node together weigh as much as one process.
        shares = str(1024 * (os.cpu_count() or 1))
        (CGROUPS / "cpu" / self.cgroup / "cpu.shares").write_text(shares, encoding="utf-8")

    def _make_namespaces(self) -> None:
        sandbox = self.plane.sandbox
        self.directory.mkdir()
        words = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words += ["--mount-proc", "sh", "-c", _FIRST_PROCESS, "node"]
        self._outer = sandbox.start(self.name, [*words, self.name, self.directory, self.address])
        ready = self.directory / "ready"
        sandbox.wait(f"namespaces of {self.name}", ready.exists, UP_SECONDS, [self._outer])
        self._pid = min(processes.children_of(self._outer.pid))
        link = f"node{self.index}"
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(self._pid))
        sandbox.call_outside("ip", "link", "add", link, *peer)
        sandbox.call_outside("ip", "link", "set", link, "master", "br0", "up")
        route = (f"10.244.{self.index}.0/24", "via", self.address)
        (self.directory / "linked").touch()
        sandbox.wait(f"the network of {self.name}", (self.directory / "up").exists, UP_SECONDS, [self._outer])
        sandbox.call_outside("ip", "route", "replace", *route)

    def _start(self, name: str, *words: str | Path) -> Process:
        log = self.plane.sandbox.root / f"log/{self.name}-{name}.log"
        with log.open("ab") as file:
            environment = self.packages.environment
            popen = processes.start([*self.enter(), *map(str, words)], environment, self.directory, file, file)
        process = Process(f"{self.name}-{name}", popen, log)
        sandbox = self.plane.sandbox
        for listed in (self._parts, sandbox.processes):
            listed[:] = [one for one in listed if one.name != process.name] + [process]
        return process

    def _containerd(self) -> Process:
        cni = self.directory / "cni"
        cni.mkdir(exist_ok=True)
        (cni / "10-pods.conflist").write_text(json.dumps(self._network()), encoding="utf-8")
        config = self.directory / "containerd.toml"
        config.write_text(self._containerd_config(cni), encoding="utf-8")
        specification = self._run("ctr", "oci", "spec")
        (self.directory / "base.json").write_text(_with_mounts(specification), encoding="utf-8")
        process = self._start("containerd", "containerd", "-c", config)
        self.plane.sandbox.wait("containerd", lambda: self._answers("ctr", "version"), UP_SECONDS, [process])
        return process

    def _containerd_config(self, cni: Path) -> str:
        plugin = 'plugins."io.containerd.grpc.v1.cri"'
        runc = f"{plugin}.containerd.runtimes.runc"
        return f"""version = 2
root = "{self.directory}/containerd"
state = "/run/containerd"
[{plugin}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
[{plugin}.containerd]
snapshotter = "overlayfs"
[{runc}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{self.directory}/base.json"
[{runc}.options]
SystemdCgroup = false
BinaryName = "{self.packages.root}/usr/sbin/runc"
[{plugin}.registry]
config_path = "{registry.hosts(self.directory / "registries")}"
[{plugin}.cni]
bin_dir = "{self.packages.cni}"
conf_dir = "{cni}"
"""

    def _network(self) -> Object:
        ranges = [[{"subnet": f"10.244.{self.index}.0/24"}]]
        addresses: Object = {"type": "host-local", "dataDir": "/run/cni", "ranges": ranges}
        addresses |= {"routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": addresses,
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}

    def _kubelet(self) -> Process:
        plane = self.plane
        kubeconfig = plane.pki.path(f"{self.name}.kubeconfig")
        if not kubeconfig.exists():
            plane.pki.client(self.name, f"/O=system:nodes/CN=system:node:{self.name}")
        (self.directory / "resolv.conf").touch()
        authority = {"clientCAFile": str(plane.pki.path("ca.crt"))}
        config: Object = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": authority,
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "resolvConf": str(self.directory / "resolv.conf"),
            "volumePluginDir": str(self.directory / "plugins"),
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            # One trainer's pod of one processor fits a node, and not two.
            "systemReserved": {"cpu": f"{(os.cpu_count() or 1) * 1000 - 1500}m"},
            "nodeStatusUpdateFrequency": "4s",
        }
        path = self.directory / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        program = plane.programs.path("kubelet")
        words = (f"--config={path}", f"--kubeconfig={kubeconfig}", f"--hostname-override={self.name}")
        return self._start(
            "kubelet", program, *words, f"--node-ip={self.address}", f"--root-dir={self.directory}/kubelet"
        )

    def _proxy(self) -> Process:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.plane.pki.path("proxy.kubeconfig"))},
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": self.name,
            "conntrack": {"maxPerCore": 0},
        }
        path = self.directory / "proxy.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return self._start("kube-proxy", self.plane.programs.path("kube-proxy"), f"--config={path}")

    def _ctr(self, namespace: str, *words: str) -> str:
        return self._run("ctr", "--namespace", namespace, *words)

    def _run(self, *words: str) -> str:
        return subprocess.run(
            [*self.enter(), *words],
            env=self.packages.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout

    def _answers(self, *words: str) -> bool:
        done = subprocess.run([*self.enter(), *words], env=self.packages.environment, capture_output=True, check=False)
        return done.returncode == 0


def images(plane: ControlPlane) -> tuple[Path, Path]:
    """Make the image of the pods' first process, which the nodes hold, and the trainer's.

    The trainer's has only directories: what the machine has of them (system, Python, the project with
    its environment) is mounted into every container, read-only. A copy would be 5 GB.
    """
    folder = plane.sandbox.root / "images"
    folder.mkdir(exist_ok=True)
    pause = image.archive(
        folder / "pause.tar",
        PAUSE,
        [],
        {"pause": plane.programs.path("pause")},
        {},
        {"Entrypoint": ["/pause"]},
    )
    account = "trainer:x:1000:1000::/tmp:/bin/sh\n"
    trainer = image.archive(
        folder / "trainer.tar",
        TRAINER,
        ["etc", "proc", "sys", "dev", "tmp!", "var", "run", "usr"],
        {
            "etc/passwd": account,
            "etc/group": "trainer:x:1000:\n",
            **scripts(folder / "bin"),
        },
        {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
        {
            "Env": [f"PATH=/opt/bin:{ENVIRONMENT}/bin:/usr/bin:/bin", f"PYTHONPATH={PROJECT}"],
            "User": "1000",
            "WorkingDir": PROJECT,
        },
    )
    return pause, trainer


def scripts(folder: Path) -> dict[str, Path]:
    """Write the environment's scripts (torchrun and others) to `folder`, for the Python of containers.

    Their own first lines name the Python by the path that it has on the machine.
    """
    folder.mkdir()
    found = {}
    for path in sorted((Path(sys.prefix) / "bin").iterdir()):
        first, _, rest = path.read_bytes().partition(b"\n") if path.is_file() else (b"", b"", b"")
        if first.startswith(f"#!{sys.prefix}/bin/python".encode()):
            (folder / path.name).write_bytes(f"#!{ENVIRONMENT}/bin/python\n".encode() + rest)
            found[f"opt/bin/{path.name}"] = folder / path.name
    return found


def start_dns(plane: ControlPlane) -> None:
    """Start CoreDNS beside the control plane. Pods reach it by its Service, through kube-proxy."""
    config = plane.sandbox.root / "Corefile"
    kubeconfig = plane.pki.path("admin.kubeconfig")
    config.write_text(
        f".:53 {{\n bind {BRIDGE_ADDRESS}\n errors\n ready 127.0.0.1:18181\n"
        f" kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {kubeconfig}\n  ttl 5\n }}\n}}\n",
        encoding="utf-8",
    )
    plane.sandbox.start("coredns", [plane.programs.path("coredns"), "-conf", config])
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [{"name": f"dns-{kind.lower()}", "port": 53, "protocol": kind} for kind in ("UDP", "TCP")]
    service = {"clusterIP": DNS_SERVICE, "ports": ports}
    labels = {"kubernetes.io/service-name": "kube-dns"}
    endpoints = [{"addresses": [BRIDGE_ADDRESS], "conditions": {"ready": True}}]
    plane.kube.put(
        [
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": metadata | {"labels": labels},
                "addressType": "IPv4",
                "endpoints": endpoints,
                "ports": ports,
            },
        ],
        "kube-system",
    )


def _with_mounts(specification: str) -> str:
    """Return an OCI specification that mounts this machine's directories read-only into the container."""
    base: Object = json.loads(specification)
    places = {str(path): str(path) for path in (Path("/usr"), Path("/etc/alternatives")) if path.exists()}
    if Path("/usr") not in Path(sys.base_prefix).parents:
        places[sys.base_prefix] = sys.base_prefix
    places |= {sys.prefix: ENVIRONMENT, str(repo.root()): PROJECT}
    options = ["rbind", "ro", "nosuid", "nodev"]
    base["mounts"] += [
        {"destination": there, "type": "bind", "source": here, "options": options} for here, there in places.items()
    ]
    return json.dumps(base)
