"""Situations of ranks that do not find or do not hear each other: names, ports, networks, EFA."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import P5, TORCHRUN, situation
from tests.job.world import World


@situation("rendezvous-dns")
def name_does_not_resolve(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "[W1121 socket.cpp:755] [c10d] The IPv6 network addresses of (x-worker-0, 23456) cannot be retrieved",
            "torch.distributed.DistNetworkError: failed to resolve x-worker-0: Name or service not known",
        )


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


@situation("rendezvous")
def host_does_not_answer(world: World) -> None:
    text = "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
    world.crash_looping(1, 1, f"torch.distributed.elastic.rendezvous.api.{text}")


@situation("port-taken")
def rendezvous_port_taken(world: World) -> None:
    text = "The server socket has failed to listen on any local network address. port: 23456, useIpv6: false, code: -98"
    world.crash_looping(
        0, 1, f"torch.distributed.DistNetworkError: {text}, name: EADDRINUSE, message: address already in use"
    )


@situation("efa", P5)
def efa_does_not_start(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin ofi",
            "node:1:1 [0] ofi_init:1 NCCL WARN NET/OFI Error: Failed to initialize: No eligible providers were found",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled system error",
        )


@situation("collective-timeout", P5)
def collective_timed_out_everywhere(world: World) -> None:
    world.end("Failed")
    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4242, OpType=_ALLGATHER_BASE) ran for 600000ms"
    for index in range(4):
        world.ended(index, 1, f"[rank{index * 8}]: [E1121 ProcessGroupNCCL.cpp:607] {text}", *TORCHRUN)


@situation("network-interface", P5)
def interface_is_named_that_no_pod_has(world: World) -> None:
    """awsome-distributed-ai #519: NCCL_SOCKET_IFNAME excluded the only interface."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, internal error - please report this"
            " issue to the NCCL developers, NCCL version 2.27.3 ncclInternalError: Internal check failed.",
            *TORCHRUN,
        )


@situation("efa", P5)
def locked_memory_is_limited(world: World) -> None:
    """The node's memlock limit: it reads like memory that is used up."""
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error: Cannot"
            " allocate memory",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled system error",
            *TORCHRUN,
        )


@situation("config")
def node_rank_was_never_filled_in(world: World) -> None:
    """A worker-only job without elasticPolicy: the operator sets no RANK, and the shell's words stay as they are."""
    for index in (0, 1):
        world.crash_looping(
            index,
            2,
            "usage: torchrun [-h] [--nnodes NNODES]",
            "torchrun: error: argument --node-rank/--node_rank: invalid int value: '$(RANK)'",
        )


@situation("node-lost")
def rendezvous_host_went_with_its_node(world: World) -> None:
    """The survivor's connection is refused: a consequence."""
    world.ended(0, 137)
    world.pods[0]["status"] |= {"phase": "Failed", "reason": "NodeLost", "message": "Node is gone"}
    text = "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
    world.crash_looping(1, 1, f"torch.distributed.elastic.rendezvous.api.{text}")


@situation("rendezvous-dns")
def cluster_dns_is_down(world: World) -> None:
    for index in (0, 1):
        world.crash_looping(
            index, 1, "socket.gaierror: [Errno -3] Temporary failure in name resolution", *TORCHRUN
        )


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
