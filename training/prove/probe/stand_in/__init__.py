"""Runs a script that wants CUDA on the CPU: `install(torch)` right after the import of torch.

The script sees devices, streams and NCCL as on a machine with GPUs. Its tensors are in the memory of the CPU, and
its ranks talk by gloo. A library that only exists for CUDA is missing here as before: the error is the script's own.
"""

from __future__ import annotations

from typing import Any

from ..state import number
from . import cuda, models, places, precision, ranks


def install(torch: Any) -> None:
    """Let this process see CUDA devices: as many as its node has ranks, or one where no launcher says it."""
    here = places.Places(torch, max(number("LOCAL_WORLD_SIZE", 1), 1))
    cuda.install(torch, here)
    precision.install(torch)
    models.install(torch, here)
    ranks.install(torch)
    here.install()
