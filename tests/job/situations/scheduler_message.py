"""Situations of pods that have room by our arithmetic: the scheduler's message says what excludes the nodes."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from functools import partial
from typing import Any

from tests.job.corpus import CANNOT_TELL, CPU, G5, HEALTHY, P5, planted, situation
from tests.job.world import World

Object = dict[str, Any]
ONE, ALL_OF_TWO, ALL_OF_FOUR = (3,), (0, 1), (0, 1, 2, 3)  # the pods that wait
PREEMPTION = " preemption: 0/4 nodes are available: 1 No preemption victims found for incoming pod, 3 Preemption is not helpful for scheduling."
SPREAD = "node(s) didn't match pod topology spread constraints"

# What kube-scheduler 1.36 writes: name, kind, cell, pods that wait, message.
MESSAGES: tuple[tuple[str, str, str, tuple[int, ...], str], ...] = (
    ("the_emptier_zone_is_full", "spread", G5, ONE, f"0/4 nodes are available: 1 {SPREAD}, 3 Insufficient nvidia.com/gpu.{PREEMPTION}"),
    ("the_emptier_zone_is_tainted", "spread", G5, ONE, f"0/4 nodes are available: 2 node(s) had untolerated taint(s), 2 {SPREAD}."),
    ("fewer_zones_than_asked", "spread", CPU, (1,), f"0/2 nodes are available: 2 {SPREAD}."),
    ("the_nodes_have_no_such_label", "spread", CPU, ALL_OF_TWO, f"0/2 nodes are available: 2 {SPREAD} (missing required label)."),
    ("a_block_has_more_of_it_already", "spread", P5, ONE, f"0/5 nodes are available: 1 node(s) were unschedulable, 4 {SPREAD}."),
    (
        "nodes_that_the_pod_does_not_select_count_with_ignore", "spread", G5, ONE,
        f"0/5 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 4 {SPREAD}.",
    ),
    (
        "the_pod_wants_to_be_with_a_cache_that_is_not_there", "together", CPU, ALL_OF_TWO,
        "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.",
    ),
    (
        "the_cache_is_in_another_namespace", "together", CPU, (1,),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod affinity rules.",
    ),
    (
        "a_pod_of_others_wants_to_be_alone", "apart", CPU, (1,),
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules.",
    ),
    ("one_pod_a_zone", "apart", G5, ONE, "0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."),
    (
        "the_node_is_not_for_those_with_a_database", "apart", CPU, (1,),
        "0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 1 node(s) were unschedulable.",
    ),
    (
        "pods_exclude_each_other", "apart", CPU, (1,),
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
    ),
    (
        "the_host_port_is_taken", "ports", CPU, (1,),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
    ),
    (
        "the_host_network_makes_every_port_one_of_the_host", "ports", CPU, ALL_OF_TWO,
        "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports.",
    ),
    (
        "a_claim_that_one_pod_alone_may_mount", "volume", CPU, (1,),
        "0/2 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.",
    ),
    ("too_many_volumes_on_the_nodes", "volume-limit", CPU, ALL_OF_TWO, "0/2 nodes are available: 2 node(s) exceed max volume count."),
    (
        "the_devices_are_claimed_by_others", "resource-claim", G5, ALL_OF_FOUR,
        "0/4 nodes are available: 4 cannot allocate all claims. still not schedulable, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.",
    ),
    (
        "the_class_of_devices_does_not_exist", "resource-claim", G5, ALL_OF_FOUR,
        "0/4 nodes are available: request gpus: device class gpu.nvidia.com does not exist. no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.",
    ),
    (
        "the_claim_of_the_template_is_not_there_yet", "resource-claim", G5, ALL_OF_FOUR,
        '0/4 nodes are available: waiting for dynamic resource controller to create the resourceclaim "gpus-x7k2p".',
    ),
    (
        "the_claims_devices_are_on_a_node_that_is_not_the_pods", "device-place", G5, ALL_OF_FOUR,
        "0/4 nodes are available: 4 resourceclaim not available on the node. still not schedulable.",
    ),
)  # fmt: skip


def _waiting(world: World, pods: tuple[int, ...], message: str) -> None:
    world.pending(*pods, message=message)


for name, kind, cell, pods, message in MESSAGES:
    planted(name, f"unschedulable/{kind}", partial(_waiting, pods=pods, message=message), cell)


@situation("unschedulable/spread", G5)
def only_an_event_has_the_message(world: World) -> None:
    world.pending(3)
    world.event("Pod", world.name(3), "FailedScheduling", f"0/4 nodes are available: 4 {SPREAD}.")


@situation(CANNOT_TELL, G5)
def karpenter_is_not_the_scheduler(world: World) -> None:
    """Karpenter's events have the same reason, and are about nodes that do not exist yet."""
    world.pending(3)
    world.event("Pod", world.name(3), "FailedScheduling", f"would violate: {SPREAD}")
    world.events[-1]["source"] = {"component": "karpenter"}


@situation(HEALTHY, G5)
def the_scheduler_tries_a_new_pod_again(world: World) -> None:
    """The message may be about a pod of the try before, which is gone by now."""
    world.pending(
        3, seconds=6, message="0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."
    )


@situation("unschedulable/nvidia.com/gpu", G5)
def apart_and_the_last_node_is_taken(world: World) -> None:
    """GPUs are missing on every node: that is computed, and comes before the scheduler's message."""
    world.pending(
        3,
        message="0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) didn't match pod anti-affinity rules.",
    )
    world.hold("node-3", "notebook", gpu="8")


@situation(CANNOT_TELL, G5)
def the_message_names_a_rule_that_is_computed(world: World) -> None:
    """The scheduler's state is behind, or a plugin of its own counts otherwise."""
    world.pending(3, message="0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")


@situation("unschedulable/apart", G5)
def a_gang_waits_for_nodes_without_the_others(world: World) -> None:
    """Volcano quotes the same plugins; its PodGroup says only that the group waits."""
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


# ---- ResourceClaims that do not exist: kube-scheduler does not try such a pod, and writes no message


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
    """The scheduler allocates when it has found a node: here the processors are what is missing."""
    _claimed(world, "eight-gpus", resourceClaimTemplateName="eight-gpus")
    world.pending(*range(4), message="0/4 nodes are available: 4 Insufficient cpu.")
    for pod in world.pods:
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500"}}
