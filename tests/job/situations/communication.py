"""Situations of ranks that cannot reach each other: names, ports, networks, EFA."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import P5, TORCHRUN, situation
from tests.job.world import World


@situation("network-policy")
def policy_lets_nobody_in(world: World) -> None:
    world.objects["NetworkPolicy"] = [
        {"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    ]
    world.crash_looping(
        1,
        1,
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
    )


@situation("service-missing")
def service_of_the_host_missing(world: World) -> None:
    world.objects["Service"] = []
    world.crash_looping(
        1, 1, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms"
    )


@situation("collective-timeout", P5)
def collective_timed_out_everywhere(world: World) -> None:
    world.end("Failed")
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=_ALLGATHER_BASE) ran for 600000ms"
    for index in range(4):
        world.ended(index, 1, f"[rank{index * 8}]: [E1121 ProcessGroupNCCL.cpp:607] {text}", *TORCHRUN)


@situation("node-lost")
def rendezvous_host_went_with_its_node(world: World) -> None:
    """The other pod's refused connection is a consequence."""
    world.ended(0, 137)
    world.pods[0]["status"] |= {"phase": "Failed", "reason": "NodeLost", "message": "Node is gone"}
    text = "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
    world.crash_looping(1, 1, f"torch.distributed.elastic.rendezvous.api.{text}")


@situation("network-policy")
def policy_lets_nobody_out(world: World) -> None:
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": []}
    world.objects["NetworkPolicy"] = [{"metadata": {"name": "no-egress"}, "spec": spec}]
    text = "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect"
    world.crash_looping(1, 1, text)


@situation("service-missing")
def no_service_and_so_no_name(world: World) -> None:
    world.objects["Service"] = []
    world.crash_looping(1, 1, "socket.gaierror: [Errno -2] Name or service not known", *TORCHRUN)
