"""Situations of jobs that run and do not get on, or less fast than they could."""

from __future__ import annotations

from tests.job.corpus import G5, P5, situation
from tests.job.world import World
from training import watch


@situation("hang")
def one_rank_hangs_in_training(world: World) -> None:
    world.training()
    world.stop_rank(1, 400)


@situation("hang")
def the_pods_allow_less_than_the_default(world: World) -> None:
    """The same silence as of a healthy evaluation, with a shorter limit in the pods."""
    for index in (0, 1):
        world.container(index)["env"].append({"name": watch.STEP_VARIABLE, "value": "60"})
    world.training(silent=120, phase="evaluating")


@situation("hang", G5)
def one_of_many_ranks_is_behind(world: World) -> None:
    world.training(ranks=32)
    world.stop_rank(17, 700, step=99)


@situation("hang")
def a_rank_never_ends_saving(world: World) -> None:
    for index in (0, 1):
        world.running(index, seconds=9 * watch.LONG_SECONDS)
    world.training(phase="saving")
    world.stop_rank(0, 3 * watch.LONG_SECONDS)


@situation("straggler", G5)
def one_rank_is_slower(world: World) -> None:
    rows = [{"rank_step_s": [0.5] * 11 + [0.9] + [0.5] * 20} for _ in range(30)]
    world.training(ranks=32, rows=rows)


@situation("data-wait")
def waiting_for_data(world: World) -> None:
    world.training(rows=[{"data_wait_s": 0.6} for _ in range(30)])


@situation("slow-network", P5)
def tcp_instead_of_efa(world: World) -> None:
    world.training(ranks=32)
    lines = (
        "node:1:1 [0] NCCL INFO NET/IB : No device found.",
        "node:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.1.7<0>",
        "node:1:1 [0] NCCL INFO Using network Socket",
    )
    world.log(0, *lines, seconds=700)


@situation("slowdown")
def slower_than_it_was(world: World) -> None:
    world.training(steps=200, rows=[{"tokens_per_s": 500.0} for _ in range(30)])
