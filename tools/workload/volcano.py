"""Volcano's Job (batch.volcano.sh/v1alpha1), as TorchX creates it: one task for each replica.

Follows github.com/volcano-sh/volcano, pkg/controllers/job: job_controller_util.go (createJobPod,
MakePodName), plugins/svc/svc.go (host name and subdomain of a pod) and plugins/env/env.go.
"""

from __future__ import annotations

from typing import ClassVar

from tools.kube.manifests import Object
from tools.kube.shapes import TEMPLATE
from tools.workload.pod import Pod, check_size, main_container, with_environment
from tools.workload.workload import (
    CREATED,
    FAILED,
    NEW,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    RetryLimit,
    Role,
    Workload,
    label,
    number,
)

NAMES_PLUGIN = "svc"  # gives each pod its name as host name, and the job's as subdomain
LABEL = "volcano.sh/"
# status.state.phase (apis/batch/v1alpha1/job.go). An aborted job has no pods until it is resumed.
PHASES = {
    **dict.fromkeys(("Completing", "Completed"), SUCCEEDED),
    **dict.fromkeys(("Failed", "Terminating", "Terminated"), FAILED),
    **dict.fromkeys(("Aborting", "Aborted"), SUSPENDED),
    "Restarting": RESTARTING,
    "Running": RUNNING,
    "Pending": CREATED,
}


class VolcanoJob(Workload):
    """A Volcano Job: each task is a role."""

    kind = "Job"
    api = "batch.volcano.sh/v1alpha1"
    resource = "jobs.batch.volcano.sh"
    shape: ClassVar[Object] = {
        "spec!": {
            "plugins": {},
            "queue": str,
            "maxRetry": int,
            "tasks": [{"name": str, "replicas": int, "maxRetry": int, "template!": TEMPLATE}],
        }
    }
    suspend_path = ()  # Volcano suspends a job through an object of its own (bus.volcano.sh Command)

    @property
    def maker(self) -> str:
        return "Volcano"

    @property
    def nameless(self) -> tuple[str, str] | None:
        if NAMES_PLUGIN in (self.spec.get("plugins") or {}):
            return None
        return f"spec.plugins has no {NAMES_PLUGIN}", f"spec.plugins: {{{NAMES_PLUGIN}: []}}"

    @property
    def selector(self) -> dict[str, str]:
        return {f"{LABEL}job-name": self.name}

    @property
    def state(self) -> str:
        state = self.status.get("state")
        phase = state.get("phase") if isinstance(state, dict) else None
        return PHASES.get(str(phase), CREATED if self.status else NEW)

    @property
    def queue(self) -> str:
        return str(self.spec.get("queue") or "default")

    @property
    def retries(self) -> RetryLimit:
        """Return spec.maxRetry, 3 by default (pkg/webhooks/admission/jobs/mutate/mutate_job.go)."""
        limit = self.spec.get("maxRetry")
        count = 3 if limit is None else limit
        return RetryLimit("spec.maxRetry", count, limit is not None, "restarts of the job")

    def role_of(self, pod: Object) -> str:
        return label(pod, f"{LABEL}task-spec").lower()

    def index_of(self, pod: Object) -> int:
        written = label(pod, f"{LABEL}task-index")
        return number(written or str((pod.get("metadata") or {}).get("name")).rpartition("-")[2])

    def _roles(self) -> list[Role]:
        return [
            Role(
                str(task.get("name") or f"default{place}"),
                f"spec.tasks[{place}].template",
                _count(task),
                _count(task),
                task["template"],
                str(task["template"]["spec"].get("restartPolicy") or "OnFailure"),
            )
            for place, task in enumerate(self.spec.get("tasks") or [])
        ]

    def _pods(self) -> list[Pod]:
        check_size((role.replicas, role.template["spec"]) for role in self.roles)
        return [self._pod(role, index) for role in self.roles for index in range(role.replicas)]

    def _pod(self, role: Role, index: int) -> Pod:
        metadata = role.template.get("metadata") or {}
        own = f"{self.name}-{role.name}-{index}"
        given = [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
        labels = {f"{LABEL}job-name": self.name, f"{LABEL}task-spec": role.name}
        return Pod(
            name=own,
            namespace=self.namespace,
            job=self.name,
            role=role.name.lower(),
            index=index,
            labels={**(metadata.get("labels") or {}), **labels},
            annotations=dict(metadata.get("annotations") or {}),
            restart_policy=role.restart_policy,
            spec=with_environment(role.template["spec"], given),
            hosts=(own, f"{own}.{self.name}") if self.nameless is None else (),
            main=main_container(role.template),
        )


def _count(task: Object) -> int:
    count = task.get("replicas")
    return 1 if count is None else int(count)
