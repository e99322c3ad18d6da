"""This process's rank in the job, and sums and barriers between ranks on the host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from training.device import Device


@dataclass(frozen=True)
class Ranks:
    """This process's place in the job. `group` carries CPU tensors, apart from the gradients."""

    rank: int
    world_size: int
    local_rank: int
    group: dist.ProcessGroup | None
    local_world_size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over ranks, in float64, on every rank."""
        if self.group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def barrier(self) -> None:
        if self.group is not None:
            dist.barrier(group=self.group)


def join(device: Device, timeout: timedelta) -> Ranks:
    """Join the job described by torchrun's environment; a process started alone is rank 0 of 1."""
    if "RANK" not in os.environ:
        return Ranks(0, 1, 0, None)
    dist.init_process_group(device.backend, timeout=timeout)
    agreement = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(agreement, dist.ProcessGroup)
    local = {key: int(os.environ[key]) for key in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return Ranks(dist.get_rank(), dist.get_world_size(), local["LOCAL_RANK"], agreement, local["LOCAL_WORLD_SIZE"])


def own_group(ranks: Ranks, timeout: timedelta) -> dist.ProcessGroup | None:
    """Another group for CPU tensors of all ranks, for a thread beside the one that uses `ranks.group`."""
    if ranks.group is None:
        return None
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group
