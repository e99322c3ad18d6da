"""Causes of slow or diverging training."""

import math
import statistics
from collections.abc import Iterable, Iterator

from tools.core import output
from tools.facts.instances import EFA
from tools.job import planned
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.cause import Cause, Layer, short
from tools.job.diagnosis.log_patterns import form
from tools.job.diagnosis.resources import accelerators
from tools.job.metrics import progress
from tools.job.metrics.series import Record
from tools.job.snapshot import log_lines
from tools.job.snapshot.log_lines import Line
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.quantity import amount, pod_requests
from training.run.trainer_logs import NOT_FINITE

RECENT = 20  # steps that count as the present, or all of the last PRESENT seconds if these are more
PRESENT = 30.0  # other load on a node can be over sooner
STRAGGLES = 1.25  # times the others' median before gradients are exchanged
SHARE = 0.1  # of a step's time: less is not reported
MOSTLY = 0.8  # of these steps, at least, a straggler is slower
LOST = 3  # steps in a row without a finite loss
NO_GRADIENT = 10  # steps in a row without a gradient: finding a loss scale takes fewer
# Of the accelerators' peak. torchtitan reports 40 % for 8B on H100s. On the same machines the FSDP example of
# awsome-distributed-ai reaches 5 % with nothing broken.
LOW_USE = 0.1
WAITS_FOR_DATA = 0.3  # of a step's time
SLOWED = 0.7  # of the run's earlier speed
MOST_NAMED = 4  # stragglers


def straggler(snapshot: Snapshot) -> Iterator[Cause]:
    """One rank takes longer than the others before gradients are exchanged, for at least PRESENT seconds."""
    records = [record for record in _recent(snapshot) if len(record.rank_step_s) > 1 and record.step_s]
    rows = [record.rank_step_s for record in records]
    steps = [record.step_s or 0.0 for record in records]
    if len(rows) < 5 or len({len(row) for row in rows}) != 1 or _lasts(records) < PRESENT:
        return
    medians = [statistics.median(row[rank] for row in rows) for rank in range(len(rows[0]))]
    worst = max(range(len(medians)), key=medians.__getitem__)
    others = statistics.median(value for rank, value in enumerate(medians) if rank != worst)
    more = medians[worst] - others
    slower = sum(row[worst] >= STRAGGLES * statistics.median(row[:worst] + row[worst + 1 :]) for row in rows)
    if slower < MOSTLY * len(rows) or more < SHARE * statistics.median(steps):
        return
    host = next((beat.host for beat in progress.of(snapshot).beats if beat.rank == worst), None)
    evidence = [
        f"rank {worst}{f' on {host}' if host else ''}: {medians[worst]:.3f} s before gradients are exchanged,"
        f" the others' median is {others:.3f} s, over {len(rows)} steps and {_lasts(records):.0f} s",
        f"a step takes {statistics.median(steps):.3f} s",
    ]
    summary = f"rank {worst} delays the others by {more / statistics.median(steps):.0%} of a step"
    yield Cause("straggler", Layer.SLOW, summary, evidence, host, worst)


def named_straggler(snapshot: Snapshot) -> Iterator[Cause]:
    """The trainer names ranks whose own work takes longer than that of the others, in its newest step."""
    found = next((record.stragglers for record in _recent(snapshot)[-1:]), None)
    if found is None:
        return
    hosts = {beat.rank: beat.host for beat in progress.of(snapshot).beats}
    places = {pod.name: f"pod {pod.name} on node {pod.node}" for pod in snapshot.pods}
    named = ((rank, places.get(hosts.get(rank, ""))) for rank in found.ranks[:MOST_NAMED])
    evidence = [f"rank {rank}: {place or 'its pod is unknown'}" for rank, place in named]
    who = output.count(len(found.ranks), "rank") if len(found.ranks) > 1 else f"rank {found.ranks[0]}"
    summary = f"{who} takes {found.factor:.1f} times as long as the others"
    evidence.append(str(found))
    yield Cause("straggler", Layer.SLOW, summary, evidence, hosts.get(found.ranks[0]), found.ranks[0])


