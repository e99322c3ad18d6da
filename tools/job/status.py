"""A job at a glance: its state, its pods, how far it is and how long it will take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tools.core.timestamps import duration, moment
from tools.job import ranks
from tools.job.metrics import progress, series
from tools.job.metrics.progress import Progress
from tools.job.metrics.series import Record
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.snapshot import Snapshot, event_time
from tools.kube.manifests import Object

SILENT, SILENT_STEPS = 120.0, 10  # seconds and steps without one, after which no time is left to be told
STATES = ("Succeeded", "Failed", "Suspended", "Restarting", "Running", "Created")


@dataclass(frozen=True)
class Status:
    """What is known of a job; None and empty lists where nothing is."""

    snapshot: Snapshot

    @property
    def made(self) -> datetime | None:
        """Return when the job was made."""
        return moment(self.snapshot.job["metadata"].get("creationTimestamp"))

    @property
    def state(self) -> str:
        """Return the operator's state: the decisive one of the conditions that are True."""
        return state_of(self.snapshot.job)

    def training(self) -> Object:
        """Return how training goes: phase, step, loss, speeds, the time that is left, checkpoints."""
        now = progress.of(self.snapshot)
        last, run = now.last, self.snapshot.run or {}
        steps = run.get("steps") or (last.steps if last else None)
        present = self._present(now)
        left = series.eta(present, steps) if self.state == "Running" and not _silent(now, present) else None
        moved = now.moved
        return {
            "source": now.source,
            "phase": now.phase,
            "step": now.step,
            "steps": steps,
            "loss": series.plain(last.loss) if last else None,
            "tokens_per_s": series.plain(series.median(present, "tokens_per_s")),
            "samples_per_s": series.plain(series.median(present, "samples_per_s")),
            "mfu": series.plain(series.median(present, "mfu")),
            "seconds_left": [round(left.low), round(left.high)] if left else None,
            "moved_seconds_ago": round((now.now - moved).total_seconds()) if moved else None,
            "checkpoints": [one["step"] for one in run.get("checkpoints") or []],
            "restarts": len(series.gaps(now.records)),
        }

    def _present(self, now: Progress) -> list[Record]:
        """Return the records that say how it goes: those of the containers that run, or of an ended run.

        What was recorded before a restart is no speed of now, and what stands still has none.
        """
        if self.state in ("Succeeded", "Failed"):
            return now.records
        started = [pod.started.timestamp() for pod in self.snapshot.pods if pod.started]
        return series.since(now.records, max(started)) if started and self.state != "Suspended" else []

    def pods(self) -> list[Object]:
        """Return one row a pod."""
        held: dict[str, list[int]] = {}
        for rank, pod in ranks.ranks(self.snapshot).items():
            held.setdefault(pod, []).append(rank)
        return [
            {
                "pod": pod.name,
                "uid": pod.uid,
                "node": pod.node,
                "state": pod_state(pod),
                "restarts": pod.restarts,
                "age_s": round(self.snapshot.age(pod.created) or 0),
                "ranks": sorted(held.get(pod.name, [])),
            }
            for pod in self.snapshot.pods
        ]

    def last_event(self) -> Object | None:
        """Return the newest event about the job or one of its pods."""
        names = [("PyTorchJob", self.snapshot.name), *(("Pod", pod.name) for pod in self.snapshot.pods)]
        events = [event for kind, name in names for event in self.snapshot.events(kind, name)]
        timed = [(at, event) for event in events if (at := event_time(event))]
        if not timed:
            return None
        at, event = max(timed, key=lambda one: one[0])
        about = event["involvedObject"]["name"]
        facts = {"reason": event.get("reason"), "message": event.get("message"), "about": about}
        return {**facts, "seconds_ago": round(self.snapshot.age(at) or 0)}

    def as_dict(self) -> Object:
        """Return all of it for JSON."""
        seen = self.snapshot
        age = seen.age(self.made) or 0
        return {
            "job": seen.name,
            "namespace": seen.namespace,
            "uid": seen.uid,
            "state": self.state,
            "age_s": round(age),
            "training": self.training(),
            "pods_wanted": self.snapshot.replicas,
            "pods": self.pods(),
            "last_event": self.last_event(),
            "not_seen": seen.unseen,
        }


