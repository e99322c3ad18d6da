"""One pod of a job, as the API server describes it."""

from dataclasses import dataclass
from datetime import datetime

from tools.core import UserError, moment
from tools.kube import Object
from tools.kube.kubectl import CANNOT_SEE
from tools.workload import Workload, main_container

RUN_VARIABLE = "TRAINYARD_RUN"


@dataclass(frozen=True)
class End:
    """How a container ended: it ran from `began` to `at`, and `reason` is the kubelet's word."""

    code: int
    reason: str
    message: str
    at: datetime | None
    began: datetime | None = None


@dataclass(frozen=True)
class JobPod:
    """A pod. The kind of its job says its role, its number and its training container.

    `earlier` are the ended pods that it replaces, oldest first: a batch Job does not restart a failed pod.
    """

    item: Object
    job: Workload | None = None
    earlier: tuple[Object, ...] = ()

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.item["metadata"].get("uid", ""))

    @property
    def labels(self) -> Object:
        return self.item["metadata"].get("labels") or {}

    @property
    def role(self) -> str:
        """The role in lower case, such as `master`, `worker` or `node`; empty if the job has only one."""
        return self.job.role_of(self.item) if self.job else ""

    @property
    def index(self) -> int:
        """The pod's number among those of its role."""
        return self.job.index_of(self.item) if self.job else 0

    @property
    def short(self) -> str:
        """`worker-0`: the pod's role and number."""
        return f"{self.role or 'pod'}-{self.index}"

    @property
    def host(self) -> str:
        """The host name inside the pod. The pods of a batch Job have other names than hosts."""
        return str(self.spec.get("hostname") or self.name)

    @property
    def addresses(self) -> set[str]:
        """The names by which other pods of the namespace may find this one."""
        subdomain = self.spec.get("subdomain")
        return {self.name, self.host, *([f"{self.host}.{subdomain}"] if subdomain else [])}

    @property
    def spec(self) -> Object:
        return self.item.get("spec") or {}

    @property
    def status(self) -> Object:
        return self.item.get("status") or {}

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return str(self.status.get("phase", "Pending"))

    @property
    def over(self) -> bool:
        """Whether the pod has ended for good; Kubernetes may keep it."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def node(self) -> str | None:
        return self.spec.get("nodeName") or None

    @property
    def address(self) -> str | None:
        return self.status.get("podIP") or None

    @property
    def deleted(self) -> bool:
        """Whether the pod is being deleted."""
        return "deletionTimestamp" in self.item["metadata"]

    @property
    def created(self) -> datetime | None:
        return moment(self.item["metadata"].get("creationTimestamp"))

    @property
    def container(self) -> Object:
        """The status of the training container, empty before there is one."""
        return self._training(self.status.get("containerStatuses") or [])

    @property
    def container_spec(self) -> Object:
        return self._training(self.spec.get("containers") or [])

    def _training(self, rows: list[Object]) -> Object:
        named = (one for one in rows if one.get("name") == self.container_name)
        return next(named, rows[0] if rows else {})

    @property
    def container_name(self) -> str:
        return self.job.container_of(self.item) if self.job else main_container(self.item)

    @property
    def environment(self) -> dict[str, str]:
        """The training container's variables that have a literal value."""
        entries = self.container_spec.get("env") or []
        return {str(one["name"]): str(one["value"]) for one in entries if one.get("value") is not None}

    @property
    def has_run_directory(self) -> bool:
        return any(entry.get("name") == RUN_VARIABLE for entry in self.container_spec.get("env") or [])

    @property
    def restarts(self) -> int:
        return int(self.container.get("restartCount") or 0) + len(self.earlier)

    @property
    def previous(self) -> tuple[str, tuple[str, ...]]:
        """The pod, and kubectl's options, of the log from before the last restart."""
        if self.container.get("restartCount") or not self.earlier:
            return self.name, ("--previous",)
        return JobPod(self.earlier[-1]).name, ()

    @property
    def running(self) -> bool:
        return "running" in (self.container.get("state") or {})

    @property
    def started(self) -> datetime | None:
        """When the running training container started, None if it does not run."""
        return moment(((self.container.get("state") or {}).get("running") or {}).get("startedAt"))

    @property
    def waiting(self) -> tuple[str, str]:
        """Reason and message of the container that waits, init containers first; else empty texts.

        A sidecar that waits does not keep the training container from running, so it does not count.
        """
        waits = (self._waits.get("state") or {}).get("waiting") or {}
        return str(waits.get("reason") or ""), str(waits.get("message") or "")

    @property
    def waiting_image(self) -> str:
        """The image of the container that waits, else that of the training container."""
        specs = [*(self.spec.get("initContainers") or []), *(self.spec.get("containers") or [])]
        found = next((one for one in specs if one.get("name") == self._waits.get("name")), self.container_spec)
        return str(found.get("image"))

    @property
    def _waits(self) -> Object:
        """The status of the container that waits, empty without one."""
        for status in (*self._inits, self.container):
            waits = (status.get("state") or {}).get("waiting")
            if waits and waits.get("reason") not in (None, "PodInitializing"):
                return status
        return {}

    @property
    def _sidecars(self) -> set[str]:
        """The names of the init containers that run beside the training."""
        return {one["name"] for one in self.spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"}

    @property
    def _inits(self) -> list[Object]:
        """The init containers that matter: once a pod has started, its sidecars do not block it or fail it."""
        found = self.status.get("initContainerStatuses") or []
        return [one for one in found if self.phase == "Pending" or one.get("name") not in self._sidecars]

    @property
    def broken(self) -> tuple[str, End] | None:
        """Name and end of another container that failed the pod.

        It is an init container that blocks the others, or one beside a training that ended with exit code 0.
        """
        for status in self._inits:
            end = _ended(status, "state") or _ended(status, "lastState")
            if end and end.code != 0 and "running" not in (status.get("state") or {}):
                return str(status["name"]), end
        beside = self.status.get("containerStatuses") or [] if self.phase == "Failed" and self.done else []
        ends = ((str(one["name"]), _ended(one, "state")) for one in beside)
        return next(((name, end) for name, end in ends if end and end.code != 0), None)

    @property
    def running_init(self) -> tuple[str, datetime | None] | None:
        """Name and start of the init container that the training container waits for."""
        for status in self._inits:
            running = (status.get("state") or {}).get("running")
            if running is not None and self.phase == "Pending" and status["name"] not in self._sidecars:
                return str(status["name"]), moment(running.get("startedAt"))
        return None

    @property
    def ended_last(self) -> "JobPod":
        """The pod whose training container ended last: this one, or the one that it replaces."""
        own = self.over or _ended(self.container, "state") or _ended(self.container, "lastState")
        return self if own or not self.earlier else JobPod(self.earlier[-1], self.job)

    @property
    def end(self) -> End | None:
        """How the training container ended: the current one, or the one before a restart."""
        container = self.ended_last.container
        return _ended(container, "state") or _ended(container, "lastState")

    @property
    def ended_for_good(self) -> bool:
        """Whether the current container has ended and no other runs in the pod."""
        return _ended(self.container, "state") is not None

    @property
    def done(self) -> bool:
        """Whether the training container has ended with exit code 0."""
        end = _ended(self.container, "state")
        return end is not None and end.code == 0

    @property
    def placed(self) -> datetime | None:
        """When the pod got its node, or else when it was created."""
        found = self.condition("PodScheduled") or {}
        placed = moment(found.get("lastTransitionTime")) if found.get("status") == "True" else None
        return placed or self.created

    @property
    def waits_for(self) -> str:
        """What a pod waits for: a container's reason, the scheduler's message, or the phase."""
        unplaced = (self.condition("PodScheduled") or {}).get("message")
        return ": ".join(filter(None, self.waiting)) or unplaced or self.phase

    def condition(self, kind: str) -> Object | None:
        """Return the pod's condition of a type, whatever its status."""
        found = self.status.get("conditions") or []
        return next((condition for condition in found if condition["type"] == kind), None)


def _ended(container: Object, which: str) -> End | None:
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


def claim_names(pod: JobPod) -> list[str]:
    """Return the claims that a pod mounts."""
    sources = [volume.get("persistentVolumeClaim") for volume in pod.spec.get("volumes") or []]
    return [source["claimName"] for source in sources if source]


def template_specs(job: Workload) -> list[Object]:
    """Return the pod spec of each of the job's roles."""
    return [role.template["spec"] for role in job.roles]


def first_template(job: Workload) -> JobPod:
    """Return the pod template of the first role that trains; UserError if the roles are unknown."""
    roles = [role for role in job.roles if role.trains] or job.roles
    if not roles:
        raise UserError(f"{job.title}: its pod template is unknown", code=CANNOT_SEE)
    return JobPod(roles[0].template, job)