def data_wait(snapshot: Snapshot) -> Iterator[Cause]:
    """The steps wait for data."""
    records = [record for record in _recent(snapshot) if record.step_s and record.data_wait_s is not None]
    if len(records) < 5:
        return
    share = statistics.median((record.data_wait_s or 0) / (record.step_s or 1) for record in records)
    if share > WAITS_FOR_DATA:
        evidence = [f"{share:.0%} of a step is spent waiting for data, median of {len(records)} steps"]
        yield Cause("data-wait", Layer.SLOW, "the steps wait for data", evidence)


def not_finite(snapshot: Snapshot) -> Iterator[Cause]:
    """The loss or the gradients are not finite, and the trainer continues."""
    yield from lost(_recent(snapshot))


def lost(records: list[Record]) -> Iterator[Cause]:
    """The newest losses or gradients of these records are not finite."""
    losses = [record for record in records if record.loss is not None]
    last = losses[-NO_GRADIENT:]
    no_loss = len(losses) >= LOST and not any(map(_finite, losses[-LOST:]))
    no_gradient = len(last) == NO_GRADIENT and all(math.isnan(record.grad_norm or 0.0) for record in last)
    if no_loss or no_gradient:
        summary = f"the {'loss is' if no_loss else 'gradients are'} no longer finite, and the run continues"
        yield Cause("nan", Layer.FAILED, summary, [_shown(record) for record in losses[-LOST:]])


def _shown(record: Record) -> str:
    where = "" if record.step is None else f"step {record.step}: "
    norm = "" if record.grad_norm is None else f", gradient norm {record.grad_norm}"
    return f"{where}loss {record.loss}{norm}"


def _finite(record: Record) -> bool:
    """Return whether a step has a loss: transformers shows one that is not a number as 0."""
    hidden = record.loss == 0.0 and math.isnan(record.grad_norm or 0.0)
    return math.isfinite(record.loss or 0.0) and not hidden


def lost_in_words(lines: Iterable[Line]) -> Iterator[Cause]:
    """The newest losses or gradients of a log in an unknown form are not finite."""
    hits = ((line, form("values").search(line.text) or form("columns").search(line.text)) for line in lines)
    found = [(line, hit[1], hit[2]) for line, hit in hits if hit]
    for number, name in ((LOST, "loss"), (NO_GRADIENT, "norm")):
        is_norm = name == "norm"
        last = [(line, value) for line, key, value in found if is_norm == key.lower().endswith("norm")][-number:]
        if len(last) == number and all(NOT_FINITE.fullmatch(value) for _, value in last):
            evidence = [short(f"{line.pod}:{line.number}: {line.text.strip()}") for line, _ in last[-LOST:]]
            yield Cause("nan", Layer.FAILED, f"the {name} is no longer finite, and the run continues", evidence)
            return


def slower_than_planned(snapshot: Snapshot) -> Iterator[Cause]:
    """A step takes much longer than planned, for no reason that another rule found."""
    records = [record for record in planned.present(_recent(snapshot)) if record.rank_step_s]
    plan = planned.of(snapshot, records) if len(records) >= 5 else None
    if plan is None:
        return
    took = statistics.median(record.step_s or 0.0 for record in records)
    before = statistics.median(max(record.rank_step_s) for record in records)
    if not (slower := plan.slower(took)):
        return
    scaled = before / plan.before_exchange_s * (plan.step_s or 0.0)  # a slower card's backward pass takes longer too
    lost = {"computation": scaled - (plan.step_s or 0.0), "exposed communication": took - scaled}
    what = max(lost, key=lost.__getitem__)
    evidence = [
        f"a step takes {took:.3f} s, planned {plan.step_s:.3f} s within {plan.error:.0%}; {len(records)} steps",
        f"until gradients are exchanged {before:.3f} s, planned {plan.before_exchange_s:.3f} s;"
        f" after that {took - before:.3f} s, planned {plan.after_s:.3f} s",
    ]
    yield Cause("slower-than-planned", Layer.SLOW, f"{slower}: {what}", evidence)


