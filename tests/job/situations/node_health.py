"""Situations of unhealthy nodes, as their conditions, labels and events show them."""

from __future__ import annotations

from tests.job.corpus import P5, situation
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
    world.event("Node", "node-2", "RemovingNode", "Node node-2 event: Removing Node from Controller", warning=False)


@situation("node-unhealthy", P5)
def hyperpod_reboots_a_node_for_its_network(world: World) -> None:
    world.disrupted(1, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    labels = {"node-health-status": "UnschedulablePendingReboot", "fault-types": "EFAError"}
    world.nodes[1]["metadata"]["labels"] |= {HYPERPOD + key: value for key, value in labels.items()}


@situation("device", P5)
def a_neuron_error_and_the_pod_was_killed(world: World) -> None:
    world.crash_looping(2, 137, reason="Error")
    world.event("Node", "node-2", "NeuronHBMUncorrectableError", "uncorrectable HBM error on nd3", seconds=90)
