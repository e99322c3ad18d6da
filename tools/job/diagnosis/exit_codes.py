"""Kinds of causes and their summaries for what ended a process: exit codes and the trainer's classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tools.job.diagnosis.cause import Cause, Layer
from training.run.failure import CODES

# Exit codes by which shells and kernels report a signal: 128 + its number.
SIGNALS = {**dict.fromkeys((132, 134, 135, 136, 139), "memory-fault"), 137: "killed"}
CLASSES = {code: kind for kind, code in CODES.items() if kind not in ("done", "error")}
# Kinds of causes for those of the trainer's classes that have another name here.
KINDS = {"out of memory": "oom-device", "lost peer": "lost-peer", "error": "crash"}
# The kinds by which a rank fails when another one has failed.
VICTIMS = frozenset({"lost-peer", "collective-timeout", "rendezvous", "communication", "drained"})
SUMMARIES = {
    "config": "the configuration is wrong",
    "duplicate-device": "two ranks are on one card",
    "network-interface": "there is no interface of the name that is set",
    "image-accelerator": "the image's CUDA does not fit the card or its driver",
    "permission": "the container may not write there",
    "hub-rate-limit": "the model hub refuses so many requests",
    "object-store": "the object store cannot be used",
    "data": "the training data cannot be used",
    "nan": "the loss or a gradient is not finite",
    "oom-device": "an accelerator's memory is used up",
    "oom-host": "the container's memory is used up",
    "shared-memory": "/dev/shm is used up",
    "storage": "the volume fails",
    "storage-full": "the volume is full",
    "checkpoint": "a checkpoint cannot be read",
    "device": "an accelerator fails",
    "efa": "EFA does not start",
    "hub-auth": "the model hub refuses access, or has nothing of that name",
    "hub-unreachable": "the model hub is not reached",
    "rendezvous-dns": "the name of the rendezvous host does not resolve",
    "rendezvous": "the rendezvous host does not answer",
    "port-taken": "the rendezvous port is taken",
    "collective-timeout": "a rank did not come to a collective",
    "lost-peer": "another rank went away",
    "communication": "the ranks' communication failed",
    "hang": "a rank hangs",
    "killed": "the process was killed from outside",
    "memory-fault": "native code crashed",
    "code": "the program does not start",
    "drained": "the pod was asked to stop",
    "upload": "the finished model could not be uploaded",
    "image-architecture": "the image is not built for the node's processor",
    "command": "the image has no such program",
}


def kind_of(code: int, accelerated: bool) -> str | None:
    """Return the cause that an exit code stands for, None for one that is anything's.

    `accelerated` says that the pod has accelerators, whose memory it may then be that is used up.
    """
    kind = CLASSES.get(code, "")
    if kind == "out of memory" and not accelerated:
        return "oom-host"
    return KINDS.get(kind, kind) or SIGNALS.get(code) or ("drained" if code == 143 else None)


def layer_of(kind: str) -> Layer:
    """Return how far up the chain of consequences a kind of failure stands."""
    # The name of a pod that does not run does not resolve: what keeps it from running is the cause.
    victim = kind == "rendezvous-dns" or (kind in VICTIMS and kind != "drained")
    return Layer.VICTIM if victim else Layer.FAILED


def what(kind: str, who: str) -> str:
    """Return a failure in words; `who` is a rank or a pod."""
    return f"{who}: {SUMMARIES.get(kind, 'an error that is no known class')}"


def first_of_each(causes: Iterable[Cause]) -> Iterator[Cause]:
    """Yield each kind once, the earliest of it; what a drain ends is no failure when another cause stands."""
    found = list(causes)
    seen = set()
    own = [one for one in found if one.kind != "drained" and one.layer is Layer.FAILED]
    for one in sorted(found, key=lambda one: one.order):
        if one.kind == "drained" and own:
            continue
        if one.kind not in seen:
            seen.add(one.kind)
            yield one
