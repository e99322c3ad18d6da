"""What Volcano makes of a Job (batch.volcano.sh/v1alpha1): its pods and their names.

Follows github.com/volcano-sh/volcano, pkg/controllers/job: job_controller_util.go (createJobPod,
MakePodName), plugins/svc/svc.go (host name and subdomain of a pod) and plugins/env/env.go. TorchX creates
such jobs, with one task for each replica.
"""

from __future__ import annotations

from tools.kube.manifests import Object
from tools.simulator.operator_pods import Pod, check_size

GROUP = "batch.volcano.sh/"
NAMES_PLUGIN = "svc"  # gives each pod its name as host name, and the job's as subdomain


def is_job(item: Object) -> bool:
    return item.get("kind") == "Job" and str(item.get("apiVersion", "")).startswith(GROUP)


def has_names(job: Object) -> bool:
    """Return whether the job's pods can find each other by name."""
    return NAMES_PLUGIN in (job["spec"].get("plugins") or {})


def pods(job: Object) -> list[Pod]:
    """Return the pods of `job`, ordered by task, then by index."""
    check_size(job["spec"].get("tasks") or [])
    return [
        _pod(job, task, number, index)
        for number, task in enumerate(job["spec"].get("tasks") or [])
        for index in range(int(task.get("replicas", 1)))
    ]


def _pod(job: Object, task: Object, number: int, index: int) -> Pod:
    name, task_name = job["metadata"]["name"], task.get("name") or f"default{number}"
    metadata = task["template"].get("metadata") or {}
    given = [{"name": variable, "value": str(index)} for variable in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    containers = [
        {**container, "env": [*(container.get("env") or []), *given]}
        for container in task["template"]["spec"]["containers"]
    ]
    spec = {**task["template"]["spec"], "containers": containers}
    policy = str(spec.get("restartPolicy") or "OnFailure")
    return Pod(
        name=f"{name}-{task_name}-{index}",
        namespace=job["metadata"].get("namespace") or "default",
        job=name,
        replica_type=task_name,
        index=index,
        labels={
            **(metadata.get("labels") or {}),
            "volcano.sh/job-name": name,
            "volcano.sh/task-spec": task_name,
        },
        annotations=dict(metadata.get("annotations") or {}),
        replica_restart_policy=policy,
        spec=spec,
    )
