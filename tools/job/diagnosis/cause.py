"""What `why` can find: causes with their evidence, their order, and what to do about each."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from tools.job.snapshot.snapshot import Snapshot

EVER = datetime.max.replace(tzinfo=UTC)
SHOWN = 220  # characters of one line of evidence


class Layer(enum.IntEnum):
    """How far up the chain of consequences a cause stands; the lower one explains the higher ones."""

    JOB = 0  # no pod can come to be
    FAILED = 1  # a process has failed by itself
    BLOCKED = 2  # a pod cannot start, and the others wait for it
    HUNG = 3  # nothing fails and nothing moves
    VICTIM = 4  # a process failed, as it does when another one is gone
    SLOW = 5  # it moves, and less than it could


@dataclass(frozen=True)
class Cause:
    """One cause: a stable kind (`oom-device`, `unschedulable/nvidia.com/gpu`), and what shows it.

    `at` is when it began, where that is known; `rank` and `pod` where it is one's alone.
    """

    kind: str
    layer: Layer
    summary: str
    evidence: list[str] = field(default_factory=list)
    pod: str | None = None
    rank: int | None = None
    at: datetime | None = None
    advice: str | None = None  # instead of the kind's own remedy

    @property
    def remedy(self) -> str:
        """Return what to do about it."""
        return self.advice or REMEDIES[self.kind.partition("/")[0]]

    @property
    def order(self) -> tuple[int, datetime]:
        """Return the place of this cause among others: what explains them comes first."""
        return self.layer, self.at or EVER

    def as_dict(self) -> dict[str, Any]:
        """Return the cause for JSON."""
        return {
            "cause": self.kind,
            "summary": self.summary,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "pod": self.pod,
            "rank": self.rank,
        }


class Rule(Protocol):
    """Looks at a snapshot for causes of one family."""

    def __call__(self, snapshot: Snapshot) -> Iterator[Cause]: ...


def short(text: str) -> str:
    """Return a text in one line of at most SHOWN characters."""
    words = " ".join(str(text).split())
    return words if len(words) <= SHOWN else f"{words[: SHOWN - 1]}…"


REMEDIES = {
    "suspended": "set spec.runPolicy.suspend to false; the run goes on from its newest checkpoint",
    "queue": (
        "wait, or look at the queue: kubectl get workloads,localqueues; a smaller job may be let in first"
    ),
    "quota": "ask for less, end another job of this namespace, or have the quota raised",
    "operator": (
        "bring the training operator back: kubectl get pods -A | grep training-operator; then its log"
    ),
    "webhook": (
        "bring the webhook's service back; until then the API server refuses what it should have judged"
    ),
    "pod-security": "make the pod fit the namespace's level, or use a namespace of the level that it needs",
    "refused": (
        "correct the manifest; yard preflight says beforehand what the API server and operator refuse"
    ),
    "serviceaccount-missing": "apply the whole cell, not the job alone: kubectl apply --server-side -k",
    "unschedulable": "wait until it is free, add nodes, or ask for less",
    "scheduler-absent": "start that scheduler, or take spec.schedulerName out of the pod",
    "claim-missing": "make the claim: base/storage holds one for each kind of volume",
    "claim-pending": (
        "kubectl describe pvc says what the provisioner lacks; base/storage has classes that work"
    ),
    "image-name": "correct the image's name or tag, or push it: the registry has no such image",
    "image-auth": (
        "give the nodes access: imagePullSecrets on the ServiceAccount, or the node role's ECR rights"
    ),
    "image-architecture": "build the image for the nodes' processor, or choose nodes of the image's",
    "image-rate-limit": "pull with credentials, or from a mirror such as an ECR pull-through cache",
    "image-registry": "the node does not reach the registry: its address, route, proxy or certificate",
    "image-absent": "the pod may not pull (imagePullPolicy: Never) and the node has no such image",
    "config-missing": "apply the whole cell, not the job alone: its ConfigMaps carry a hash in their names",
    "secret-missing": "make the secret in this namespace, or mark the reference optional",
    "volume": "kubectl describe pod shows the driver's words; is its plugin on that node?",
    "pod-network": (
        "the node's network plugin gives no address: its pods in kube-system, free IPs of the subnet"
    ),
    "run-as-root": "let the image run as a user of its own, or set runAsUser",
    "command": "the image has no such program: compare the command with what the image holds",
    "node-refused": (
        "the node gave its devices away or its device plugin is gone; delete the pod to try elsewhere"
    ),
    "evicted": "the node was short of it: request what the pod uses, and set sizeLimit on its emptyDirs",
    "preempted": (
        "a pod of higher priority took the place; the job resumes from its checkpoint when it is placed"
    ),
    "drained": "somebody drained the node or deleted the pod; the job resumes from its checkpoint",
    "node-lost": "the node is gone or cut off; delete its pods, and the job resumes elsewhere",
    "node-unhealthy": (
        "cordon the node and have it repaired or replaced; delete its pods, and the job resumes elsewhere"
    ),
    "deadline": "it took longer than activeDeadlineSeconds: raise it, and submit again to resume",
    "backoff": "restarts are used up: find the first failure in the logs, correct it, and submit again",
    "oom-device": (
        "lower parallel.micro_batch_size (the global batch stays), or shard more, or checkpoint activations"
    ),
    "oom-host": "raise the memory request and limit together, or have fewer loader workers",
    "shared-memory": "raise sizeLimit of the emptyDir at /dev/shm, and the memory limit with it",
    "killed": (
        "SIGKILL from outside the container: a failed liveness probe, the kernel or an operator of the node"
    ),
    "memory-fault": (
        "native code crashed: compare the image's driver, CUDA and torch; look at the node's kernel log"
    ),
    "duplicate-device": "each rank takes the card of its LOCAL_RANK (set_device) before the first collective",
    "network-interface": (
        "take NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME out: a pod's one interface is found by itself"
    ),
    "image-accelerator": (
        "the image's CUDA does not fit: build for this card, or use an image of the driver's age on the node"
    ),
    "permission": "write to a volume or /tmp; set fsGroup, or give the volume's directory to the pod's user",
    "config": "correct the key that the line names, and submit again",
    "code": "the program does not start: the image lacks a module or a file, or the code has a fault",
    "data": "correct the data or the path that the line names",
    "hub-auth": (
        "correct the name, or accept the model's terms with your account "
        "and put its token into the secret hf-token"
    ),
    "hub-rate-limit": "every rank asks the hub: fetch data or model once onto the volume, and train offline",
    "object-store": "the bucket, its region, the endpoint, and the rights of the pod's service account",
    "hub-unreachable": "the pod does not reach the hub: prefetch onto the volume, and train offline",
    "storage": "the volume failed: its driver's log, and the file system's own state",
    "storage-full": "make room on the volume, or enlarge it: old runs and their checkpoints are most of it",
    "checkpoint": (
        "the trainer falls back to the newest whole step by itself; where it cannot, resume from an older run"
    ),
    "nan": (
        "lower train.learning_rate or train.gradient_clip, or look at the batch of that step; "
        "resume before it"
    ),
    "device": "an accelerator failed: cordon the node, and have it repaired; the job resumes elsewhere",
    "efa": (
        "EFA did not start: the efa resource, huge pages, memlock on the node, the plugin's release "
        "in the image"
    ),
    "rendezvous-dns": "the name of worker-0 does not resolve: its headless Service, and the cluster's DNS",
    "rendezvous": (
        "worker-0 does not answer on its port: is it running, and does a NetworkPolicy let its peers in?"
    ),
    "network-policy": "let the job's pods reach each other: base/pytorchjob/networkpolicy.yaml does",
    "service-missing": "the operator makes one Service a pod: look at its log, and at the job's events",
    "port-taken": "another process holds the port: no hostNetwork, and one job a pod",
    "collective-timeout": (
        "a rank did not come to the collective: the first one that failed or hung is the cause"
    ),
    "lost-peer": "another rank went away first: its own log says why",
    "communication": "the ranks lost each other: network, NCCL or a node; NCCL_DEBUG=WARN says more",
    "upload": "the bucket, its region and the pod's rights to it; the finished model stays on the volume",
    "crash": "read the last lines of that rank: yard job logs --rank N --previous",
    "hang": (
        "look at that rank's stack (yard job exec, py-spy dump); deleting its pod resumes from the checkpoint"
    ),
    "straggler": (
        "exchange that node: cordon it and delete its pod; the job resumes from its checkpoint elsewhere"
    ),
    "data-wait": (
        "reading is the bottleneck: prepare shards beforehand, faster storage, more loader workers"
    ),
    "slow-network": (
        "NCCL went over TCP: request vpc.amazonaws.com/efa, and set NCCL_NET_PLUGIN=ofi to fail loudly"
    ),
    "slow": ("nothing is broken: a larger micro batch, fewer activations recomputed, compile, packed data"),
    "slowdown": (
        "something changed while it ran: other pods on the nodes, clocks or heat, the storage's load"
    ),
}
