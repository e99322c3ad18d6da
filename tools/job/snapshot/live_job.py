"""A job of a cluster with the object that made it, and the kinds by which users name jobs."""

from dataclasses import dataclass
from typing import Any

from tools.job.snapshot.kinds import NOT_READ, OWNERS
from tools.kube import Object, name_of
from tools.workload import JobState, Workload, kinds

LEDGER = "trainyard/attempts"  # annotation of a job: its failed attempts as JSON
APP_WRAPPER = "AppWrapper.workload.codeflare.dev"
# status.phase of an AppWrapper whose job does not exist: it was not created yet, or was deleted again.
# Source: api/v1beta2/appwrapper_types.go of github.com/project-codeflare/appwrapper, v1.1.2.
PHASES = {
    "Suspended": JobState.SUSPENDED,
    "Suspending": JobState.SUSPENDED,
    "Failed": JobState.FAILED,
    "Succeeded": JobState.SUCCEEDED,
}
# kubectl's full name of each kind that is read, by kind and API group.
READ = {f"{one.kind}.{one.api.rpartition('/')[0]}": one.resource for one in kinds.KINDS}
WRAPPERS = {APP_WRAPPER: "appwrappers.workload.codeflare.dev"}
EVERY = {**READ, **WRAPPERS, **NOT_READ}
SHORT = {"vcjob": "Job.batch.volcano.sh", "vj": "Job.batch.volcano.sh"}  # of Volcano's CRD
READ_KINDS = ", ".join(dict.fromkeys(key.partition(".")[0] for key in READ | WRAPPERS))


@dataclass(frozen=True)
class LiveJob:
    """A job of a cluster, and the topmost object that made it, None if a user made the job itself.

    If the owner's kind is not read, only the reference in the job is known: it has no spec. The job of an
    AppWrapper that waits does not exist: then `workload` is its template, which has no UID.
    """

    workload: Workload
    owner: Object | None = None

    @property
    def top(self) -> Object:
        """The object that a user made: what stops or runs the job for good."""
        return self.owner or self.workload.item

    @property
    def title(self) -> str:
        """`AppWrapper/x` or `JobSet/x`: a kind and name by which a command finds the job."""
        return title(self.top)

    @property
    def resource(self) -> str | None:
        """kubectl's full name of the topmost object's kind, None if that is not known."""
        return EVERY.get(kind_of(self.top))

    @property
    def namespace(self) -> str:
        """The namespace, empty if neither the job nor its owner says it."""
        metadata = self.workload.item["metadata"]
        return str(metadata.get("namespace") or self.top["metadata"].get("namespace") or "")

    @property
    def uids(self) -> list[str]:
        """The UIDs of the job and its owner."""
        parts = [self.workload.item, *filter(None, [self.owner])]
        return [str(one["metadata"]["uid"]) for one in parts if one["metadata"].get("uid")]

    @property
    def state(self) -> str:
        """The job's state: Succeeded, Failed, Suspended, Restarting, Running, Created or New."""
        own = self.workload.state
        return PHASES.get(self._phase, own) if own == JobState.NEW else own

    def condition(self, state: str) -> Object | None:
        """Return the condition by which the job is Succeeded, Failed or Suspended, None if it is not."""
        if self.state != state:
            return None
        job = self.workload
        kinds_of = [kind for kind, means in job.states.items() if means == state] or [state, "Completed"]
        known = next(filter(None, map(job.condition, kinds_of)), None)
        said = job.status.get("state")  # of Volcano, which has one state and no conditions
        said = said if isinstance(said, dict) else {"phase": self._phase}
        return known or {"type": state, "status": "True", "reason": said.get("phase"), **said}

    @property
    def _phase(self) -> str:
        status = (self.owner or {}).get("status")
        return str(status.get("phase")) if isinstance(status, dict) else ""

    @property
    def suspended(self) -> bool:
        """Whether the job, or the AppWrapper around it, asks not to run now."""
        waits = kind_of(self.top) == APP_WRAPPER and (self.top.get("spec") or {}).get("suspend") is True
        return waits or self.workload.suspended

    @property
    def suspension(self) -> str:
        """What says that the job is suspended: a field, or the state of a kind that has no such field."""
        return f"{self._suspend_path}: true" if self.suspended else f"state {self.state}"

    @property
    def resumption(self) -> str:
        """How a suspended job is continued."""
        if self.workload.suspend_path or self.owner:
            return f"set {self._suspend_path} to false; the job continues from its newest checkpoint"
        return f"vcctl job resume --name {self.workload.name}; the job continues from its newest checkpoint"

    @property
    def _suspend_path(self) -> str:
        known = kinds.of(self.top)
        return ".".join(known.suspend_path if known else ("spec", "suspend"))

    @property
    def is_inner(self) -> bool:
        """Whether the job is a part of another job that is read: the JobSet of a TrainJob, a JobSet's Job."""
        return self.owner is not None and "spec" in self.owner and kinds.of(self.owner) is not None

    def is_called(self, name: str, among: set[str] | None = None) -> bool:
        """Return whether the job or its owner has this name and, if given, one of these kinds."""
        parts: list[Any] = [self.workload.item, *filter(None, [self.owner])]
        return any(name_of(one) == name and (among is None or kind_of(one) in among) for one in parts)


def kind_of(item: Object) -> str:
    """Return `Job.batch`: an object's kind with its API group."""
    return f"{item.get('kind')}.{str(item.get('apiVersion')).rpartition('/')[0]}".rstrip(".")


def title(item: Object) -> str:
    """Return `JobSet/x`."""
    return f"{item.get('kind')}/{name_of(item)}"


def kinds_called(word: str) -> set[str]:
    """Return the kinds that a word means, as kubectl reads it: `job`, `jobs`, `jobs.batch`, `JobSet`."""
    wanted = word.lower()
    return {
        kind
        for kind, resource in {**EVERY, **OWNERS}.items()
        if wanted in (kind.partition(".")[0].lower(), kind.lower(), resource.partition(".")[0], resource)
    } | ({SHORT[wanted]} if wanted in SHORT else set())
