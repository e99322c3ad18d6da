"""Situations without pods: suspended, queued, refused, or no operator to create them."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, P5, situation
from tests.job.world import World


@situation("suspended")
def suspended_by_hand(world: World) -> None:
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []


@situation("queue")
def not_admitted_by_kueue(world: World) -> None:
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    message = "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor default"
    world.objects["LocalQueue"] = [{"metadata": {"name": "team-a"}}]
    world.objects["Workload"] = [
        {
            "metadata": {"name": "pytorchjob-x", "ownerReferences": [{"uid": "uid-job"}]},
            "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]},
        }
    ]


@situation("queue")
def local_queue_does_not_exist(world: World) -> None:
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-b"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    world.objects["LocalQueue"] = [{"metadata": {"name": "team-a"}}]


@situation("queue", G5)
def volcano_gang_not_admitted(world: World) -> None:
    world.only_created()
    world.pods = []
    name = world.job["metadata"]["name"]
    message = "queue resource quota insufficient"
    world.objects["PodGroup"] = [
        {
            "metadata": {"name": name},
            "spec": {"minMember": 4, "queue": "training"},
            "status": {"phase": "Pending", "conditions": [{"message": message}]},
        }
    ]


@situation("operator")
def operator_is_down(world: World) -> None:
    world.job["status"] = {}
    world.pods = []
    world.others.append(
        {
            "metadata": {"name": "training-operator-5d", "namespace": "kubeflow"},
            "spec": {"containers": [{"image": "ghcr.io/kubeflow/training-v1/training-operator:v1.9.4"}]},
            "status": {"phase": "Running", "containerStatuses": [{"ready": False}]},
        }
    )


@situation("operator")
def no_operator_at_all(world: World) -> None:
    world.job.pop("status")
    world.pods = []


def _refused(world: World, message: str) -> None:
    world.only_created()
    world.pods = []
    name = world.job["metadata"]["name"]
    world.event("PyTorchJob", name, "FailedCreatePod", f"Error creating: {message}")


@situation("quota", G5)
def quota_of_gpus_used_up(world: World) -> None:
    hard, used = {"requests.nvidia.com/gpu": "16"}, {"requests.nvidia.com/gpu": "12"}
    world.objects["ResourceQuota"] = [{"metadata": {"name": "gpus"}, "status": {"hard": hard, "used": used}}]
    _refused(
        world,
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 12, limited: 16',
    )


# ---- from reports of users of such systems


@situation("queue", P5)
def kueue_quota_is_smaller_than_the_job_will_ever_be(world: World) -> None:
    """hyperpod-cli #306: requests larger than the queue's whole quota are never admitted."""
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    message = (
        "couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in flavor p5,"
        " previously considered podsets requests (0) + current podset request (32) > maximum capacity (16)"
    )
    world.objects["LocalQueue"] = [{"metadata": {"name": "research"}}]
    status = {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]}
    metadata = {"name": "pytorchjob-y", "ownerReferences": [{"uid": "uid-job"}]}
    world.objects["Workload"] = [{"metadata": metadata, "status": status}]


@situation("queue")
def kueue_has_preempted_the_running_job(world: World) -> None:
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    world.objects["LocalQueue"] = [{"metadata": {"name": "team-a"}}]
    said = "Preempted to accommodate a workload (UID: 8f2) due to prioritization in the ClusterQueue"
    conditions = [
        {"type": "QuotaReserved", "status": "False", "message": said, "reason": "Preempted"},
        {"type": "Evicted", "status": "True", "message": said, "reason": "Preempted"},
    ]
    metadata = {"name": "pytorchjob-z", "ownerReferences": [{"uid": "uid-job"}]}
    world.objects["Workload"] = [{"metadata": metadata, "status": {"conditions": conditions}}]


@situation("refused")
def service_name_is_too_long(world: World) -> None:
    """A Service's name has at most 63 characters. The first error comes when the operator creates one."""
    world.only_created()
    world.pods = []
    message = 'Error creating: Service "x" is invalid: metadata.name: Invalid value: "x": must be no more than 63 characters'
    world.event("PyTorchJob", world.job["metadata"]["name"], "FailedCreateService", message)


@situation("quota")
def quota_is_used_up_and_may_not_be_seen(world: World) -> None:
    world.unseen["ResourceQuota"] = "forbidden"
    _refused(
        world,
        'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 12, limited: 16',
    )
