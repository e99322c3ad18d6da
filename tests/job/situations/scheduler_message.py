"""Situations of pods that have room by our arithmetic, but that the scheduler does not place."""

from __future__ import annotations

from tests.job.corpus import CANNOT_TELL, G5, situation
from tests.job.world import World

SPREAD = "node(s) didn't match pod topology spread constraints"


@situation(CANNOT_TELL, G5)
def karpenter_is_not_the_scheduler(world: World) -> None:
    """Karpenter's events have the same reason, but are about nodes that do not exist yet."""
    world.pending(3)
    world.event("Pod", world.name(3), "FailedScheduling", f"would violate: {SPREAD}")
    world.events[-1]["source"] = {"component": "karpenter"}


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


@situation("unschedulable/cpu", G5)
def the_claim_is_not_allocated_because_the_pod_has_no_room(world: World) -> None:
    """The scheduler allocates devices once it has found a node, but CPUs are missing."""
    _claimed(world, "eight-gpus", resourceClaimTemplateName="eight-gpus")
    world.pending(*range(4), message="0/4 nodes are available: 4 Insufficient cpu.")
    for pod in world.pods:
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500"}}
