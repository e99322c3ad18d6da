"""An invented cluster around one rendered cell: the API server's objects, changed one at a time."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tools.facts.instances import INSTANCES
from tools.job.snapshot.snapshot import CURRENT, Log, Snapshot
from tools.kube.manifests import Manifests
from tools.workload import operator_pods
from tools.workload.pod import Pod

Object = dict[str, Any]
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NAMESPACE = "team-a"
AGE = 900.0  # seconds since the job was created


def ago(seconds: float) -> str:
    """A time before the snapshot, in the API's format."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp(seconds: float) -> str:
    """A time before the snapshot, in the format of kubectl's log lines."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def node(name: str, kind: str, *, zone: str = "eu-west-1a") -> Object:
    """A node of an instance type, with its allocatable resources from the fact table."""
    fact = INSTANCES[kind]
    memory = fact.allocatable_memory_mib - fact.hugepages_2mi_mib
    allocatable = {
        "cpu": f"{fact.allocatable_cpu_m}m",
        "memory": f"{memory}Mi",
        "hugepages-2Mi": f"{fact.hugepages_2mi_mib}Mi",
        "ephemeral-storage": "100Gi",
        "pods": "100",
        "vpc.amazonaws.com/efa": str(fact.efa),
    }
    if fact.device_resource:
        allocatable[fact.device_resource] = str(fact.accelerators)
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": fact.architecture,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": kind,
        "topology.kubernetes.io/zone": zone,
    }
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": ago(9000), "message": "kubelet is fine"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {"taints": []},
        "status": {"allocatable": allocatable, "conditions": conditions},
    }


class World:
    """A healthy job, its nodes and objects. The methods plant faults."""

    def __init__(self, cell: Manifests, kind: str, nodes: int | None = None) -> None:
        self.job = copy.deepcopy(cell.job())
        self.job["metadata"] |= {"namespace": NAMESPACE, "uid": "uid-job", "creationTimestamp": ago(AGE)}
        self.job["status"] = {"conditions": [self._condition("Created", AGE), self._condition("Running", 800)]}
        made = operator_pods.pods(self.job)
        self.pods = [self._pod(one) for one in made]
        self.nodes = [node(f"node-{index}", kind) for index in range(nodes or len(self.pods))]
        self.others: list[Object] = []
        self.events: list[Object] = []
        self.logs: dict[tuple[str, str], list[str]] = {}
        self.run: Object | None = None
        self.unseen: dict[str, str] = {}
        self.objects: dict[str, list[Object]] = {
            "Service": [{"metadata": {"name": one.name}} for one in made],
            "ConfigMap": [
                {"metadata": {"name": one["metadata"]["name"]}, "keys": sorted(one.get("data") or {})}
                for one in cell.of_kind("ConfigMap")
            ],
            "Secret": [],
            "NetworkPolicy": cell.of_kind("NetworkPolicy"),
            "ResourceQuota": [],
            "StorageClass": [{"metadata": {"name": "gp3"}, "volumeBindingMode": "WaitForFirstConsumer"}],
            "PersistentVolume": [{"metadata": {"name": "volume"}, "spec": {}}],
            "PersistentVolumeClaim": [
                {
                    "metadata": {"name": "trainyard"},
                    "spec": {"storageClassName": "gp3", "volumeName": "volume"},
                    "status": {"phase": "Bound"},
                }
            ],
        }
        for index in range(len(self.pods)):
            self.running(index)

    def _condition(self, kind: str, seconds: float, status: str = "True", message: str = "") -> Object:
        return {
            "type": kind,
            "status": status,
            "lastTransitionTime": ago(seconds),
            "reason": f"PyTorchJob{kind}",
            "message": message or f"PyTorchJob {self.job['metadata']['name']} is {kind.lower()}.",
        }

    def _pod(self, one: Pod) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": one.name,
                "namespace": NAMESPACE,
                "uid": f"uid-{one.name}",
                "labels": one.labels,
                "creationTimestamp": ago(AGE - 5),
            },
            "spec": copy.deepcopy(one.spec),
            "status": {},
        }

    def name(self, index: int) -> str:
        return str(self.pods[index]["metadata"]["name"])

    def container(self, index: int) -> Object:
        found: Object = self.pods[index]["spec"]["containers"][0]
        return found

    def end(self, kind: str, message: str = "") -> None:
        """The job has Succeeded or Failed."""
        self.job["status"]["conditions"][1]["status"] = "False"
        self.job["status"]["conditions"].append(self._condition(kind, 60, message=message))

    def only_created(self) -> None:
        """The job has not run yet."""
        self.job["status"]["conditions"] = [self._condition("Created", AGE)]

    # states of a pod

    def running(self, index: int, seconds: float = 800, restarts: int = 0) -> None:
        """The pod's container runs."""
        self.pods[index]["spec"]["nodeName"] = f"node-{index}"
        self.pods[index]["status"] = {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [self._status({"running": {"startedAt": ago(seconds)}}, restarts, ready=True)],
        }

    def _status(self, state: Object, restarts: int = 0, ready: bool = False) -> Object:
        return {"name": "pytorch", "state": state, "lastState": {}, "restartCount": restarts, "ready": ready}

    def pending(self, *indices: int, seconds: float = 600, asked: bool = True, message: str = "") -> None:
        """The pods have no node. `asked`: the scheduler has tried to place them, and wrote `message`."""
        self.only_created()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        for index in indices:
            self.pods[index]["spec"].pop("nodeName", None)
            self.pods[index]["status"] = {"phase": "Pending", "conditions": [condition] if asked else []}
            self.pods[index]["metadata"]["creationTimestamp"] = ago(seconds)

    def waiting(self, index: int, reason: str, message: str = "", restarts: int = 0) -> None:
        """The pod has a node, and its container waits."""
        self.running(index)
        status = self._status({"waiting": {"reason": reason, "message": message}}, restarts)
        self.pods[index]["status"] |= {"phase": "Pending", "containerStatuses": [status]}

    def ended(
        self,
        index: int,
        code: int,
        *lines: str,
        reason: str = "Error",
        seconds: float = 60,
        message: str = "",
    ) -> None:
        """The pod's container has ended with these last lines, one each second."""
        self.running(index)
        ended = {"exitCode": code, "reason": reason, "finishedAt": ago(seconds), "message": message}
        phase = "Failed" if code else "Succeeded"
        self.pods[index]["status"] |= {
            "phase": phase,
            "containerStatuses": [self._status({"terminated": ended})],
        }
        self.log(index, *lines, seconds=seconds + len(lines))

    def crash_looping(
        self, index: int, code: int, *lines: str, reason: str = "Error", restarts: int = 4, message: str = ""
    ) -> None:
        """The kubelet starts the container again and again."""
        self.ended(index, code, *lines, reason=reason, message=message)
        status = self.pods[index]["status"]["containerStatuses"][0]
        status["lastState"], status["restartCount"] = status["state"], restarts
        status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}}
        self.pods[index]["status"]["phase"] = "Running"

    def sidecar(self, index: int, name: str) -> None:
        """Another container of the pod runs."""
        status = self.pods[index]["status"]
        status["containerStatuses"].append({"name": name, "ready": True, "state": {"running": {}}})
        status["phase"] = "Running"

    def init(self, index: int, name: str, state: Object, last: Object | None = None, **spec: str) -> None:
        """The pod has an init container in this state; `restartPolicy="Always"` makes it a sidecar."""
        self.pods[index]["spec"].setdefault("initContainers", []).append({"name": name, **spec})
        status = {"name": name, "state": state, "lastState": last or {}, "restartCount": 4}
        self.pods[index]["status"].setdefault("initContainerStatuses", []).append(status)

    def disrupted(self, index: int, reason: str, message: str) -> None:
        """The pod was ended from outside."""
        self.ended(index, 143, "step 12/400  loss 3.000  lr 1.00e-03  900 tokens/s  MFU unknown  1.0 GiB  ETA 1:00")
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        self.pods[index]["status"]["conditions"].append(condition)

    # events and logs

    def event(
        self, kind: str, name: str, reason: str, message: str, *, warning: bool = True, seconds: float = 30
    ) -> None:
        self.events.append(
            {
                "metadata": {"name": f"event-{len(self.events)}"},
                "involvedObject": {"kind": kind, "name": name},
                "reason": reason,
                "message": message,
                "type": "Warning" if warning else "Normal",
                "lastTimestamp": ago(seconds),
            }
        )

    def log(self, index: int, *lines: str, seconds: float = 60, which: str = CURRENT) -> None:
        """Lines of a pod's log, one each second, beginning `seconds` before the snapshot."""
        stamped = [f"{stamp(seconds - number)} {line}" for number, line in enumerate(lines)]
        self.logs.setdefault((self.name(index), which), []).extend(stamped)

    def hold(self, node: str, name: str, **amounts: str) -> None:
        """Another pod holds a node's resources."""
        names = {"gpu": "nvidia.com/gpu", "efa": "vpc.amazonaws.com/efa", "neuron": "aws.amazon.com/neuron"}
        requests = {names.get(key, key.replace("_", "-")): value for key, value in amounts.items()}
        container = {"name": "main", "image": "other", "resources": {"requests": requests}}
        self.others.append(
            {
                "metadata": {"name": name, "namespace": "team-b", "labels": {}},
                "spec": {"nodeName": node, "containers": [container]},
                "status": {"phase": "Running"},
            }
        )

    def machines(self, kind: str, count: int) -> None:
        """The cluster has other nodes."""
        self.nodes = [node(f"node-{index}", kind) for index in range(count)]

    def node_condition(self, nodes: list[int], **condition: str) -> None:
        """Agents report a condition of these nodes."""
        for index in nodes:
            self.nodes[index]["status"]["conditions"].append(condition)

    # the run directory

    def training(
        self,
        *,
        steps: int = 100,
        silent: float = 1.0,
        step_s: float = 1.0,
        ranks: int | None = None,
        phase: str = "training",
        rows: list[Object] | None = None,
    ) -> None:
        """Heartbeats and metrics of a run that took its last step `silent` seconds before the snapshot."""
        world = ranks or len(self.pods)
        last = NOW.timestamp() - silent
        records = [
            {
                "step": step,
                "loss": 4.0 - 0.01 * step,
                "lr": 1e-3,
                "grad_norm": 1.0,
                "tokens_per_s": 1000.0 / step_s,
                "mfu": 0.4,
                "memory_gib": 10.0,
                "data_wait_s": 0.01 * step_s,
                "step_s": step_s,
                "rank_step_s": [0.8 * step_s] * world,
                "time": last - step_s * (steps - step),
            }
            for step in range(1, steps + 1)
        ]
        for row, extra in zip(records[::-1], (rows or [])[::-1], strict=False):
            row |= extra
        beats = {f"rank-{rank:05d}.json": self.beat(rank, world, phase, steps, last) for rank in range(world)}
        self.run = {
            "directory": "/shared/runs/x",
            "exists": True,
            "now": NOW.timestamp(),
            "steps": 400,
            "world_size": world,
            "heartbeats": beats,
            "failures": {},
            "end": None,
            "report": None,
            "checkpoints": [],
            "quarantined": [],
            "metrics": [json.dumps(record) for record in records],
            "memory": {},
        }

    def beat(self, rank: int, world: int, phase: str, step: int | None, time: float) -> Object:
        host = self.name(rank * len(self.pods) // world)
        values = {"rank": rank, "phase": phase, "step": step, "time": time, "host": host}
        return {**values, "pid": 10 + rank, "attempt": "a", "beats": 50, "longest_s": 1.5, "count": 30}

    def stop_rank(self, rank: int, seconds: float, **changed: Any) -> None:
        """A rank has been silent for `seconds`, the others for 3 seconds less."""
        assert self.run is not None
        for number in range(self.run["world_size"]):
            beat = self.run["heartbeats"][f"rank-{number:05d}.json"]
            beat["time"] = NOW.timestamp() - seconds + (0 if number == rank else 3)
        self.run["heartbeats"][f"rank-{rank:05d}.json"] |= changed
        self.run["metrics"] = [
            json.dumps(json.loads(line) | {"time": json.loads(line)["time"] - seconds}) for line in self.run["metrics"]
        ]

    def failed(self, rank: int, kind: str, message: str, seconds: float = 30, exception: str = "RuntimeError") -> None:
        """A rank has left a failure record."""
        if self.run is None:
            self.training(silent=seconds + 10)
        assert self.run is not None
        time = NOW.timestamp() - seconds
        host = self.name(rank * len(self.pods) // self.run["world_size"])
        self.run["failures"][f"{int(time * 1000)}-rank-{rank:05d}.json"] = {
            "class": kind, "rank": rank, "host": host, "pid": 10 + rank, "step": 100, "message": message,
            "exception": exception, "time": time, "phase": "training", "traceback": "",
        }  # fmt: skip

    def snapshot(self) -> Snapshot:
        """The snapshot that a tool would take."""
        objects = {
            "Pod": self.pods,
            "Node": self.nodes,
            "Event": self.events,
            **self.objects,
        }
        logs = [Log(pod, which, "\n".join(lines) + "\n") for (pod, which), lines in self.logs.items()]
        kept = {kind: items for kind, items in objects.items() if kind not in self.unseen}
        return Snapshot(NOW, NAMESPACE, self.job, kept, self.others, logs, self.run, self.unseen)
