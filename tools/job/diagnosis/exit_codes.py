"""Kinds of causes for what ended a process: exit codes and the trainer's classes."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from tools.job.diagnosis.cause import CAUSES, Cause, Layer
from training.run.failure import CODES

# Exit codes by which shells and kernels report a signal: 128 + its number.
SIGNALS = {**dict.fromkeys((132, 134, 135, 136, 139), "memory-fault"), 137: "killed"}
INTERRUPTED = 130  # SIGINT
CLASSES = {code: kind for kind, code in CODES.items() if kind not in ("done", "error")}
# Kinds of causes for those of the trainer's classes that have another name here.
KINDS = {"out of memory": "oom-device", "lost peer": "lost-peer", "error": "crash"}
# The kinds that name no cause: the log shows what failed, and no class covers it.
UNKNOWN = frozenset({"crash", "script"})
# The kinds by which a rank fails when another one has failed.
VICTIMS = frozenset({"lost-peer", "collective-timeout", "rendezvous", "communication", "drained"})


def kind_of(code: int, accelerated: bool) -> str | None:
    """Return the cause that an exit code stands for, None if it may be any.

    `accelerated`: the pod has accelerators, so `out of memory` means theirs.
    """
    kind = CLASSES.get(code, "")
    if kind == "out of memory" and not accelerated:
        return "oom-host"
    return KINDS.get(kind, kind) or SIGNALS.get(code) or ("drained" if code in (INTERRUPTED, 143) else None)


def kinds(kind: str) -> set[str]:
    """Return the causes that a class of the trainer stands for."""
    return {"oom-device", "oom-host"} if kind == "out of memory" else {KINDS.get(kind, kind)}


def with_signal(kind: str, exception: bool, code: int | None) -> str:
    """Return the kind of a log's failure, or that of the signal that ended the process.

    An `exception` in the log explains an abort that follows it, but not a SIGKILL: it may have been caught.
    """
    ended = SIGNALS.get(code or 0, kind) if kind in UNKNOWN else kind
    return kind if exception and ended != "killed" else ended


def layer_of(kind: str) -> Layer:
    """Return the layer of a kind of failure.

    A name that does not resolve is a consequence: the name of a pod that does not run does not resolve.
    """
    victim = kind == "rendezvous-dns" or (kind in VICTIMS and kind != "drained")
    return Layer.VICTIM if victim else Layer.FAILED


def summary_of(kind: str, who: str) -> str:
    """Return a failure in words. `who` is a rank or a pod."""
    row = CAUSES.get(kind) or CAUSES.get(kind.partition("/")[0], {})
    return f"{who}: {row.get('says', 'an error of an unknown class')}"


def failure(
    kind: str, who: str, evidence: list[str], pod: str, rank: int | None = None, at: datetime | None = None
) -> Cause:
    """Return the cause of a failed process. `who` is the rank or pod of the summary."""
    return Cause(kind, layer_of(kind), summary_of(kind, who), evidence, pod, rank, at)


def first_of_each(causes: Iterable[Cause]) -> Iterator[Cause]:
    """Yield the earliest cause of each kind. A drain is left out if a process also failed on its own."""
    found = sorted(causes, key=lambda cause: cause.order)
    failed = any(cause.kind != "drained" and cause.layer is Layer.FAILED for cause in found)
    seen = {"drained"} if failed else set()
    for cause in found:
        if cause.kind not in seen:
            seen.add(cause.kind)
            yield cause
