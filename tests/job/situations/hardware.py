"""Situations of hardware: memory, GPUs, drivers, volumes."""

from __future__ import annotations

from tests.job.corpus import G5, P5, PEER, STEP, TORCHRUN, situation
from tests.job.world import World, ago


@situation("oom-device", G5)
def one_rank_out_of_memory_the_others_lose_it(world: World) -> None:
    world.end("Failed")
    for index in (0, 1, 3):
        world.ended(index, 1, PEER, *TORCHRUN, seconds=40)
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total of 22 GiB"
    )
    world.ended(2, 1, f"[rank19]: {text}", *TORCHRUN, seconds=42)


@situation("oom-device", G5)
def record_of_the_first_rank(world: World) -> None:
    world.end("Failed")
    for index in range(4):
        world.ended(index, 160, "[rank0]: error", *TORCHRUN)
    world.training(ranks=32, silent=60)
    world.failed(19, "out of memory", "CUDA out of memory. Tried to allocate 2 GiB", 50, "OutOfMemoryError")
    for rank in (0, 7, 31):
        world.failed(rank, "lost peer", "Connection closed by peer", seconds=51 if rank == 0 else 49)


@situation("oom-host")
def killed_by_the_kernel_for_memory(world: World) -> None:
    world.crash_looping(1, 137, STEP.format(n=7), reason="OOMKilled")
    world.crash_looping(0, 1, PEER, *TORCHRUN)


@situation("storage-full")
def volume_is_full(world: World) -> None:
    world.end("Failed")
    world.ended(0, 165, "rank 0: storage: step-00000100: No space left on device", *TORCHRUN, seconds=60)
    world.ended(1, 164, "rank 1: lost peer: Connection closed by peer", seconds=50)


@situation("storage")
def volume_reports_io_errors(world: World) -> None:
    world.crash_looping(0, 1, "OSError: [Errno 5] Input/output error: '/shared/runs/x/metrics.jsonl'")
    world.crash_looping(1, 1, PEER)


@situation("device", P5)
def card_fell_off_the_bus(world: World) -> None:
    world.end("Failed")
    for index in (0, 1, 2):
        world.ended(
            index, 1, "[rank2]: torch.distributed.DistBackendError: NCCL error: ncclRemoteError", seconds=30
        )
    world.ended(3, 1, "[rank31]: RuntimeError: CUDA error: uncorrectable ECC error encountered", seconds=33)


@situation("oom-host", P5)
def out_of_memory_that_looks_like_efa(world: World) -> None:
    """awsome-distributed-ai #312: one pod has only 8 GB of memory, and the others report libfabric errors."""
    world.crash_looping(1, 137, "node:1:1 [0] NCCL INFO NET/OFI Selected provider is efa", reason="OOMKilled")
    for index in (0, 2, 3):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unreachable remote",
            "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: remote process exited",
            *TORCHRUN,
        )


@situation("device", P5)
def the_nodes_agent_has_seen_an_xid(world: World) -> None:
    """The collective times out on all ranks. EKS' node monitoring agent reports the broken GPU."""
    world.end("Failed")
    text = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000ms"
    )
    for index in range(4):
        world.ended(index, 1, f"[rank{index * 8}]: [E1121 ProcessGroupNCCL.cpp:607] {text}", *TORCHRUN)
    world.nodes[2]["status"]["conditions"].append(
        {
            "type": "AcceleratedHardwareReady",
            "status": "False",
            "reason": "NvidiaXID79Error",
            "message": "GPU has fallen off the bus",
            "lastTransitionTime": ago(700),
        }
    )
