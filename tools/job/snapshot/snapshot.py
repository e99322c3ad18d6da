"""The state of one job at one moment, in one object that can be saved as files.

Every check reads a Snapshot, never the cluster: a verdict can be repeated from a saved snapshot, and a test
needs no cluster. `unseen` holds what could not be read, with the reason: missing data is never reported as a
failure.
"""

import json
import os
import stat
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self

from tools.core import UserError, foreign_files, moment, secret_patterns
from tools.job.snapshot import run_answer
from tools.job.snapshot.kinds import RUNTIMES
from tools.job.snapshot.live_job import LiveJob
from tools.job.snapshot.pod import JobPod, template_specs
from tools.job.snapshot.shareable import affinity_labels, clean, counted
from tools.kube import Manifests, Object, name_of
from tools.workload import Workload, kinds

FILE = "snapshot.json"
CURRENT, PREVIOUS, OTHER = "current", "previous", "other"
LARGEST_FILE, LARGEST_LOG = 64 * 2**20, 4 * 2**20  # bytes
MOST_LOGS = 64  # files
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Log:
    """The end of a log: of the training container, of that before a restart, or of the OTHER that failed the pod."""

    pod: str
    which: str  # CURRENT | PREVIOUS | OTHER
    text: str


@dataclass(frozen=True)
class Snapshot:
    """One job as the API server described it at `taken`. `owner` is the topmost object that made it, if any.

    `objects` holds lists by kind: the objects of the job's namespace that concern it, all nodes, and as `Pod`
    the job's own pods. `others` are all other pods of the cluster that use a node's resources. `run` is the
    content of the run directory (training/remote/run_probe.py), None if it was not read.
    """

    taken: datetime
    namespace: str
    job: Object
    objects: dict[str, list[Object]] = field(default_factory=dict)
    others: list[Object] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    run: Object | None = None
    unseen: dict[str, str] = field(default_factory=dict)
    owner: Object | None = None

    @cached_property
    def workload(self) -> Workload:
        """The job by its kind. Raises UserError for a kind that is not read."""
        runtimes = [one for kind in RUNTIMES for one in self.of(kind)]
        found = kinds.of(self.job, Manifests("the cluster", runtimes))
        if found is None:
            raise UserError(f"{self.name}: the kind {self.job.get('kind')} is not read", code=3)
        return found

    @property
    def live(self) -> LiveJob:
        """The job with its owner."""
        return LiveJob(self.workload, self.owner)

    @property
    def state(self) -> str:
        """The job's state in one word."""
        return self.live.state

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.job["metadata"].get("uid", ""))

    @cached_property
    def pods(self) -> list[JobPod]:
        """The job's pods by role and number. One that was replaced is in `earlier` of the newer pod."""
        roles = [role.name.lower() for role in self.workload.roles]
        order = {role: place for place, role in enumerate(roles)}
        groups: dict[tuple[int, str, int], list[JobPod]] = {}
        for pod in (JobPod(item, self.workload) for item in self.of("Pod")):
            groups.setdefault((order.get(pod.role, len(roles)), pod.role, pod.index), []).append(pod)
        return [pod for _, group in sorted(groups.items()) for pod in _latest(group)]

    @property
    def before_training(self) -> list[JobPod]:
        """The pods that only prepare, such as a TrainJob's initializers; none if no role is known to train."""
        trains = {role.name.lower() for role in self.workload.roles if role.trains}
        return [pod for pod in self.pods if trains and pod.role not in trains]

    @property
    def training_pods(self) -> list[JobPod]:
        """The pods that train."""
        others = self.before_training
        return [pod for pod in self.pods if pod not in others]

    def require_pods(self) -> list[JobPod]:
        """Return the job's pods; UserError if there are none."""
        if not self.pods:
            raise UserError(f"{self.name} has no pods", "`yard job why` shows what it waits for", code=3)
        return self.pods

    def of(self, kind: str) -> list[Object]:
        return self.objects.get(kind, [])

    def find(self, kind: str, name: str) -> Object | None:
        return next((item for item in self.of(kind) if item["metadata"]["name"] == name), None)

    def saw(self, kind: str) -> bool:
        """Return whether objects of this kind could be read."""
        return kind in self.objects

    def events(self, kind: str, name: str) -> list[Object]:
        """Return the events about one object, newest last."""
        return self._events.get((kind, name), [])

    @cached_property
    def _events(self) -> dict[tuple[str, str], list[Object]]:
        found: dict[tuple[str, str], list[Object]] = {}
        for event in sorted(self.of("Event"), key=lambda event: event_time(event) or NEVER):
            about = event.get("involvedObject") or {}
            found.setdefault((str(about.get("kind")), str(about.get("name"))), []).append(event)
        return found

    def job_events(self) -> list[Object]:
        """Return the events about the job, its owner and its own parts, newest last."""
        about = {(str(one["kind"]), name_of(one)) for one in (self.job, self.owner, *self.parts) if one}
        about |= {("JobSet", self.name)} if self.workload.kind == "TrainJob" else set()  # it has the TrainJob's name
        found = [event for kind, name in about for event in self.events(kind, name)]
        return sorted(found, key=lambda event: event_time(event) or NEVER)

    @property
    def parts(self) -> list[Object]:
        """The Jobs of a JobSet, and the JobSet of a TrainJob."""
        return [*self.of("JobSet"), *self.of("Job")]

    def log(self, pod: str, which: str = CURRENT) -> str:
        """Return the end of a pod's log, or an empty text."""
        return next((log.text for log in self.logs if log.pod == pod and log.which == which), "")

    def condition(self, state: str) -> Object | None:
        """Return the condition by which the job has Succeeded, Failed or is Suspended, None if it has not."""
        return self.live.condition(state)

    @property
    def replicas(self) -> int:
        """How many pods the job asks for."""
        return self.workload.replicas

    def age(self, moment: datetime | None) -> float | None:
        """Return the seconds from `moment` to the snapshot."""
        return None if moment is None else (self.taken - moment).total_seconds()

    def shareable(self) -> Self:
        """Return the snapshot without secrets, and with no more of others' pods than the scheduler counts."""
        specs = [*template_specs(self.workload), *(pod.spec for pod in self.pods)]
        labels = set(affinity_labels(specs))
        return replace(
            self,
            job=clean(self.job),
            owner=clean(self.owner),
            objects=clean(self.objects),
            others=[counted(pod, labels) for pod in self.others],
            logs=[replace(log, text=secret_patterns.mask(log.text)) for log in self.logs],
            run=clean(self.run),
            unseen=clean(self.unseen),
        )

    def save(self, directory: Path) -> None:
        """Write what may be shared, for this user only: snapshot.json and one file for each log."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{directory}: not a directory", "name one, or a new one") from None
        shared = self.shareable()
        value: Object = {"taken": self.taken.isoformat(), "namespace": self.namespace}
        kept = ("job", "owner", "objects", "others", "run", "unseen")
        value |= {name: getattr(shared, name) for name in kept}
        texts = {f"{log.pod}.{log.which}.log": log.text for log in shared.logs}
        if (directory / FILE).exists():
            for which in (CURRENT, PREVIOUS, OTHER):  # the logs of the snapshot that this one replaces
                for old in directory.glob(f"*.{which}.log"):
                    old.unlink()
        for name, text in {**texts, FILE: json.dumps(value, indent=1) + "\n"}.items():
            with foreign_files.writing(directory, name) as file:
                file.write(text.encode("utf-8", "replace"))


def load(directory: Path) -> Snapshot:
    """Read a saved snapshot, which another user may have made; UserError if it is missing or incomplete."""
    path = directory / FILE
    try:
        value = json.loads(_text(path))
        taken = datetime.fromisoformat(value.pop("taken"))
        logs = [_log(file) for file in sorted(directory.glob("*.log"))[:MOST_LOGS]]
        return _checked(Snapshot(taken, logs=logs, **value))
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror}", "yard job why JOB --save DIRECTORY writes one") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise UserError(f"{path}: incomplete snapshot: {problem!r}") from None


def _checked(seen: Snapshot) -> Snapshot:
    """Return the snapshot if its parts have their types; ValueError or TypeError if not."""
    lists = [seen.others, *seen.objects.values()]
    for item in (seen.job, *filter(None, [seen.owner]), *(item for one in lists for item in one)):
        if not isinstance(item["metadata"].get("name"), str):
            raise ValueError("an object without a name")
    if not isinstance(seen.job["spec"], dict):
        raise TypeError("the job has no spec")
    seen.workload  # noqa: B018 - raises for a kind that is not read
    return replace(
        seen, run=run_answer.checked(seen.run), unseen={str(what): str(why) for what, why in seen.unseen.items()}
    )


def _text(path: Path, largest: int = LARGEST_FILE) -> str:
    """Return the text of a regular file that is not too large; UserError for anything else."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe does not block
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UserError(f"{path}: not a regular file")
        data = file.read(largest + 1)
    if len(data) > largest:
        raise UserError(f"{path}: larger than {largest // 2**20} MiB")
    return data.decode("utf-8", "replace")


def _log(path: Path) -> Log:
    pod, _, which = path.stem.rpartition(".")
    return Log(pod, which, _text(path, LARGEST_LOG))


def _latest(pods: list[JobPod]) -> list[JobPod]:
    """Return the pods of one role and number, without the ended ones that a newer one has replaced."""
    pods = sorted(pods, key=lambda pod: pod.created or NEVER)
    *older, newest = pods
    replaced = tuple(pod.item for pod in older if pod.over)
    return [*(pod for pod in older if not pod.over), replace(newest, earlier=replaced)]


def event_time(event: Object) -> datetime | None:
    """Return when an event was last seen. The field depends on the component that wrote it."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return next((found for found in map(moment, times) if found), None)
