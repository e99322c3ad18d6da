"""A bed to plant a job's situations in: a namespace, the job of one cell, and nodes that kwok keeps alive."""

from __future__ import annotations

import copy
import time
import uuid

from tests.cluster.api import Object
from tests.cluster.kube import Kube, shared_claim
from tests.cluster.machines import fake_node
from tests.job.confusion import said
from tools.facts.instances import instance
from tools.job.diagnosis.explain import Explanation, explain
from tools.job.snapshot.collect import collect
from tools.job.snapshot.live_job import LiveJob
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, name_of
from tools.workload import kinds

CPU, G5, TRN1 = "overlays/cpu/llama-tiny", "overlays/g5/llama-2-7b", "overlays/trn1/bert-large"
P4D, P5 = "overlays/p4d/llama-3-1-8b", "overlays/p5/llama-3-1-8b"
KINDS = {
    CPU: "m5.xlarge",
    G5: "g5.48xlarge",
    P4D: "p4d.24xlarge",
    P5: "p5en.48xlarge",
    TRN1: "trn1.32xlarge",
}
SECONDS = 60.0  # until controllers, scheduler and operator have written their conditions and events


class Bed:
    """One namespace with one job and its own nodes, which end with it."""

    def __init__(self, kube: Kube, namespace: str, cells: list[Manifests], cell: str) -> None:
        self.kube, self.namespace = kube, namespace
        self.objects = copy.deepcopy(next(one for one in cells if one.source == cell).objects)
        self.job = next(one for one in self.objects if one["kind"] == "PyTorchJob")
        self.kind = KINDS[cell]
        self.claim = shared_claim(namespace)
        self._nodes: list[str] = []
        self._everywhere: list[Object] = []  # what is in no namespace, and goes with the bed

    @property
    def spec(self) -> Object:
        found: Object = self.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        return found

    @property
    def replicas(self) -> int:
        return int(self.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"])

    def nodes(
        self, count: int | None = None, kind: str | None = None, room: dict[str, str] | None = None
    ) -> list[Object]:
        """Return enough nodes of the cell's kind. `room` changes their capacity."""
        made = []
        for _ in range(self.replicas if count is None else count):
            node = fake_node(instance(kind or self.kind), f"why-{uuid.uuid4().hex[:8]}")
            node["status"]["allocatable"] = node["status"]["allocatable"] | (room or {})
            made.append(node)
        return made

    def start(self, nodes: list[Object]) -> None:
        """Start the nodes, then the job."""
        if nodes:
            self.kube.put(nodes)
        self._nodes += [name_of(node) for node in nodes]
        if self.claim:
            self.kube.put(self.claim, self.namespace)
        self.kube.put(self.objects, self.namespace)

    def hold(self, node: Object, **amounts: str) -> None:
        """Place another pod of the team on the node, requesting `amounts` (`gpu` is NVIDIA's)."""
        asked = {"nvidia.com/gpu" if name == "gpu" else name: amount for name, amount in amounts.items()}
        limits = {name: amount for name, amount in asked.items() if "/" in name}
        container = {
            "name": "other",
            "image": "localhost/other:1",
            "resources": {"requests": asked, "limits": limits},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"nodeName": name_of(node), "containers": [container], "securityContext": security}
        spec |= {"tolerations": [{"operator": "Exists"}]}
        metadata = {"name": f"other-{uuid.uuid4().hex[:8]}"}
        self.kube.put([node])
        self._nodes.append(name_of(node))
        self.kube.put([{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}], self.namespace)

    def everywhere(self, item: Object) -> None:
        """Create a cluster-scoped object."""
        self.kube.put([item])
        self._everywhere.append(item)

    def answer(self, wanted: str) -> Explanation:
        """Return what `why` says once it says `wanted` twice in a row, or its last answer."""
        kubectl = Kubectl(None, self.namespace)
        job = kinds.of(self.job)
        assert job is not None
        live = LiveJob(job)
        began, last, found = time.monotonic(), "", None
        while found is None or time.monotonic() - began < SECONDS:
            found = explain(collect(kubectl, live, logs=False, run=False, around=True))
            kind = said(found)
            if kind == last == wanted:
                return found
            last = kind
            time.sleep(0.5)
        return found

    def end(self) -> None:
        """Delete everything and wait until the pods are gone: they hold what the next test needs."""
        for item in self._everywhere:
            self.kube.call("delete", item["kind"], name_of(item), "--ignore-not-found")
        for kind in ("pytorchjobs", "pods"):
            self.kube.call("delete", kind, "--all", f"--namespace={self.namespace}", "--wait=false")
        self.kube.wait("pods to go", lambda: not self.kube.list("pods", self.namespace), 90)
        if self._nodes:
            self.kube.call("delete", "nodes", *self._nodes, "--wait=false")
        self.kube.call("delete", "pv", f"{self.namespace}-trainyard", "--wait=false", "--ignore-not-found")
