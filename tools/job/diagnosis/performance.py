"""Causes of a job that gets on less fast than it could, or to no good end."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator

from tools.facts.instances import EFA
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.resources import accelerators
from tools.job.metrics import progress
from tools.job.metrics.series import Record
from tools.job.snapshot import log_lines
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.quantity import amount, pod_requests

RECENT = 20  # steps that say how it goes now
STRAGGLES = 1.25  # times the others' median before the exchange
SHARE = 0.1  # of a step's time: less than that is not worth a word
LOST = 3  # steps in a row without a finite loss
NO_GRADIENT = 10  # steps in a row without a gradient: a loss scale that is being found takes fewer
# Of the accelerators' peak. torchtitan's own page has 40 % for 8B on H100s, the FSDP example of
# awsome-distributed-ai comes to 5 % on the same machines with nothing broken.
LOW_USE = 0.1
WAITS_FOR_DATA = 0.3  # of a step's time
SLOWED = 0.7  # of the speed that the same run has had
SOCKET = re.compile(r"NCCL INFO (?:.*\b)?(?:NET/Socket|Using network Socket)", re.IGNORECASE)
OFI = re.compile(r"NET/OFI.*Selected [Pp]rovider is efa|Using network (?:AWS Libfabric|OFI|Libfabric)")


def straggler(snapshot: Snapshot) -> Iterator[Cause]:
    """One rank takes longer than the others before they exchange gradients."""
    records = _recent(snapshot)
    rows = [record.rank_step_s for record in records if len(record.rank_step_s) > 1]
    steps = [record.step_s for record in records if record.step_s]
    if len(rows) < 5 or len({len(row) for row in rows}) != 1 or not steps:
        return
    medians = [statistics.median(row[rank] for row in rows) for rank in range(len(rows[0]))]
    worst = max(range(len(medians)), key=medians.__getitem__)
    others = statistics.median(value for rank, value in enumerate(medians) if rank != worst)
    more = medians[worst] - others
    if medians[worst] < STRAGGLES * others or more < SHARE * statistics.median(steps):
        return
    host = next((beat.host for beat in progress.of(snapshot).beats if beat.rank == worst), None)
    evidence = [
        f"rank {worst}{f' on {host}' if host else ''}: {medians[worst]:.3f} s before the exchange,"
        f" the others' median is {others:.3f} s, over {len(rows)} steps",
        f"a step takes {statistics.median(steps):.3f} s",
    ]
    summary = f"rank {worst} holds the others up by {more / statistics.median(steps):.0%} of a step"
    yield Cause("straggler", Layer.SLOW, summary, evidence, host, worst)


def data_wait(snapshot: Snapshot) -> Iterator[Cause]:
    """The steps wait for data."""
    records = [record for record in _recent(snapshot) if record.step_s and record.data_wait_s is not None]
    if len(records) < 5:
        return
    share = statistics.median((record.data_wait_s or 0) / (record.step_s or 1) for record in records)
    if share > WAITS_FOR_DATA:
        evidence = [f"{share:.0%} of a step is waiting for data, the median of {len(records)} steps"]
        yield Cause("data-wait", Layer.SLOW, "the steps wait for data", evidence)


def not_finite(snapshot: Snapshot) -> Iterator[Cause]:
    """The loss is no number any more, and the trainer goes on."""
    losses = [record for record in _recent(snapshot) if record.loss is not None]
    if len(losses) >= LOST and not any(math.isfinite(record.loss or 0.0) for record in losses[-LOST:]):
        evidence = [f"step {record.step}: loss {record.loss}" for record in losses[-LOST:]]
        summary = "the loss is not finite any more, and the run goes on"
        yield Cause("nan", Layer.FAILED, summary, evidence)
        return
    last = losses[-NO_GRADIENT:]
    if len(last) == NO_GRADIENT and all(math.isnan(record.grad_norm or 0.0) for record in last):
        evidence = [
            f"step {one.step}: loss {one.loss}, gradient norm {one.grad_norm}" for one in last[-LOST:]
        ]
        summary = "the gradients are not numbers any more, and the run goes on"
        yield Cause("nan", Layer.FAILED, summary, evidence)


def low_use(snapshot: Snapshot) -> Iterator[Cause]:
    """Nothing is wrong and the accelerators are little used: progress is normal, but slow."""
    records = [record for record in _recent(snapshot) if record.mfu is not None]
    if len(records) < 5 or not any(accelerators(pod.spec) for pod in snapshot.pods):
        return
    use = statistics.median(record.mfu or 0.0 for record in records)
    if use < LOW_USE:
        evidence = [
            f"MFU {use:.1%}, the median of {len(records)} steps, where 30 to 50 % can be had",
            "no rank is behind, the steps do not wait for data, and the speed is what it was",
        ]
        yield Cause("slow", Layer.SLOW, "progress is normal, but slow", evidence)


def slow_network(snapshot: Snapshot) -> Iterator[Cause]:
    """NCCL talks TCP between nodes that have EFA."""
    if is_over(snapshot) or snapshot.replicas < 2:
        return
    for pod in snapshot.pods:
        asks = pod_requests(pod.spec)
        has = snapshot.find("Node", pod.node or "") or {}
        given = amount(((has.get("status") or {}).get("allocatable") or {}).get(EFA, 0)) or 0
        if not (asks.get(EFA) or given > 0):
            continue
        lines = log_lines.read(snapshot.log(pod.name), pod.name)
        tcp = next((line for line in lines if SOCKET.search(line.text)), None)
        if tcp and not any(OFI.search(line.text) for line in lines):
            asked = "requests EFA" if asks.get(EFA) else "requests no EFA, and its node has it"
            evidence = [short(f"{pod.short}: {tcp.text.strip()}"), f"the pod {asked}"]
            summary = "NCCL goes over TCP and not over EFA"
            yield Cause("slow-network", Layer.SLOW, summary, evidence, pod.name, at=tcp.time)
            return


def slowdown(snapshot: Snapshot) -> Iterator[Cause]:
    """The run is slower than it was."""
    records = [record for record in progress.of(snapshot).records if _speed(record)]
    of_now = [record for record in _recent(snapshot) if _speed(record)]
    if len(records) < 4 * RECENT or len(of_now) < RECENT:
        return
    now = statistics.median(map(_speed, of_now))
    before = [
        statistics.median(_speed(record) for record in records[start : start + RECENT])
        for start in range(RECENT, len(records) - 2 * RECENT + 1, RECENT)
    ]
    best = statistics.median(before)
    if now < SLOWED * best:
        evidence = [f"{now:,.0f} tokens/s in the last {RECENT} steps, {best:,.0f} before"]
        yield Cause("slowdown", Layer.SLOW, f"the run has slowed to {now / best:.0%} of its speed", evidence)


def _speed(record: Record) -> float:
    return record.tokens_per_s or record.samples_per_s or 0.0


def _recent(snapshot: Snapshot) -> list[Record]:
    """Return the newest records of the containers that run now.

    A step needs every rank, so what was recorded before the newest container started is of a run before it:
    it says nothing of how this one goes.
    """
    started = [pod.started.timestamp() for pod in snapshot.pods if pod.started]
    if is_over(snapshot) or not started:
        return []
    newest = progress.of(snapshot).records[-RECENT:]
    return [record for record in newest if record.time is None or record.time >= max(started)]
