"""Situations of jobs that wait for a queue, a gang scheduler or an autoscaler."""

from __future__ import annotations

from typing import Any

from tests.job.corpus import G5, HEALTHY, P5, situation
from tests.job.world import World

Object = dict[str, Any]


def _queued(world: World, *conditions: Object, spec: Object | None = None, checks: Object | None = None) -> None:
    """Kueue holds the job; its LocalQueue and ClusterQueue are active."""
    world.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team-a"}
    world.job["spec"].setdefault("runPolicy", {})["suspend"] = True
    world.pods = []
    active = {"conditions": [{"type": "Active", "status": "True", "reason": "Ready"}]}
    world.objects["LocalQueue"] = [
        {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "research"}, "status": active}
    ]
    world.objects["ClusterQueue"] = [{"metadata": {"name": "research"}, "spec": {}, "status": active}]
    status = {"conditions": list(conditions), "admissionChecks": [checks] if checks else []}
    metadata = {"name": "pytorchjob-x", "ownerReferences": [{"uid": "uid-job"}]}
    world.objects["Workload"] = [{"metadata": metadata, "spec": spec or {}, "status": status}]


@situation("queue", P5)
def the_local_queue_is_not_active(world: World) -> None:
    message = "Can't submit new workloads to clusterQueue"
    _queued(world, {"type": "QuotaReserved", "status": "False", "message": "LocalQueue team-a is inactive"})
    inactive = {"type": "Active", "status": "False", "reason": "ClusterQueueIsInactive", "message": message}
    world.objects["LocalQueue"][0]["status"] = {"conditions": [inactive]}


@situation("queue", P5)
def the_cluster_queue_lacks_its_flavor(world: World) -> None:
    _queued(world)
    message = "Can't admit new workloads: references missing ResourceFlavor(s): p5."
    inactive = {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": message}
    world.objects["ClusterQueue"][0]["status"] = {"conditions": [inactive]}


@situation("queue", P5)
def the_queue_is_on_hold(world: World) -> None:
    _queued(world)
    world.objects["LocalQueue"][0]["spec"]["stopPolicy"] = "Hold"


@situation("queue", P5)
def the_admission_check_waits_for_machines(world: World) -> None:
    reserved = {
        "type": "QuotaReserved",
        "status": "True",
        "message": "Quota reserved in ClusterQueue research",
    }
    check = {
        "name": "prov",
        "state": "Pending",
        "message": "Waiting for resources. Currently there are not enough",
    }
    _queued(world, reserved, checks=check)


@situation("queue", P5)
def the_workload_was_deactivated(world: World) -> None:
    said = {
        "type": "Evicted",
        "status": "True",
        "reason": "DeactivatedDueToRequeuingLimitExceeded",
        "message": "x",
    }
    _queued(world, said, spec={"active": False})


@situation("queue")
def kueue_does_not_know_this_kind_of_job(world: World) -> None:
    _queued(world)
    world.objects["Workload"] = []


# ---- gangs


def _gang(world: World, scheduler: str, group: Object, **labels: str) -> None:
    """All pods exist and would fit, but none has a node."""
    world.pending(*range(4))
    for pod in world.pods:
        pod["spec"]["schedulerName"] = scheduler
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], **labels}
    metadata = {"name": world.job["metadata"]["name"], **group.pop("metadata", {})}
    world.objects["PodGroup"] = [{"metadata": metadata, **group}]


def _volcano(world: World, **spec: Any) -> None:
    message = "4/4 tasks in gang unschedulable: pod group is not ready, 4 Pending, 4 minAvailable"
    said = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": message}
    status = {"phase": "Inqueue", "conditions": [said]}
    _gang(world, "volcano", {"spec": {"minMember": 4, **spec}, "status": status})


@situation("queue", G5)
def volcano_says_no_and_each_pod_would_fit(world: World) -> None:
    _volcano(world, queue="default")


@situation("queue", G5)
def the_volcano_queue_does_not_exist(world: World) -> None:
    _volcano(world, queue="training")
    world.objects["Queue"] = [{"metadata": {"name": "default"}, "status": {"state": "Open"}}]


@situation("queue", G5)
def the_volcano_queue_is_closed(world: World) -> None:
    _volcano(world, queue="training")
    world.objects["Queue"] = [{"metadata": {"name": "training"}, "status": {"state": "Closed"}}]


@situation("queue", G5)
def the_volcano_queue_has_given_out_its_cards(world: World) -> None:
    _volcano(world, queue="training", minResources={"nvidia.com/gpu": "32"})
    world.objects["Queue"] = [
        {
            "metadata": {"name": "training"},
            "spec": {"capability": {"nvidia.com/gpu": "40"}},
            "status": {"state": "Open", "allocated": {"nvidia.com/gpu": "16"}},
        }
    ]


@situation("unschedulable/nvidia.com/gpu", G5)
def the_volcano_queue_is_well_and_the_nodes_are_full(world: World) -> None:
    _volcano(world, queue="training")
    world.objects["Queue"] = [{"metadata": {"name": "training"}, "status": {"state": "Open"}}]
    world.hold("node-3", "notebook", gpu="1")


