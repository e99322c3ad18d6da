"""One pod of a job, as the API server describes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tools.core.timestamps import moment
from tools.kube.manifests import Object
from tools.simulator.operator_admission import DEFAULT_CONTAINER
from tools.simulator.operator_pods import LABEL


@dataclass(frozen=True)
class End:
    """How a container ended: it ran from `began` to `at`, `reason` is what the kubelet calls it."""

    code: int
    reason: str
    message: str
    at: datetime | None
    began: datetime | None = None


@dataclass(frozen=True)
class JobPod:
    """A pod of the training operator with its one training container."""

    item: Object

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self.item["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Return the pod's UID."""
        return str(self.item["metadata"].get("uid", ""))

    @property
    def labels(self) -> Object:
        """Return the pod's labels."""
        return self.item["metadata"].get("labels") or {}

    @property
    def role(self) -> str:
        """Return `master` or `worker`."""
        return str(self.labels.get(f"{LABEL}replica-type", "worker"))

    @property
    def index(self) -> int:
        """Return the pod's number among those of its role."""
        return int(self.labels.get(f"{LABEL}replica-index", 0))

    @property
    def short(self) -> str:
        """Return `worker-0`: the pod's name without the job's."""
        return f"{self.role}-{self.index}"

    @property
    def spec(self) -> Object:
        """Return the pod's spec."""
        return self.item.get("spec") or {}

    @property
    def status(self) -> Object:
        """Return the pod's status."""
        return self.item.get("status") or {}

    @property
    def phase(self) -> str:
        """Return Pending, Running, Succeeded, Failed or Unknown."""
        return str(self.status.get("phase", "Pending"))

    @property
    def node(self) -> str | None:
        """Return the node's name, None while there is none."""
        return self.spec.get("nodeName") or None

    @property
    def deleted(self) -> bool:
        """Say whether the pod is being deleted."""
        return "deletionTimestamp" in self.item["metadata"]

    @property
    def created(self) -> datetime | None:
        """Return when the pod was made."""
        return moment(self.item["metadata"].get("creationTimestamp"))

    @property
    def container(self) -> Object:
        """Return the status of the training container, empty while there is none."""
        return _named(self.status.get("containerStatuses") or [])

    @property
    def container_spec(self) -> Object:
        """Return the spec of the training container."""
        return _named(self.spec.get("containers") or [])

    @property
    def restarts(self) -> int:
        """Return how often the kubelet has restarted the training container."""
        return int(self.container.get("restartCount") or 0)

    @property
    def running(self) -> bool:
        """Say whether the training container runs now."""
        return "running" in (self.container.get("state") or {})

    @property
    def started(self) -> datetime | None:
        """Return since when the training container runs, None where it does not."""
        return moment(((self.container.get("state") or {}).get("running") or {}).get("startedAt"))

    @property
    def waiting(self) -> tuple[str, str]:
        """Return reason and message of the container that waits, init containers first; else empty texts.

        A container that runs beside the training one, and waits, keeps nobody from training.
        """
        for status in (*self._inits, self.container):
            waits = (status.get("state") or {}).get("waiting")
            if waits and waits.get("reason") not in (None, "PodInitializing"):
                return str(waits.get("reason") or ""), str(waits.get("message") or "")
        return "", ""

    @property
    def _inits(self) -> list[Object]:
        return self.status.get("initContainerStatuses") or []

    @property
    def broken_init(self) -> tuple[str, End] | None:
        """Return name and end of the init container that fails and keeps the others from starting."""
        for status in self._inits:
            end = _ended(status, "state") or _ended(status, "lastState")
            if end and end.code != 0 and "running" not in (status.get("state") or {}):
                return str(status["name"]), end
        return None

    @property
    def running_init(self) -> tuple[str, datetime | None] | None:
        """Return name and start of the init container that runs now, and that the training one waits for."""
        for status in self._inits:
            running = (status.get("state") or {}).get("running")
            if running is not None and self.phase == "Pending":
                return str(status["name"]), moment(running.get("startedAt"))
        return None

    @property
    def end(self) -> End | None:
        """Return how the training container ended, the current one or the one before a restart."""
        return _ended(self.container, "state") or _ended(self.container, "lastState")

    @property
    def ended_for_good(self) -> bool:
        """Say whether the current container has ended and no other runs in the pod."""
        return _ended(self.container, "state") is not None

    @property
    def done(self) -> bool:
        """Say whether the training container has ended well."""
        end = _ended(self.container, "state")
        return end is not None and end.code == 0

    @property
    def placed(self) -> datetime | None:
        """Return since when the pod has its node, or else since when it is there."""
        found = self.condition("PodScheduled") or {}
        placed = moment(found.get("lastTransitionTime")) if found.get("status") == "True" else None
        return placed or self.created

    def condition(self, kind: str) -> Object | None:
        """Return the pod's condition of a type, whatever its status."""
        found = self.status.get("conditions") or []
        return next((one for one in found if one["type"] == kind), None)


def _ended(container: Object, which: str) -> End | None:
    """Return the end that a container's `state` or `lastState` tells of."""
    ended = (container.get(which) or {}).get("terminated")
    if not ended:
        return None
    return End(
        int(ended.get("exitCode") or 0),
        str(ended.get("reason") or ""),
        str(ended.get("message") or ""),
        moment(ended.get("finishedAt")),
        moment(ended.get("startedAt")),
    )


def _named(containers: list[Object]) -> Object:
    """Return the training container: the one called `pytorch`, else the first."""
    named = (one for one in containers if one.get("name") == DEFAULT_CONTAINER)
    return next(named, containers[0] if containers else {})


def claim_names(pod: JobPod) -> list[str]:
    """Return the claims that a pod mounts."""
    sources = [volume.get("persistentVolumeClaim") for volume in pod.spec.get("volumes") or []]
    return [source["claimName"] for source in sources if source]
