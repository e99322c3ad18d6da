"""Situations without enough data for an answer."""

from __future__ import annotations

from tests.job.corpus import CANNOT_TELL, situation
from tests.job.world import World


@situation(CANNOT_TELL)
def no_step_for_long_and_no_heartbeat(world: World) -> None:
    """A foreign trainer, a long phase or a hang: the log does not show which."""
    lines = [f"{{'loss': 2.5, 'grad_norm': 0.1, 'learning_rate': 1e-05, 'epoch': 0.{n}}}" for n in range(9)]
    bars = [f"{n}/900 [00:10<00:50,  1.00it/s]" for n in range(9)]
    world.log(0, *(line for pair in zip(bars, lines, strict=True) for line in pair), seconds=780)


@situation(CANNOT_TELL)
def nothing_was_answered_in_time(world: World) -> None:
    """skypilot #10155: pods run, but every further request timed out."""
    for kind in ("Event", "Node", "Service", "NetworkPolicy"):
        world.unseen[kind] = "no answer from the cluster for 60 s"
    world.unseen |= {"others": "no answer", "logs": "no answer", "run directory": "no answer"}


@situation(CANNOT_TELL)
def a_program_prints_the_same_line_again_and_again(world: World) -> None:
    world.log(0, *["waiting for data..."] * 400, seconds=401)
