"""Situations of jobs that run, but hang, diverge or are slow."""

from __future__ import annotations

from tests.job.corpus import G5, P5, situation
from tests.job.world import World
from training.run import hang_limits


@situation("hang")
def the_pods_allow_less_than_the_default(world: World) -> None:
    """As silent as a healthy evaluation, but the pods set a shorter limit."""
    for index in (0, 1):
        world.container(index)["env"].append({"name": hang_limits.STEP_VARIABLE, "value": "60"})
    world.training(silent=120, phase="evaluating")


@situation("hang")
def a_rank_never_ends_saving(world: World) -> None:
    for index in (0, 1):
        world.running(index, seconds=9 * hang_limits.LONG_SECONDS)
    world.training(phase="saving")
    world.stop_rank(0, 3 * hang_limits.LONG_SECONDS)


@situation("straggler", G5)
def one_rank_is_slower(world: World) -> None:
    rows = [{"rank_step_s": [0.5] * 11 + [0.9] + [0.5] * 20} for _ in range(30)]
    world.training(ranks=32, rows=rows)


@situation("straggler", G5)
def all_ranks_of_a_node_are_slower(world: World) -> None:
    rows = [{"rank_step_s": [0.5] * 8 + [0.9] * 8 + [0.5] * 16} for _ in range(30)]
    world.training(ranks=32, rows=rows)


@situation("data-wait")
def waiting_for_data(world: World) -> None:
    world.training(rows=[{"data_wait_s": 0.6} for _ in range(30)])


@situation("slowdown")
def slower_than_it_was(world: World) -> None:
    world.training(steps=200, rows=[{"tokens_per_s": 500.0} for _ in range(30)])


# ---- from reports of users of such systems


@situation("nan", G5)
def loss_is_nan_and_the_trainer_goes_on(world: World) -> None:
    """A foreign trainer does not stop, and nothing else shows the problem."""
    lines = []
    for step in range(1, 60):
        lines.append(f"{step}/900 [00:10<00:50,  1.00it/s]")
        loss = "nan" if step > 20 else "2.5"
        lines.append(f"{{'loss': {loss}, 'grad_norm': {loss}, 'learning_rate': 1e-05, 'epoch': 0.1}}")
    world.log(0, *lines, seconds=119)


@situation("slow", P5)
def steady_and_at_a_twentieth_of_the_cards(world: World) -> None:
    """4.8 % MFU on H100s was published for the FSDP example: slow, but nothing is broken."""
    world.training(ranks=32, rows=[{"mfu": 0.048} for _ in range(100)])


@situation("hang", G5)
def one_rank_never_joins(world: World) -> None:
    for index in range(4):
        world.running(index, seconds=4 * hang_limits.LONG_SECONDS)
    world.training(ranks=32, phase="joining", steps=1)
    world.stop_rank(5, 2 * hang_limits.LONG_SECONDS, step=None)
    assert world.run is not None
    world.run["metrics"] = []


@situation("straggler")
def the_other_rank_waits_half_of_its_time(world: World) -> None:
    world.training(rows=[{"rank_step_s": [0.9, 0.4]} for _ in range(30)])


@situation("data-wait")
def streaming_from_afar(world: World) -> None:
    world.training(rows=[{"data_wait_s": 0.35 + 0.01 * (n % 3)} for n in range(40)])


@situation("rendezvous")
def a_rank_asks_for_the_rendezvous_in_vain(world: World) -> None:
    asks = "[c10d] The client socket has failed to connect to [x-worker-0]:29400 (errno: 111 - Connection refused)."
    world.log(1, "loading", *[f"[W1121 11:50:00.0 socket.cpp:755] {asks}"] * 300, seconds=301)


@situation("hub-unreachable")
def the_model_is_asked_for_again_and_again(world: World) -> None:
    asks = "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /gpt2/config.json"
    lines = [line for n in range(150) for line in (f"'{asks}' thrown while requesting", f"Retrying [Retry {n % 5}/5].")]
    world.log(0, *lines, seconds=301)
