"""The control for faults of storage: torch.distributed.checkpoint, called as its documentation does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from tests.training.checkpoint.boundaries import Boundaries
from tests.training.checkpoint.ranks import rank_and_world
from tests.training.checkpoint.values import whole

STEPS = (1, 2, 3)
LATEST = "latest"


def save(directory: str, steps: list[int], name: str = "") -> None:
    """Save the test values of some steps, each into a directory of its own, or all into `name`."""
    for step in steps:
        dcp.save(_state(step), checkpoint_id=Path(directory) / (name or f"step-{step}"))  # type: ignore[attr-defined]


def save_until_killed(directory: str, step: int, victim: int, point: int | None, name: str = "") -> list[str]:
    """Save one step; the victim is killed at its boundary number `point`."""
    boundaries = Boundaries(point if rank_and_world()[0] == victim else None)
    with boundaries.watched():
        save(directory, [step], name)
    return boundaries.passed


def load(directory: str) -> dict[str, Any]:
    """Load the newest directory that has a `.metadata`: its name, and the steps that the loaded values belong to."""
    rank, _ = rank_and_world()
    return loaded(newest(Path(directory)), rank)


def load_where(directories: list[str]) -> dict[str, Any]:
    """The same, where each rank sees a directory of its own."""
    rank, _ = rank_and_world()
    return loaded(newest(Path(directories[rank])), rank)


def newest(directory: Path) -> Path:
    return sorted(path.parent for path in directory.glob("*/.metadata"))[-1]


def loaded(path: Path, rank: int = 0) -> dict[str, Any]:
    """What a load of one directory gives. `steps` has None for a value that belongs to no step."""
    try:
        state = load_raw(path, rank)
    except CheckpointException as error:  # a BaseException: `except Exception` does not catch it
        return {"name": path.name, "error": next(iter(str(error).splitlines()), "")[:200]}
    found = {_step_of(name.split("/")[0], tensor) for name, tensor in state.items() if tensor.numel()}
    return {"name": path.name, "steps": sorted(found, key=str)}


def load_raw(path: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    """Load a directory; whatever the library raises is raised."""
    state = {name: torch.zeros_like(tensor) for name, tensor in _state(1, rank).items()}
    dcp.load(state, checkpoint_id=path)  # type: ignore[attr-defined]
    return state


def _state(step: int, rank: int | None = None) -> dict[str, torch.Tensor]:
    """The values of a step, under names of this rank, so that each rank writes some."""
    own = rank_and_world()[0] if rank is None else rank
    return {f"{name}/{own}": tensor for name, tensor in whole(step).items()}


def _step_of(name: str, tensor: torch.Tensor) -> int | None:
    return next((step for step in STEPS if torch.equal(whole(step)[name], tensor)), None)
