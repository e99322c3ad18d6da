"""Situations of unhealthy nodes, as their conditions, labels and events show them."""

from __future__ import annotations

from tests.job.corpus import G5, HEALTHY, P5, PEER, TORCHRUN, situation
from tests.job.world import World, ago

HYPERPOD = "sagemaker.amazonaws.com/"
XID = "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus."


def _silent(world: World, index: int) -> None:
    """The node's kubelet and the job have stopped reporting."""
    said = {
        "status": "Unknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": ago(70),
    }
    world.nodes[index]["status"]["conditions"][0] |= said
    world.training(silent=90, ranks=32)


@situation("node-lost", P5)
def the_node_is_not_ready_and_nothing_says_why(world: World) -> None:
    _silent(world, 1)
    world.event("Node", "node-1", "NodeNotReady", "Node node-1 status is now: NodeNotReady", warning=False)


@situation("device", P5)
def an_xid_before_the_node_went_silent(world: World) -> None:
    _silent(world, 1)
    world.event("Node", "node-1", "NvidiaXID79Error", XID, seconds=120)


@situation("node-lost", P5)
def an_xid_of_yesterday_before_the_node_went_silent(world: World) -> None:
    _silent(world, 1)
    world.event("Node", "node-1", "NvidiaXID31Warning", "NVRM: Xid 31", seconds=80000)


@situation("device", P5)
def the_node_was_taken_away_after_an_xid(world: World) -> None:
    world.nodes = [one for one in world.nodes if one["metadata"]["name"] != "node-2"]
    world.event("Node", "node-2", "NvidiaXID79Error", XID, seconds=400)
    world.event(
        "Node", "node-2", "RemovingNode", "Node node-2 event: Removing Node from Controller", warning=False
    )


@situation("device", P5)
def hyperpod_drains_a_node_with_a_broken_card(world: World) -> None:
    world.disrupted(1, "EvictionByEvictionAPI", "Eviction API: evicting")
    labels = {
        "node-health-status": "UnschedulablePendingReplacement",
        "fault-types": "NvidiaErrorTerminate",
        "fault-reasons": "XID_79",
    }
    world.nodes[1]["metadata"]["labels"] |= {HYPERPOD + key: value for key, value in labels.items()}


@situation("node-unhealthy", P5)
def hyperpod_reboots_a_node_for_its_network(world: World) -> None:
    world.disrupted(1, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    labels = {"node-health-status": "UnschedulablePendingReboot", "fault-types": "EFAError"}
    world.nodes[1]["metadata"]["labels"] |= {HYPERPOD + key: value for key, value in labels.items()}


@situation("node-unhealthy", P5)
def the_nodes_network_is_not_ready_and_a_rank_hangs(world: World) -> None:
    world.end("Failed")
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 600000 ms"
    for index in range(4):
        world.ended(index, 1, f"[rank{index * 8}]: [E1121 ProcessGroupNCCL.cpp:607] {text}", *TORCHRUN)
    world.nodes[2]["status"]["conditions"].append(
        {
            "type": "NetworkingReady",
            "status": "False",
            "reason": "IPAMDNotReady",
            "message": "IPAM-D has failed",
        }
    )


@situation("device", P5)
def a_neuron_error_and_the_pod_was_killed(world: World) -> None:
    world.crash_looping(2, 137, reason="Error")
    world.event("Node", "node-2", "NeuronHBMUncorrectableError", "uncorrectable HBM error on nd3", seconds=90)


@situation("node-unhealthy", G5)
def the_problem_detector_has_seen_a_read_only_file_system(world: World) -> None:
    world.crash_looping(2, 137, reason="Error")
    world.nodes[2]["status"]["conditions"].append(
        {
            "type": "ReadonlyFilesystem",
            "status": "True",
            "reason": "FilesystemIsReadOnly",
            "message": "remounted ro",
        }
    )


@situation("killed", G5)
def a_condition_that_is_true_when_all_is_well(world: World) -> None:
    world.crash_looping(2, 137, reason="Error")
    world.nodes[2]["status"]["conditions"].append(
        {"type": "EtcdIsVoter", "status": "True", "reason": "MemberNotLearner", "message": "a voting member"}
    )


@situation("drained", G5)
def a_spot_node_is_taken_back(world: World) -> None:
    world.disrupted(1, "EvictionByEvictionAPI", "Eviction API: evicting")
    world.event(
        "Node", "node-1", "SpotInterruption", "Spot ITN received. Instance will be interrupted", seconds=150
    )


@situation("oom-device", P5)
def a_rank_out_of_memory_on_a_node_with_a_warning(world: World) -> None:
    """The process's own error outranks an event of its node."""
    world.end("Failed")
    world.ended(
        1, 1, "[rank9]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", *TORCHRUN
    )
    for index in (0, 2, 3):
        world.ended(index, 1, PEER, *TORCHRUN, seconds=50)
    world.event("Node", "node-1", "NvidiaXID13Warning", "NVRM: Xid 13", seconds=80)


@situation(HEALTHY, P5)
def a_warning_of_the_cards_and_it_trains(world: World) -> None:
    world.training(ranks=32)
    world.event("Node", "node-1", "NvidiaXID13Warning", "NVRM: Xid 13", seconds=80)
    world.event("Node", "node-2", "EFAErrorMetric", "EFA reported an error", seconds=80)
    labels = {"deep-health-check-status": "Passed", "node-health-status": "Schedulable"}
    for one in world.nodes:
        one["metadata"]["labels"] |= {HYPERPOD + key: value for key, value in labels.items()}


@situation(HEALTHY, P5)
def node_agents_are_content_with_every_part(world: World) -> None:
    parts = ("Networking", "Storage", "Kernel", "ContainerRuntime", "AcceleratedHardware")
    for one in world.nodes:
        one["status"]["conditions"] += [{"type": f"{part}Ready", "status": "True"} for part in parts]
        one["status"]["conditions"] += [{"type": "KernelDeadlock", "status": "False"}]
    world.training(ranks=32)
