"""Situations of machines that have too little, or break: memory, cards, drivers, volumes."""
# ruff: noqa: E501 - other programs' lines are as long as they are

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
def out_of_memory_by_exit_code_on_processors(world: World) -> None:
    world.crash_looping(0, 160)


@situation("oom-host")
def killed_by_the_kernel_for_memory(world: World) -> None:
    world.crash_looping(1, 137, STEP.format(n=7), reason="OOMKilled")
    world.crash_looping(0, 1, PEER, *TORCHRUN)


@situation("shared-memory", G5)
def shm_too_small(world: World) -> None:
    text = "RuntimeError: DataLoader worker (pid 88) is killed by signal: Bus error. It is possible that insufficient"
    world.crash_looping(
        0, 1, f"ERROR: Unexpected bus error encountered in worker. {text}", f"{text} shared memory (shm)."
    )


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


@situation("duplicate-device", G5)
def two_ranks_on_one_card(world: World) -> None:
    """awsome-distributed-ai #1041: set_device was forgotten, and all ranks went to GPU 0."""
    text = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage (run with"
        " NCCL_DEBUG=WARN for details), NCCL version 2.27.3 ncclInvalidUsage: This usually reflects invalid usage of"
        " NCCL library. Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b0"
    )
    for index in range(4):
        world.crash_looping(index, 1, f"[rank{8 * index}]: {text}", *TORCHRUN)


@situation("oom-host", P5)
def out_of_memory_that_looks_like_efa(world: World) -> None:
    """awsome-distributed-ai #312: 8 GB of memory for the pod, and the other pods' errors are libfabric's."""
    world.crash_looping(1, 137, "node:1:1 [0] NCCL INFO NET/OFI Selected provider is efa", reason="OOMKilled")
    for index in (0, 2, 3):
        world.crash_looping(
            index,
            1,
            "node:1:1 [0] NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unreachable remote",
            "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: remote process exited",
            *TORCHRUN,
        )


@situation("image-accelerator", P5)
def torch_was_not_built_for_this_card(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
            *TORCHRUN,
        )


@situation("image-accelerator", P5)
def driver_is_older_than_the_images_cuda(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index,
            1,
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
            *TORCHRUN,
        )


@situation("permission")
def volume_belongs_to_somebody_else(world: World) -> None:
    """No fsGroup, or a root directory of the file system that only root may write."""
    for index in (0, 1):
        world.crash_looping(
            index, 1, "PermissionError: [Errno 13] Permission denied: '/shared/runs/x'", *TORCHRUN
        )


@situation("permission")
def cache_on_the_read_only_root(world: World) -> None:
    """A container with readOnlyRootFilesystem and a program that writes to its home: no disk has failed."""
    for index in (0, 1):
        world.crash_looping(
            index,
            1,
            "OSError: [Errno 30] Read-only file system: '/home/trainer/.cache/huggingface'",
            *TORCHRUN,
        )


@situation("shared-memory", G5)
def shm_has_no_room(world: World) -> None:
    for index in range(4):
        world.crash_looping(
            index, 1, "OSError: [Errno 28] No space left on device: '/dev/shm/torch_41_1'", *TORCHRUN
        )


@situation("device", P5)
def the_nodes_agent_has_seen_an_xid(world: World) -> None:
    """Everybody's collective times out; EKS' node monitoring agent says whose card it was."""
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
