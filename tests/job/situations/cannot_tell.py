"""Situations without enough data for an answer."""

from __future__ import annotations

from tests.job.corpus import CANNOT_TELL, G5, situation
from tests.job.world import World


@situation(CANNOT_TELL)
def pods_run_and_say_nothing(world: World) -> None:
    world.log(0, "starting", seconds=790)


@situation(CANNOT_TELL)
def nothing_may_be_seen(world: World) -> None:
    world.unseen |= {"logs": "forbidden", "run directory": "forbidden"}


@situation(CANNOT_TELL)
def no_step_for_long_and_no_heartbeat(world: World) -> None:
    """A foreign trainer, a long phase or a hang: the log does not show which."""
    lines = [f"{{'loss': 2.5, 'grad_norm': 0.1, 'learning_rate': 1e-05, 'epoch': 0.{n}}}" for n in range(9)]
    bars = [f"{n}/900 [00:10<00:50,  1.00it/s]" for n in range(9)]
    world.log(0, *(line for pair in zip(bars, lines, strict=True) for line in pair), seconds=780)


@situation(CANNOT_TELL)
def pending_and_nodes_may_not_be_seen(world: World) -> None:
    """Without the nodes nothing can be computed, and nothing is guessed."""
    world.pending(0, 1)
    world.unseen["Node"] = "forbidden: nodes is forbidden: User cannot list"


@situation(CANNOT_TELL)
def failed_and_nothing_left(world: World) -> None:
    world.pods = []
    world.end("Failed", "PyTorchJob x has failed because 1 Worker replica(s) failed.")


@situation(CANNOT_TELL)
def pending_although_a_node_has_room(world: World) -> None:
    """Our arithmetic finds room, but the scheduler did not. The answer says so and names no cause."""
    world.pending(1)


@situation(CANNOT_TELL)
def nothing_was_answered_in_time(world: World) -> None:
    """skypilot #10155: pods run, but every further request timed out."""
    for kind in ("Event", "Node", "Service", "NetworkPolicy"):
        world.unseen[kind] = "no answer from the cluster for 60 s"
    world.unseen |= {"others": "no answer", "logs": "no answer", "run directory": "no answer"}


@situation(CANNOT_TELL, G5)
def pod_group_says_wait_and_there_is_room(world: World) -> None:
    """Every pod of the gang would fit. Why the scheduler waits is unknown."""
    world.pending(*range(4))
    for pod in world.pods:
        pod["spec"]["schedulerName"] = "volcano"
