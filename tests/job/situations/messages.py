"""Situations that are one message of another program, from messages.yaml."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ruamel.yaml import YAML

from tests.job.corpus import CPU, planted
from tests.job.situations.steps import call
from tests.job.world import World

ROWS = YAML(typ="safe", pure=True).load(Path(__file__).with_suffix(".yaml"))


def crashes(
    world: World, *, log: str = "", pods: list[int] | None = None, code: int = 1, torchrun: bool = False
) -> None:
    """Containers crash again and again."""
    chosen = list(range(len(world.pods))) if pods is None else pods
    call(world, "crash_looping", pods=chosen, code=code, lines=log, torchrun=torchrun)


def refusals(world: World, *, message: str) -> None:
    """The API server refuses the pods."""
    world.only_created()
    world.pods = []
    name = world.job["metadata"]["name"]
    world.event("PyTorchJob", name, "FailedCreatePod", f"Error creating: {message}")


def waiting(world: World, *, reason: str, message: str) -> None:
    """The containers of all pods wait."""
    world.only_created()
    for index in range(len(world.pods)):
        world.waiting(index, reason, message)


def scheduler(world: World, *, pods: list[int], message: str) -> None:
    """The scheduler has no node for the pods."""
    world.pending(*pods, message=message)


for plant in (crashes, refusals, waiting, scheduler):
    for row in ROWS[plant.__name__]:
        name, cause, cell = row.pop("name"), row.pop("cause"), row.pop("cell", CPU)
        planted(name, cause, partial(plant, **row), cell)
