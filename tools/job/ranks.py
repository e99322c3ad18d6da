"""The ranks of a job's pods, and the evidence for them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tools.core import UserError
from tools.job.metrics import progress
from tools.job.metrics.series import from_log
from tools.job.snapshot import JobPod, Snapshot, log_lines
from tools.job.snapshot.snapshot import Log


@dataclass(frozen=True)
class RankZero:
    """The pod of rank 0, the evidence, and whether that is `certain`."""

    pod: JobPod
    how: str
    certain: bool


def ranks(snapshot: Snapshot) -> dict[int, str]:
    """Return the pod's name of each rank with a heartbeat: a rank's host is its pod."""
    names = {pod.name for pod in snapshot.pods}
    return {beat.rank: beat.host for beat in progress.of(snapshot).beats if beat.host in names}


def by_pod(snapshot: Snapshot) -> dict[str, list[int]]:
    """Return the ranks of each pod by its name."""
    found: dict[str, list[int]] = {pod.name: [] for pod in snapshot.pods}
    for rank, pod in sorted(ranks(snapshot).items()):
        found[pod].append(rank)
    return found


def spans(numbers: Iterable[int]) -> str:
    """Return `0-7` for eight consecutive ranks, `-` for none."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in found) or "-"


def rank_zero(snapshot: Snapshot) -> RankZero | None:
    """Return the pod of rank 0, None for a job without pods.

    In this order: the heartbeat of rank 0; the only log that has lines of rank 0; a pod to which the job's
    controller assigns rank 0. Where the rendezvous or the command assigns them, the first pod is a guess.
    """
    pods = snapshot.pods
    host = ranks(snapshot).get(0)
    for pod in pods:
        if pod.name == host:
            return RankZero(pod, f"rank 0's heartbeat is from {host}", True)
    logged = {log.pod for log in snapshot.logs if _is_of_rank_zero(log)}
    for pod in pods:
        if logged == {pod.name}:
            return RankZero(pod, f"of {len(snapshot.logs)} logs only {pod.name}'s has rank 0's lines", True)
    for pod in pods:
        if snapshot.workload.is_rank_zero(pod.item):
            return RankZero(pod, f"{snapshot.workload.maker} assigns rank 0 to it", True)
    first = next((pod for pod in pods if snapshot.workload.is_rank_zero(pod.item) is None), None)
    if first is None:
        return None
    if len(pods) == snapshot.replicas == 1:
        return RankZero(first, "it is the only pod", True)
    return RankZero(first, "only by its number; the rendezvous or the command assigns the ranks", False)


def pod_of(seen: Snapshot, rank: int) -> JobPod:
    """Return the pod of a rank; UserError if it is unknown."""
    names = ranks(seen)
    if rank in names:
        return next(pod for pod in seen.pods if pod.name == names[rank])
    first = rank_zero(seen)
    if rank == 0 and first is not None and first.certain:
        return first.pod
    known = f"ranks with a heartbeat: {spans(sorted(names))}" if names else "no rank has a heartbeat"
    raise UserError(f"the pod of rank {rank} is unknown: {known}", code=3)


def _is_of_rank_zero(log: Log) -> bool:
    """Return whether a log has lines of rank 0: lines that name it, or metrics, which only rank 0 prints."""
    lines = log_lines.read(log.text)
    named = {line.rank for line in lines if line.rank is not None}
    return 0 in named or (not named and bool(from_log(lines)))
