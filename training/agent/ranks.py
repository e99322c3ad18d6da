"""The ranks that run below this process: the process id of each rank, from the processes' environments.

A forked rank (`training.agent.forking`) shows the variables of the process that it was forked from. It calls
itself `rank N`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from training.distributed.process import forked_rank, is_descendant

# torchrun's variable, then those of MPI and Slurm.
NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_RANK = re.compile(r"[0-9]{1,9}")
_LONGEST = 1 << 20  # bytes of an environment
_MOST = 4096  # processes that are looked at


def own_rank() -> int:
    """Return what RANK says in this process: the pod's number, where the operator sets it; 0 without it."""
    return _number(os.environ.get(NAMES[0])) or 0


def launched_rank() -> int:
    """Return the rank that a launcher gave this process, 0 without one."""
    return next((number for name in NAMES if (number := _number(os.environ.get(name))) is not None), 0)


def ranks_below(launcher: int) -> dict[int, int]:
    """Return the process id of each rank, without the process `launcher` itself.

    A rank's own children inherit its variables, so the lowest process id counts.
    """
    own = _number(os.environ.get(NAMES[0]))
    found: dict[int, int] = {}
    for pid in sorted(_processes()):
        if pid == launcher or not is_descendant(pid):
            continue
        rank = forked_rank(pid)
        if rank is None:
            rank = _from_variables(_environment(pid), own)
        if rank is not None:
            found.setdefault(rank, pid)
    return found


def _from_variables(variables: Mapping[str, str], own: int | None) -> int | None:
    """Return the rank of a process; the operator numbers the pods with RANK, torchrun sets LOCAL_RANK too."""
    numbers = (_number(variables.get(name)) for name in NAMES)
    rank = next((number for number in numbers if number is not None), None)
    return None if "LOCAL_RANK" not in variables and rank == own else rank


def _number(text: str | None) -> int | None:
    return int(text) if text and _RANK.fullmatch(text) else None


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()][:_MOST]
    return []


def _environment(pid: int) -> dict[str, str]:
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            text = file.read(_LONGEST).decode(errors="replace")
    except OSError:
        return {}
    return dict(one.split("=", 1) for one in text.split("\0") if "=" in one)
