"""Situations of failed programs: `why` must name the first failure, not its victims."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

from tests.job.corpus import G5, PEER, TORCHRUN, situation
from tests.job.world import World


@situation("oom-device", G5)
def every_pod_concludes_with_the_same_rank(world: World) -> None:
    """training.entrypoint ends every pod with the first failure of the whole job, from all ranks' records."""
    world.end("Failed")
    end = "entrypoint: out of memory: rank 19 on g5-llama-2-7b-train-worker-2 at step 100: CUDA out of memory (exit code 160)"
    for index in range(4):
        world.ended(index, 160, f"[rank{8 * index}]: {PEER}", *TORCHRUN, end)


@situation("hang")
def the_guard_has_ended_a_rank(world: World) -> None:
    end = "entrypoint: hang: rank 1 on x-worker-1: no progress for 190 s in training after step 7 (limit 180 s): its process is stopped (exit code 162)"
    world.crash_looping(
        1, 162, "entrypoint: rank 1 hangs: no progress for 190 s; it is killed", *TORCHRUN, end
    )
    world.crash_looping(
        0, 164, PEER, "entrypoint: lost peer: rank 0 on x-worker-0: Connection closed by peer (exit code 164)"
    )


@situation("upload")
def bucket_refuses_the_model(world: World) -> None:
    world.end("Failed")
    world.ended(
        0,
        166,
        "entrypoint: upload: rank 0 on x-worker-0 at step 400: AccessDenied: s3://models/x (exit code 166)",
    )


@situation("nan")
def loss_is_nan(world: World) -> None:
    world.end("Failed")
    text = "rank {n}: nan: the loss of rank 1 is not finite at step 88; nothing of this step was saved"
    for index in (0, 1):
        world.ended(index, 70, text.format(n=index), *TORCHRUN)


@situation("memory-fault")
def segmentation_fault(world: World) -> None:
    world.crash_looping(0, 139, "loading", reason="Error")
    world.crash_looping(1, 1, PEER)
