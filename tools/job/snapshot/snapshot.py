"""The state of one job at one moment, in one object that can be saved as files.

Every check reads a Snapshot, never the cluster: a verdict can be repeated from a saved snapshot, and a test
needs no cluster. `unseen` holds what could not be read, with the reason: missing data is never reported as a
failure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.core.errors import UserError
from tools.core.timestamps import moment
from tools.job.snapshot.pod import JobPod, replicas
from tools.kube.manifests import Object

FILE = "snapshot.json"
CURRENT, PREVIOUS = "current", "previous"
# Wider than core.secret_patterns: a saved snapshot is made to be shared.
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True)
class Log:
    """The end of one container's log: of the current container, or of the one before a restart."""

    pod: str
    which: str  # CURRENT | PREVIOUS
    text: str


@dataclass(frozen=True)
class Snapshot:
    """One job as the API server described it at `taken`.

    `objects` holds lists by kind: the objects of the job's namespace that concern it, all nodes, and as `Pod`
    the job's own pods. `others` are all other pods of the cluster that use a node's resources. `run` is the
    content of the run directory (tools/job/snapshot/remote_probe.py), None if it was not read.
    """

    taken: datetime
    namespace: str
    job: Object
    objects: dict[str, list[Object]] = field(default_factory=dict)
    others: list[Object] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    run: Object | None = None
    unseen: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.job["metadata"].get("uid", ""))

    @property
    def pods(self) -> list[JobPod]:
        """The job's pods, Master first, then workers by index."""
        found = [JobPod(item) for item in self.objects.get("Pod", [])]
        return sorted(found, key=lambda pod: (pod.role != "master", pod.index))

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
        found = [
            event
            for event in self.of("Event")
            if (event.get("involvedObject") or {}).get("kind") == kind
            and (event.get("involvedObject") or {}).get("name") == name
        ]
        return sorted(found, key=lambda event: event_time(event) or datetime.min.replace(tzinfo=UTC))

    def log(self, pod: str, which: str = CURRENT) -> str:
        """Return the end of a pod's log, or an empty text."""
        return next((log.text for log in self.logs if log.pod == pod and log.which == which), "")

    def condition(self, kind: str) -> Object | None:
        """Return the job's condition of a type if it is True."""
        conditions = (self.job.get("status") or {}).get("conditions") or []
        return next((one for one in conditions if one["type"] == kind and one["status"] == "True"), None)

    @property
    def replicas(self) -> int:
        """How many pods the job asks for."""
        return replicas(self.job)

    def age(self, moment: datetime | None) -> float | None:
        """Return the seconds from `moment` to the snapshot."""
        return None if moment is None else (self.taken - moment).total_seconds()

    def save(self, directory: Path) -> None:
        """Write snapshot.json and one file for each log.

        Values of environment variables whose names contain token, key, secret or password are left out.
        """
        directory.mkdir(parents=True, exist_ok=True)
        value: Object = {"taken": self.taken.isoformat(), "namespace": self.namespace}
        value |= {name: _without_secrets(getattr(self, name)) for name in ("job", "objects", "others")}
        value |= {"run": self.run, "unseen": self.unseen}
        for log in self.logs:
            (directory / f"{log.pod}.{log.which}.log").write_text(log.text, encoding="utf-8")
        (directory / FILE).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def load(directory: Path) -> Snapshot:
    """Read a saved snapshot; UserError if it is missing or incomplete."""
    path = directory / FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        taken = datetime.fromisoformat(value.pop("taken"))
        return Snapshot(taken, logs=[_log(file) for file in sorted(directory.glob("*.log"))], **value)
    except OSError as problem:
        hint = "yard job why JOB --save DIRECTORY writes one"
        raise UserError(f"{path}: {problem.strerror}", hint) from None
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path}: incomplete snapshot: {problem!r}") from None


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _without_secrets(item) for key, item in value.items() if key != "managedFields"}
    if "value" in found and SECRET.search(str(found.get("name", ""))):
        found["value"] = "left out"
    return found


def _log(path: Path) -> Log:
    pod, _, which = path.stem.rpartition(".")
    return Log(pod, which, path.read_text(encoding="utf-8", errors="replace"))


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