def low_use(snapshot: Snapshot) -> Iterator[Cause]:
    """Nothing is wrong, but the accelerators are used little: progress is normal, but slow."""
    records = [record for record in _recent(snapshot) if record.mfu is not None]
    if len(records) < 5 or not any(accelerators(pod.spec) for pod in snapshot.pods):
        return
    use = statistics.median(record.mfu or 0.0 for record in records)
    if use < LOW_USE:
        evidence = [
            f"MFU {use:.1%}, median of {len(records)} steps; 30 to 50 % is common",
            "no rank is slower, steps do not wait for data, and the speed has not changed",
        ]
        yield Cause("slow", Layer.SLOW, "progress is normal, but slow", evidence)


def slow_network(snapshot: Snapshot) -> Iterator[Cause]:
    """NCCL uses TCP between nodes that have EFA."""
    if is_over(snapshot) or snapshot.replicas < 2:
        return
    for pod in snapshot.pods:
        requested = pod_requests(pod.spec).get(EFA)
        node = snapshot.find("Node", pod.node or "") or {}
        offered = amount(((node.get("status") or {}).get("allocatable") or {}).get(EFA, 0)) or 0
        if not (requested or offered > 0):
            continue
        lines = log_lines.read(snapshot.log(pod.name), pod.name)
        tcp = next((line for line in lines if form("socket").search(line.text)), None)
        if tcp and not any(form("ofi").search(line.text) for line in lines):
            what = "requests EFA" if requested else "does not request EFA, although its node has it"
            evidence = [short(f"{pod.short}: {tcp.text.strip()}"), f"the pod {what}"]
            summary = "NCCL uses TCP, not EFA"
            yield Cause("slow-network", Layer.SLOW, summary, evidence, pod.name, at=tcp.time)
            return


def slowdown(snapshot: Snapshot) -> Iterator[Cause]:
    """The run has become slower."""
    records = [record for record in progress.of(snapshot).records if _speed(record)]
    of_now = [record for record in _recent(snapshot) if _speed(record)]
    earlier = records[RECENT : -len(of_now)]  # the first steps compile and fill caches
    if len(earlier) < 2 * RECENT or len(of_now) < RECENT:
        return
    now = statistics.median(map(_speed, of_now))
    before = [
        statistics.median(map(_speed, earlier[start : start + RECENT]))
        for start in range(0, len(earlier) - RECENT + 1, RECENT)
    ]
    best = statistics.median(before)
    if now < SLOWED * best:
        evidence = [f"{now:,.0f} tokens/s in the last {len(of_now)} steps, {best:,.0f} before"]
        yield Cause("slowdown", Layer.SLOW, f"the run has slowed to {now / best:.0%} of its speed", evidence)


def _speed(record: Record) -> float:
    return record.tokens_per_s or record.samples_per_s or 0.0


def _lasts(records: list[Record]) -> float:
    """Return the seconds from the first record's step to the end of the last."""
    return (records[-1].time or 0.0) - (records[0].time or 0.0) + (records[0].step_s or 0.0)


def _recent(snapshot: Snapshot) -> list[Record]:
    """Return the newest records of the containers that run now: RECENT of them, or more in PRESENT seconds.

    A step needs every rank, so records from before the newest container's start belong to an earlier try.
    """
    started = [pod.started.timestamp() for pod in snapshot.pods if pod.started]
    records = progress.of(snapshot).records
    if is_over(snapshot) or not started or not records:
        return []
    since = (records[-1].time or math.inf) - PRESENT
    newest = [record for record in records[:-RECENT] if (record.time or 0.0) >= since] + records[-RECENT:]
    return [record for record in newest if record.time is None or record.time >= max(started)]
