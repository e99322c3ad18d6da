"""Situations without pods: suspended, queued, refused, or nobody there to make them."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, situation
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


@situation("pod-security")
def restricted_namespace(world: World) -> None:
    _refused(
        world,
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes (volume "shm")',
    )


@situation("webhook")
def webhook_without_endpoints(world: World) -> None:
    _refused(
        world,
        'Internal error occurred: failed calling webhook "pods.policy.example": failed to call webhook: Post '
        '"https://policy.kyverno.svc:443/validate": no endpoints available for service "policy"',
    )


@situation("refused")
def webhook_says_no(world: World) -> None:
    _refused(
        world, 'admission webhook "policy.example" denied the request: images must come from our registry'
    )


@situation("serviceaccount-missing")
def service_account_missing(world: World) -> None:
    _refused(
        world,
        'pods "x" is forbidden: error looking up service account team-a/train: serviceaccount "train" not found',
    )


@situation("refused")
def restart_policy_misspelt(world: World) -> None:
    _refused(world, 'Pod "x" is invalid: spec.restartPolicy: Unsupported value: "OnFailur"')