@situation(HEALTHY, G5)
def the_gang_was_placed_after_all(world: World) -> None:
    """KAI-Scheduler #1888: the condition remains although the pods run."""
    _volcano(world, queue="training")
    world.objects["PodGroup"][0]["status"]["phase"] = "Running"
    for index in range(4):
        world.running(index)
    world.training(ranks=32)


def _kai(world: World, queue: str, *queues: Object, told: bool = True) -> None:
    message = "Workload requested 32 GPUs, but team-a quota is 16 GPUs, while 16 GPUs are already allocated."
    said = {"type": "UnschedulableOnNodePool", "status": "True", "reason": "OverLimit", "message": message}
    status = {"schedulingConditions": [said] if told else []}
    group = {"metadata": {"name": "pg-x-1"}, "spec": {"minMember": 4, "queue": queue}, "status": status}
    _gang(world, "kai-scheduler", group, **{"kai.scheduler/queue": queue})
    for pod in world.pods:
        pod["metadata"]["annotations"] = {"pod-group-name": "pg-x-1"}
    if queues:
        world.objects["Queue"] = list(queues)


def _kai_queue(name: str, parent: str | None = None, limit: int = -1, given: str = "0") -> Object:
    spec = {
        "resources": {"gpu": {"quota": 16, "limit": limit}},
        **({"parentQueue": parent} if parent else {}),
    }
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocated": {"nvidia.com/gpu": given}}}


@situation("queue", G5)
def kai_says_no(world: World) -> None:
    _kai(world, "team-a", _kai_queue("all"), _kai_queue("team-a", "all"))


@situation("queue", G5)
def the_kai_queue_does_not_exist(world: World) -> None:
    _kai(world, "team-b", _kai_queue("all"), _kai_queue("team-a", "all"), told=False)


@situation("queue", G5)
def the_kai_queue_is_a_parent(world: World) -> None:
    """KAI-Scheduler #621: pods of a queue that has child queues are never placed."""
    _kai(world, "all", _kai_queue("all"), _kai_queue("team-a", "all"), told=False)


@situation("queue", G5)
def the_kai_queue_is_at_its_limit(world: World) -> None:
    _kai(world, "team-a", _kai_queue("all"), _kai_queue("team-a", "all", 16, "16"), told=False)


# ---- autoscalers


def _full(world: World, *events: tuple[str, str, float]) -> None:
    """All GPUs are used. `events` are an autoscaler's: reason, message, seconds ago."""
    world.pending(*range(4), seconds=1000)
    for index in range(4):
        world.hold(f"node-{index}", f"notebook-{index}", gpu="8")
        for reason, message, seconds in events:
            world.event("Pod", world.name(index), reason, message, warning=False, seconds=seconds)


NO_CAPACITY = (
    "NodeClaim g5-x7k2p event: creating instance, insufficient capacity, with fleet error(s),"
    " InsufficientInstanceCapacity: We currently do not have sufficient g5.48xlarge capacity"
)


@situation("unschedulable/nvidia.com/gpu", G5)
def karpenters_machine_is_not_to_be_had(world: World) -> None:
    _full(world, ("Nominated", "Pod should schedule on: nodeclaim/g5-x7k2p", 60))
    world.event("NodeClaim", "g5-x7k2p", "InsufficientCapacityError", NO_CAPACITY, seconds=50)


@situation("unschedulable/nvidia.com/gpu", G5)
def the_nodeclaims_own_condition_says_so(world: World) -> None:
    _full(world, ("Nominated", "Pod should schedule on: nodeclaim/g5-x7k2p", 60))
    said = {"type": "Launched", "status": "Unknown", "reason": "LaunchFailed", "message": NO_CAPACITY}
    world.objects["NodeClaim"] = [{"metadata": {"name": "g5-x7k2p"}, "status": {"conditions": [said]}}]


@situation("unschedulable/nvidia.com/gpu", G5)
def karpenter_tries_again_and_again(world: World) -> None:
    """karpenter-provider-aws #5578: a new NodeClaim every two minutes, but no node."""
    _full(
        world,
        ("Nominated", "Pod should schedule on: nodeclaim/g5-mf7bc", 420),
        ("Nominated", "Pod should schedule on: nodeclaim/g5-vsvqs", 270),
        ("Nominated", "Pod should schedule on: nodeclaim/g5-w9g6f", 90),
    )


@situation(HEALTHY, G5)
def karpenters_machine_starts(world: World) -> None:
    _full(world, ("Nominated", "Pod should schedule on: nodeclaim/g5-x7k2p", 60))
    said = {"type": "Launched", "status": "True", "reason": "Launched"}
    world.objects["NodeClaim"] = [{"metadata": {"name": "g5-x7k2p"}, "status": {"conditions": [said]}}]


@situation("unschedulable/nvidia.com/gpu", G5)
def karpenter_finds_no_fitting_pool(world: World) -> None:
    message = (
        'Failed to schedule pod, incompatible with nodepool "cpu", daemonset overhead={"cpu":"150m","pods":"4"},'
        ' no instance type satisfied resources {"nvidia.com/gpu":"8"}'
    )
    _full(world, ("FailedScheduling", message, 20))
    for event in world.events:
        event["source"] = {"component": "karpenter"}
