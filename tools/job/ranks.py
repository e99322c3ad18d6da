"""Which ranks a job's pods hold, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass

from tools.core.errors import UserError
from tools.job.metrics import progress
from tools.job.metrics.series import from_log
from tools.job.snapshot import log_lines
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Log, Snapshot
from tools.simulator.operator_pods import LABEL


@dataclass(frozen=True)
class RankZero:
    """The pod of rank 0, `how` it was decided, and whether that is `certain`."""

    pod: JobPod
    how: str
    certain: bool


def ranks(snapshot: Snapshot) -> dict[int, str]:
    """Return the pod of each rank that has said where it is, by its heartbeat: a rank's host is its pod."""
    names = {pod.name for pod in snapshot.pods}
    return {beat.rank: beat.host for beat in progress.of(snapshot).beats if beat.host in names}


def rank_zero(snapshot: Snapshot) -> RankZero | None:
    """Return the pod of rank 0, None for a job without pods.

    In this order: rank 0's heartbeat; the one log that has lines which only rank 0 writes, or that name it; a
    Master, whose rank the operator sets. With elastic workers the rendezvous gives out the ranks: worker-0's
    label and number are a guess and not certain.
    """
    pods = snapshot.pods
    host = ranks(snapshot).get(0)
    for pod in pods:
        if pod.name == host:
            return RankZero(pod, f"rank 0's heartbeat is from {host}", True)
    told = [log.pod for log in snapshot.logs if _is_of_rank_zero(log)]
    for pod in pods:
        if set(told) == {pod.name}:
            return RankZero(pod, f"of {len(snapshot.logs)} logs only {pod.name}'s has rank 0's lines", True)
    elastic = bool(snapshot.job["spec"].get("elasticPolicy"))
    labelled = [pod for pod in pods if pod.labels.get(f"{LABEL}job-role") == "master"]
    if labelled:
        pod = labelled[0]
        if pod.role == "master":
            return RankZero(pod, "the operator gives the Master rank 0", True)
        if len(pods) == snapshot.replicas == 1:
            return RankZero(pod, "it is the only pod", True)
        why = "the rendezvous gives out ranks" if elastic else "the command gives out ranks"
        return RankZero(pod, f"by the operator's label job-role=master alone; {why}", False)
    first = next((pod for pod in pods if pod.index == 0), None)
    return RankZero(first, "by its number alone", False) if first else None


def pod_of(seen: Snapshot, rank: int) -> JobPod:
    """Return the pod of a rank; UserError where nothing says which it is."""
    names = ranks(seen)
    if rank in names:
        return next(pod for pod in seen.pods if pod.name == names[rank])
    first = rank_zero(seen)
    if rank == 0 and first is not None and first.certain:
        return first.pod
    world = (
        f"ranks with a heartbeat: {', '.join(map(str, sorted(names)))}"
        if names
        else "no rank has a heartbeat"
    )
    raise UserError(f"which pod holds rank {rank} cannot be told: {world}", code=3)


def _is_of_rank_zero(log: Log) -> bool:
    """Say whether a log has what only rank 0 writes: lines of metrics, or lines that name rank 0."""
    lines = log_lines.read(log.text)
    named = {line.rank for line in lines if line.rank is not None}
    if 0 in named:
        return True
    return not named and bool(from_log(lines))
