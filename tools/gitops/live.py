"""The runs in a cluster: Flux's Kustomizations and the jobs that they created."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.gitops.run_file import JOBS, RunFile
from tools.kube import Kubectl, Object
from tools.kube.selectors import labels_of
from tools.workload import Workload, kinds

KUSTOMIZATIONS = "kustomizations.kustomize.toolkit.fluxcd.io"
MADE_BY = "kustomize.toolkit.fluxcd.io/name"  # Flux's label on what it applies
RUNS = "runs"  # the Kustomization that applies the runs' files
RESOURCES = {one.kind: one.resource for one in kinds.KINDS if one.kind in JOBS}


@dataclass(frozen=True)
class Live:
    """One run in the cluster. Objects that do not exist are None."""

    name: str
    kustomization: Object | None
    job: Workload | None

    @property
    def flux(self) -> str:
        """The state of the Kustomization: Ready, not Ready, waiting, suspended or `not there`."""
        if self.kustomization is None:
            return "not there"
        if self.kustomization["spec"].get("suspend"):
            return "suspended"
        return {"True": "Ready", "False": "not Ready"}.get(
            str(_condition(self.kustomization, "Ready").get("status")), "waiting"
        )

    @property
    def state(self) -> str:
        """The job's state as its controller reports it, `New` before the first report, or `no job`."""
        return self.job.state if self.job is not None else "no job"

    @property
    def message(self) -> str:
        """Why the job failed, or why Flux has not finished; empty where nothing is wrong."""
        failed = self.job.condition("Failed") if self.job is not None else None
        if failed is not None:
            return str(failed.get("message", ""))
        if self.kustomization is not None and self.flux in ("not Ready", "waiting"):
            return str(_condition(self.kustomization, "Ready").get("message", ""))
        return ""


def look(context: str | None, namespace: str, files: Sequence[RunFile]) -> list[Live]:
    """Return the runs of `files` and the runs in the team's namespace that have no file, by name.

    Raises UserError, with exit code 3 where the cluster does not answer or denies access.
    """
    kubectl = Kubectl(context, namespace)
    every = {str(item["metadata"]["name"]): item for item in kubectl.items(KUSTOMIZATIONS)}
    made = {name: item for name, item in every.items() if labels_of(item).get(MADE_BY) == RUNS}
    jobs: dict[str, Workload | None] = {}
    for kind in sorted({one.kind for one in (*files, *(RunFile("", {}, item) for item in made.values()))}):
        for item in kubectl.items(RESOURCES[kind]):
            owner = labels_of(item).get(MADE_BY)
            if owner:
                jobs[str(owner)] = kinds.of(item)
    names = sorted({*(one.name for one in files), *made})
    return [Live(name, made.get(name), jobs.get(name)) for name in names]


def _condition(item: Object, kind: str) -> Object:
    found = (item.get("status") or {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind), {})
