"""Situations of pods that have room by our arithmetic, but that the scheduler does not place."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from typing import Any

from tests.job.corpus import CANNOT_TELL, G5, HEALTHY, situation
from tests.job.world import World

Object = dict[str, Any]
SPREAD = "node(s) didn't match pod topology spread constraints"


@situation("unschedulable/spread", G5)
def only_an_event_has_the_message(world: World) -> None:
    world.pending(3)
    world.event("Pod", world.name(3), "FailedScheduling", f"0/4 nodes are available: 4 {SPREAD}.")


@situation(CANNOT_TELL, G5)
def karpenter_is_not_the_scheduler(world: World) -> None:
    """Karpenter's events have the same reason, but are about nodes that do not exist yet."""
    world.pending(3)
    world.event("Pod", world.name(3), "FailedScheduling", f"would violate: {SPREAD}")
    world.events[-1]["source"] = {"component": "karpenter"}


@situation(HEALTHY, G5)
def the_scheduler_tries_a_new_pod_again(world: World) -> None:
    """The message may be about a pod of the previous attempt, which is gone by now."""
    world.pending(
        3, seconds=6, message="0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."
    )


@situation("unschedulable/nvidia.com/gpu", G5)
def apart_and_the_last_node_is_taken(world: World) -> None:
    """No node has enough GPUs. What is computed comes before the scheduler's message."""
    world.pending(
        3,
        message="0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) didn't match pod anti-affinity rules.",
    )
    world.hold("node-3", "notebook", gpu="8")


@situation(CANNOT_TELL, G5)
def the_message_names_a_rule_that_is_computed(world: World) -> None:
    """The scheduler's message is outdated, or a plugin counts in another way."""
    world.pending(3, message="0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")


@situation("unschedulable/apart", G5)
def a_gang_waits_for_nodes_without_the_others(world: World) -> None:
    """Volcano uses the same plugins. Its PodGroup only says that the group waits."""
    world.pending(
        *range(4), message="all nodes are unavailable: 4 node(s) didn't match pod anti-affinity rules."
    )
    for pod in world.pods:
        pod["spec"]["schedulerName"] = "volcano"
    status = {
        "phase": "Inqueue",
        "conditions": [{"type": "Unschedulable", "status": "True", "message": "4 Pending"}],
    }
    metadata = {"name": world.job["metadata"]["name"]}
    world.objects["PodGroup"] = [{"metadata": metadata, "spec": {"minMember": 4}, "status": status}]


# ---- ResourceClaims that do not exist: kube-scheduler writes no message about such a pod


def _claimed(world: World, *existing: str, **named: str) -> None:
    world.pending(*range(4), asked=False)
    for pod in world.pods:
        pod["spec"]["resourceClaims"] = [{"name": "gpus", **named}]
    for kind in ("ResourceClaim", "ResourceClaimTemplate"):
        world.objects[kind] = [{"metadata": {"name": name}} for name in existing]


@situation("unschedulable/resource-claim", G5)
def the_claim_of_devices_was_never_made(world: World) -> None:
    _claimed(world, "eight-gpu", resourceClaimName="eight-gpus")


@situation("unschedulable/resource-claim", G5)
def the_template_of_the_claim_was_never_made(world: World) -> None:
    _claimed(world, resourceClaimTemplateName="eight-gpus")


@situation("unschedulable/cpu", G5)
def the_claim_is_not_allocated_because_the_pod_has_no_room(world: World) -> None:
    """The scheduler allocates devices once it has found a node, but CPUs are missing."""
    _claimed(world, "eight-gpus", resourceClaimTemplateName="eight-gpus")
    world.pending(*range(4), message="0/4 nodes are available: 4 Insufficient cpu.")
    for pod in world.pods:
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500"}}
