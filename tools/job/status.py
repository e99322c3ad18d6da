"""A job at a glance: its state, its pods, its progress and its remaining time."""

from dataclasses import asdict, dataclass
from datetime import datetime

from tools.cells import knobs
from tools.core import duration, moment, output
from tools.job import goodput, planned, ranks
from tools.job.diagnosis.resources import accelerators
from tools.job.metrics import progress, series
from tools.job.metrics.progress import Progress
from tools.job.metrics.series import Record
from tools.job.snapshot import JobPod, Snapshot
from tools.job.snapshot.live_job import title
from tools.job.snapshot.snapshot import event_time
from tools.kube import Object
from tools.workload import Workload
from training.run.straggling import Straggling

SILENT, SILENT_STEPS = 120.0, 10  # seconds, and step times, without a step: the remaining time is unknown
SPEEDS = ("tokens_per_s", "samples_per_s", "mfu")


@dataclass(frozen=True)
class Status:
    """The status of a job. Unknown values are None, empty lists or `-`."""

    snapshot: Snapshot

    @property
    def state(self) -> str:
        return self.snapshot.state

    def training(self) -> Object:
        """Return phase, step, loss, speeds, remaining time and checkpoints."""
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
            **{key: series.plain(series.median(present, key)) for key in SPEEDS},
            "seconds_left": [round(seconds) for seconds in left] if left else None,
            "moved_seconds_ago": round((now.now - moved).total_seconds()) if moved else None,
            "checkpoints": [one["step"] for one in run.get("checkpoints") or [] if one.get("step") is not None],
            "plan": planned.beside(self.snapshot, present),
            "stragglers": asdict(present[-1].stragglers) if present and present[-1].stragglers else None,
        }

    def _present(self, now: Progress) -> list[Record]:
        """Return the records of the running containers, or all records of a run that has ended.

        Records from before a restart do not show the present speed. A suspended job has none.
        """
        if self.state in ("Succeeded", "Failed"):
            return now.records
        started = [pod.started.timestamp() for pod in self.snapshot.pods if pod.started]
        return series.since(now.records, max(started)) if started and self.state != "Suspended" else []

    def cost(self) -> Object:
        """Return USD an hour and so far, by the machines that the pods ask for, on demand; None is unknown.

        A pod costs from the moment that it has a node to its end. Pods that were deleted are not counted.
        """
        machine = knobs.machine(self.snapshot.workload)
        hourly = None if machine is None else machine.price_usd_per_hour
        if hourly is None:
            return {"usd_per_hour": None, "usd_so_far": None}
        held = [pod for pod in self.snapshot.pods if pod.node is not None and pod.placed is not None]
        seconds = sum((self._until(pod) - (pod.placed or self._until(pod))).total_seconds() for pod in held)
        running = sum(not pod.ended_for_good for pod in held)
        return {"usd_per_hour": round(hourly * running, 2), "usd_so_far": round(hourly * max(0.0, seconds) / 3600, 2)}

    def _until(self, pod: JobPod) -> datetime:
        """Return when a pod ended, or the time of the snapshot."""
        ended = pod.end.at if pod.ended_for_good and pod.end else None
        return ended or self.snapshot.taken

    def pods(self) -> list[Object]:
        """Return one row per pod."""
        held = ranks.by_pod(self.snapshot)
        return [
            {
                "pod": pod.name,
                "uid": pod.uid,
                "node": pod.node,
                "state": pod_state(pod),
                "restarts": pod.restarts,
                "age_s": round(self.snapshot.age(pod.created) or 0),
                "ranks": held[pod.name],
            }
            for pod in self.snapshot.pods
        ]

    def last_event(self) -> Object | None:
        """Return the newest event about the job or one of its pods."""
        events = [event for pod in self.snapshot.pods for event in self.snapshot.events("Pod", pod.name)]
        events += self.snapshot.job_events()
        timed = [(at, event) for event in events if (at := event_time(event))]
        if not timed:
            return None
        at, event = max(timed, key=lambda one: one[0])
        about = event["involvedObject"]["name"]
        facts = {"reason": event.get("reason"), "message": event.get("message"), "about": about}
        return {**facts, "seconds_ago": round(self.snapshot.age(at) or 0)}

    def as_dict(self) -> Object:
        """Return the status for JSON."""
        seen = self.snapshot
        made = moment(seen.job["metadata"].get("creationTimestamp"))
        return {
            "job": seen.name,
            "kind": seen.workload.kind,
            "made_by": title(seen.owner) if seen.owner else None,
            "namespace": seen.namespace,
            "uid": seen.uid,
            "state": self.state,
            "age_s": round(seen.age(made) or 0),
            "training": self.training(),
            "cost": self.cost(),
            "goodput": goodput.of_snapshot(seen),
            "pods_wanted": seen.replicas or None,
            "pods": self.pods(),
            "last_event": self.last_event(),
            "not_seen": seen.unseen,
        }


def _silent(now: Progress, present: list[Record]) -> bool:
    """Return whether the last step is too long ago to estimate the remaining time."""
    last = present[-1] if present else None
    if last is None or last.time is None:
        return last is None
    steps = [record.step_s for record in present[-50:] if record.step_s]
    return now.now.timestamp() - last.time > max(SILENT, SILENT_STEPS * max(steps, default=0.0))


