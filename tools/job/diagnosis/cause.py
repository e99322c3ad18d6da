"""Causes with their evidence, their order and their remedies."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tools.core import output
from tools.job.snapshot.snapshot import Snapshot

UNKNOWN_TIME = datetime.max.replace(tzinfo=UTC)  # sorts behind every known time
LONGEST = 220  # characters of one line of evidence


class Layer(enum.IntEnum):
    """The position of a cause in the chain of consequences. The lowest layer explains the others.

    Without pods nothing runs. A process that fails on its own is replaced by a pod, which may be blocked. The
    other ranks wait for a blocked pod and look hung. Ranks whose peer failed or hangs fail as its victims.
    Slowness matters only if nothing is broken.
    """

    JOB = 0  # no pod can be created
    FAILED = 1  # a process failed on its own
    BLOCKED = 2  # a pod cannot start, and the others wait for it
    HUNG = 3  # no process failed, and none makes progress
    VICTIM = 4  # a process failed in the way it does when another one is gone
    SLOW = 5  # the job makes progress, but less than it could


@dataclass(frozen=True)
class Cause:
    """One cause: a stable kind (`oom-device`, `unschedulable/nvidia.com/gpu`) and its evidence.

    `at` is when it began, if known. `rank` and `pod` are set if it concerns only one. `advice` replaces the
    remedy of the kind. `confidence` (high, medium or low, and why) is that of a cause read from a log.
    """

    kind: str
    layer: Layer
    summary: str
    evidence: list[str] = field(default_factory=list)
    pod: str | None = None
    rank: int | None = None
    at: datetime | None = None
    advice: str | None = None
    confidence: str | None = None

    @property
    def remedy(self) -> str:
        return self.advice or REMEDIES[self.kind.partition("/")[0]]

    @property
    def order(self) -> tuple[int, datetime]:
        """The sort key: a cause comes before those that it explains."""
        return self.layer, self.at or UNKNOWN_TIME

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.kind,
            "summary": self.summary,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "pod": self.pod,
            "rank": self.rank,
        } | ({"confidence": self.confidence} if self.confidence else {})


Rule = Callable[[Snapshot], Iterator[Cause]]  # finds causes of one family


def short(text: str) -> str:
    """Return a text as one line of evidence."""
    return output.short(text, LONGEST)


REMEDIES = {
    "suspended": "set spec.runPolicy.suspend to false; the job continues from its newest checkpoint",
    "queue": "wait, or check the queue (kubectl get workloads,localqueues); a smaller job may start sooner",
    "sidecar": "make it an init container with restartPolicy Always: that ends with the training",
    "quota": "request less, stop another job in this namespace, or have the quota raised",
    "operator": "restore the training operator: kubectl get pods -A | grep training-operator, and its log",
    "webhook": "restart the webhook's service; until then the API server refuses the pods",
    "pod-security": "adapt the pod to the namespace's level, or use a namespace with the level that it needs",
    "refused": "correct the manifest; yard preflight reports what the API server and operator refuse",
    "serviceaccount-missing": "apply the whole cell, not only the job: kubectl apply --server-side -k",
    "unschedulable": "wait until resources are free, add nodes, or request less",
    "scheduler-absent": "start that scheduler, or remove spec.schedulerName from the pod",
    "claim-missing": "create the claim: base/storage has one for each kind of volume",
    "claim-pending": "kubectl describe pvc shows what the provisioner lacks; or use a class of base/storage",
    "image-name": "correct the image's name or tag, or push the image: the registry does not have it",
    "image-auth": "grant access: imagePullSecrets on the ServiceAccount, or ECR rights for the node role",
    "image-architecture": "build the image for the nodes' architecture, or choose nodes of the image's",
    "image-rate-limit": "pull with credentials, or from a mirror such as an ECR pull-through cache",
    "image-registry": "check the registry's address, route, proxy and certificate from the node",
    "image-absent": "set imagePullPolicy to IfNotPresent, or load the image on the node",
    "config-missing": "apply the whole cell, not only the job: names of its ConfigMaps contain a hash",
    "secret-missing": "create the secret in this namespace, or mark the reference as optional",
    "volume": "kubectl describe pod shows the driver's message; check that its plugin runs on that node",
    "pod-network": "check the network plugin's pods in kube-system and the free addresses of the subnet",
    "run-as-root": "set a non-root USER in the image, or runAsUser in the pod",
    "command": "compare the command with the programs in the image: it does not have this one",
    "node-refused": "delete the pod to try another node; if it happens again, check the node's device plugin",
    "evicted": "request what the pod uses, and set sizeLimit on its emptyDirs: the node ran short of it",
    "preempted": "wait, or raise the priority; the job resumes from its checkpoint when it is placed again",
    "drained": "nothing, if the drain was intended; the job resumes from its checkpoint",
    "node-lost": "delete the pods of the lost node; the job resumes on another node",
    "node-unhealthy": "cordon the node, have it repaired, and delete its pods; the job resumes elsewhere",
    "deadline": "raise activeDeadlineSeconds, and submit again to resume",
    "backoff": "find the first failure in the logs, correct it, and submit again: all restarts are used",
    "oom-device": "lower parallel.micro_batch_size (the global batch stays), shard, or recompute activations",
    "oom-host": "raise memory request and limit together, or use fewer loader workers",
    "shared-memory": "raise sizeLimit of the emptyDir at /dev/shm, and the memory limit with it",
    "killed": "look for a failed liveness probe, or for the kernel's or an operator's SIGKILL on the node",
    "memory-fault": "compare driver, CUDA and torch of the image; read the node's kernel log",
    "duplicate-device": "call set_device(LOCAL_RANK) in each rank before the first collective",
    "network-interface": "remove NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: a pod has only one interface",
    "image-accelerator": "build the image for this GPU, or use one whose CUDA fits the node's driver",
    "permission": "write to a volume or /tmp; set fsGroup, or let the pod's user own the directory",
    "config": "correct the key that the line names, and submit again",
    "code": "add the missing module or file to the image, or correct the code: the program does not start",
    "library-version": "install releases that fit each other: pin the package that the line names",
    "tokenizer": "use the model's own tokenizer, or resize the embedding; check the longest sequence too",
    "limits": "raise ulimit -n or the pod's limit of processes, or use fewer loader workers and threads",
    "compiler": "read the compiler's first error above; until it is fixed, train without compilation",
    "unreachable": "check route, proxy and DNS of the pod; or put what it downloads into the image",
    "no-steps": "read the log's last lines: they say why the program did not train; no checkpoint is new",
    "data": "correct the data or the path that the line names",
    "hub-auth": (
        "correct the name, or accept the model's licence with your account and put its token into the secret "
        "hf-token"
    ),
    "hub-rate-limit": "download once onto the volume, and train offline: every rank asks the hub",
    "hub-unreachable": "check the pod's network, or download onto the volume beforehand and train offline",
    "object-store": "check the bucket, its region, the endpoint, and the rights of the pod's ServiceAccount",
    "storage": "read the log of the volume's driver, and check the file system",
    "storage-full": "free space on the volume, or enlarge it; old runs and their checkpoints take most",
    "checkpoint": "resume from an older run, if the trainer finds no complete step of this one",
    "nan": (
        "lower train.learning_rate or train.gradient_clip, or check the batch of that step; resume from a "
        "checkpoint before it"
    ),
    "device": (
        "cordon the node if its kernel log has Xid, ECC or Neuron errors, and have it repaired; the "
        "job resumes elsewhere"
    ),
    "efa": "check the efa resource, huge pages, memlock on the node, and the plugin's release in the image",
    "rendezvous-dns": "check the headless Service of worker-0, and the cluster's DNS",
    "rendezvous": "check that worker-0 runs, and that no NetworkPolicy blocks its port",
    "network-policy": "allow traffic between the job's pods, as base/pytorchjob/networkpolicy.yaml does",
    "service-missing": "read the operator's log and the job's events: it creates one Service for each pod",
    "port-taken": "remove hostNetwork, and run one job in each pod: another process uses the port",
    "collective-timeout": "find the first rank that failed or hung: it did not join the collective",
    "lost-peer": "read the log of the rank that went away first",
    "communication": "set NCCL_DEBUG=WARN for details: network, NCCL or a node failed",
    "upload": "check the bucket, its region and the pod's rights; the finished model stays on the volume",
    "crash": "read the last lines of that rank: yard job logs --rank N --previous",
    "hang": (
        "read that rank's stack (yard job exec, py-spy dump), or delete its pod; the job resumes from its "
        "checkpoint"
    ),
    "straggler": "replace that node: cordon it and delete its pod; the job resumes elsewhere",
    "data-wait": "prepare shards beforehand, use faster storage, or more loader workers",
    "slow-network": "request vpc.amazonaws.com/efa, and set NCCL_NET_PLUGIN=ofi: NCCL then fails without EFA",
    "slow": "use a larger micro batch, recompute fewer activations, compile, or pack the data",
    "slowdown": "check for other pods on the nodes, clocks and temperatures, and load on the storage",
}