def _silent(now: Progress, present: list[Record]) -> bool:
    """Say whether no step has come for so long that the last ones tell nothing of the time that is left."""
    last = present[-1] if present else None
    if last is None or last.time is None:
        return last is None
    steps = [record.step_s for record in present[-50:] if record.step_s]
    return now.now.timestamp() - last.time > max(SILENT, SILENT_STEPS * max(steps, default=0.0))


def state_of(job: Object) -> str:
    """Return a job's state, `New` where the operator has not said anything."""
    conditions = (job.get("status") or {}).get("conditions") or []
    true = {one["type"] for one in conditions if one.get("status") == "True"}
    return next((state for state in STATES if state in true), "New")


def pod_state(pod: JobPod) -> str:
    """Return a pod's state in one word, as kubectl's STATUS column has it."""
    end = pod.end
    if pod.deleted:
        return "Terminating"
    if pod.waiting[0]:
        return pod.waiting[0]
    if pod.ended_for_good and end:
        return end.reason or f"exit {end.code}"
    return str(pod.status.get("reason") or pod.phase)


def lines(status: Status) -> list[str]:
    """Return the status for people."""
    value = status.as_dict()
    training = value["training"]
    found = [
        f"{value['namespace']}/{value['job']} ({value['uid']})",
        f"  state       {value['state']} since the job was made {duration(value['age_s'])} ago"
        if value["state"] in ("New", "Created")
        else f"  state       {value['state']}, made {duration(value['age_s'])} ago",
    ]
    found += [f"  training    {_training(training)}"]
    if training["checkpoints"]:
        steps = training["checkpoints"]
        found.append(f"  checkpoints {len(steps)}, the newest of step {steps[-1]}")
    if event := value["last_event"]:
        message = " ".join(str(event["message"]).split())[:100]
        found.append(f"  last event  {duration(event['seconds_ago'])} ago: {event['reason']}: {message}")
    if len(value["pods"]) != value["pods_wanted"]:
        found.append(f"  pods        {len(value['pods'])} of {value['pods_wanted']} are there")
    found += _table(value["pods"])
    return [*found, *(f"  not seen: {what}: {reason}" for what, reason in value["not_seen"].items())]


def _training(now: Object) -> str:
    if now["source"] == "nothing":
        return "nothing is seen of it"
    parts = [now["phase"]] if now["phase"] else []
    if now["step"] is not None:
        parts.append(f"step {now['step']}{'/' + str(now['steps']) if now['steps'] else ''}")
    if now["loss"] is not None:
        parts.append(f"loss {float(now['loss']):.3f}")
    if now["tokens_per_s"]:
        parts.append(f"{float(now['tokens_per_s']):,.0f} tokens/s")
    if now["samples_per_s"]:
        parts.append(f"{float(now['samples_per_s']):,.2f} samples/s")
    if now["mfu"]:
        parts.append(f"MFU {float(now['mfu']):.1%}")
    elif now["step"] is not None:
        parts.append("MFU unknown")
    if now["seconds_left"] and now["step"] != now["steps"]:
        low, high = now["seconds_left"]
        parts.append(f"{duration(low)} to {duration(high)} left")
    elif now["step"] is not None and now["step"] != now["steps"]:
        parts.append("time left unknown")
    if now["moved_seconds_ago"] is not None:
        parts.append(f"seen {duration(now['moved_seconds_ago'])} ago")
    return ", ".join(parts)


def _table(pods: list[Object]) -> list[str]:
    """Return the pods as aligned columns."""
    head = ("pod", "state", "restarts", "age", "ranks", "node")
    rows = [head] + [
        (
            str(pod["pod"]),
            str(pod["state"]),
            str(pod["restarts"]),
            duration(pod["age_s"]),
            spans(pod["ranks"]),
            str(pod["node"] or "-"),
        )
        for pod in pods
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def spans(numbers: list[int]) -> str:
    """Return `0-7` for eight ranks in a row, `-` for none."""
    if not numbers:
        return "-"
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(str(one[0]) if len(one) == 1 else f"{one[0]}-{one[-1]}" for one in found)