def active_pods(job: Workload) -> int | None:
    """Return how many pods the job's controller counts as active, None for a kind that does not count them.

    A JobSet counts its active Jobs, a Volcano Job its running pods.
    """
    if job.kind in ("TrainJob", "HyperPodPyTorchJob") or job.misshapen:
        return None
    status, by_role = job.status, job.status.get("replicaStatuses")
    if job.kind == "JobSet":
        jobs = {one["name"]: one.get("replicas") or 1 for one in job.spec["replicatedJobs"]}
        said = status.get("replicatedJobsStatus")
        counted = {one.get("name"): one for one in (said if isinstance(said, list) else [])}
        active = {name: _number(counted.get(name), "active") for name in jobs}
        return sum(active[role.name] * role.replicas // jobs[role.name] for role in job.roles)
    roles = by_role.values() if isinstance(by_role, dict) else []
    return sum((_number(one, "active") for one in roles), _number(status, "active") + _number(status, "running"))


def _number(counts: object, key: str) -> int:
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if isinstance(value, int) else 0


def pod_state(pod: JobPod) -> str:
    """Return a pod's state in one word, as kubectl's STATUS column has it."""
    if pod.deleted:
        return "Terminating"
    if pod.waiting[0]:
        return pod.waiting[0]
    if pod.ended_for_good and pod.end:
        return pod.end.reason or f"exit {pod.end.code}"
    return str(pod.status.get("reason") or pod.phase)


def lines(status: Status) -> list[str]:
    """Return the status for people, but for the table of its pods."""
    value = status.as_dict()
    training, steps = value["training"], value["training"]["checkpoints"]
    rows = [("state", f"{value['state']}, created {duration(value['age_s'])} ago")]
    rows.append(("training", _training(training)))
    if plan := training["plan"]:
        rows.append(("plan", plan["says"]))
    if slow := training["stragglers"]:
        rows.append(("straggler", f"rank {ranks.spans(slow['ranks'])}: {Straggling(**slow)}"))
    if (cost := value["cost"])["usd_so_far"]:
        rows.append(("cost", f"${cost['usd_so_far']:,.2f} so far, ${cost['usd_per_hour']:,.2f} an hour (on demand)"))
    if (kept := value["goodput"]) and kept["goodput"] is not None:
        rows.append(("goodput", goodput.in_words(kept)))
    if steps:
        rows.append(("checkpoints", f"{len(steps)}, the newest of step {steps[-1]}"))
    if event := value["last_event"]:
        ago = duration(event["seconds_ago"])
        rows.append(("last event", f"{ago} ago: {event['reason']}: {output.short(event['message'], 100)}"))
    if value["pods_wanted"] is None:
        rows.append(("pods", f"{len(value['pods'])} exist; how many it asks for is unknown"))
    elif len(value["pods"]) != value["pods_wanted"]:
        rows.append(("pods", f"{len(value['pods'])} of {value['pods_wanted']} exist"))
    found = [header(status.snapshot)]
    found += [f"  {name:<11} {text}" for name, text in rows]
    return [*found, *(f"  not seen: {what}: {reason}" for what, reason in value["not_seen"].items())]


def header(seen: Snapshot) -> str:
    """Return a job's namespace, name and machines, with its kind unless it is a PyTorchJob, and what made it."""
    kind = "" if seen.workload.kind == "PyTorchJob" else f"{seen.workload.kind} "
    made = f", made by {title(seen.owner)}" if seen.owner else ""
    return f"{kind}{seen.namespace}/{seen.name}, {_machines(seen)}{'' if seen.uid else ', not created yet'}{made}"


def _machines(seen: Snapshot) -> str:
    """Return what a job asks for, such as `8 H100 x 4 nodes (p5.48xlarge)`."""
    kind, specs = knobs.machine(seen.workload), seen.workload.training_specs()
    devices = max(map(accelerators, specs), default=0)
    name = (kind.accelerator if kind else None) or ("device" if devices == 1 else "devices")
    nodes = output.count(seen.replicas, "node" if kind else "pod") if seen.replicas else "an unknown number of pods"
    return f"{f'{devices} {name} x ' if devices else ''}{nodes}{f' ({kind.name})' if kind else ''}"


def _training(now: Object) -> str:
    if now["source"] == "nothing":
        return "no progress was seen"
    parts = [now["phase"]] if now["phase"] else []
    if now["step"] is not None:
        parts.append(f"step {now['step']}{'/' + str(now['steps']) if now['steps'] else ''}")
    forms = {"loss": "loss {:.3f}", "tokens_per_s": "{:,.0f} tokens/s", "samples_per_s": "{:,.2f} samples/s"}
    parts += [form.format(float(now[key])) for key, form in forms.items() if now[key] is not None]
    if now["step"] is not None or now["mfu"]:
        parts.append(f"MFU {float(now['mfu']):.1%}" if now["mfu"] else "MFU unknown")
    if now["seconds_left"] and now["step"] != now["steps"]:
        ends = dict.fromkeys(map(duration, now["seconds_left"]))
        parts.append(f"{' to '.join(ends)} left")
    elif now["step"] is not None and now["step"] != now["steps"]:
        parts.append("time left unknown")
    if now["moved_seconds_ago"] is not None:
        parts.append(f"seen {duration(now['moved_seconds_ago'])} ago")
    return ", ".join(parts)


def table(pods: list[Object]) -> list[tuple[str, ...]]:
    """Return the pods as the rows of a table."""
    head = ("pod", "state", "restarts", "age", "ranks", "node")
    shown = [
        one | {"age": duration(one["age_s"]), "ranks": ranks.spans(one["ranks"]), "node": one["node"] or "-"}
        for one in pods
    ]
    return [head, *(tuple(str(one[key]) for key in head) for one in shown)]
