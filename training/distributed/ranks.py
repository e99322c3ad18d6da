"""This process's rank in the job, and sums and barriers between ranks on the host."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from training.device import Device
from training.run.heartbeat import NODE

_LONGEST_TEXT = 160


@dataclass(frozen=True)
class Ranks:
    """This process's place in the job. `group` carries CPU tensors, apart from the gradients."""

    rank: int
    world_size: int
    local_rank: int
    group: dist.ProcessGroup | None
    local_world_size: int = 1
    tensor: int = 1
    """Number of neighbouring ranks that compute together and read the same samples."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """This rank's place among those that read samples of their own."""
        return self.rank // self.tensor

    @property
    def data_size(self) -> int:
        """Number of shares of the global batch."""
        return self.world_size // self.tensor

    @property
    def counts(self) -> bool:
        """Whether this rank speaks for its samples where ranks add theirs."""
        return self.rank % self.tensor == 0

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over ranks, in float64, on every rank."""
        if self.group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def gathered(self, own: list[float]) -> list[list[float]]:
        """The numbers of each rank, on every rank; all ranks give equally many."""
        width, flat = len(own), [0.0] * len(own) * self.world_size
        flat[self.rank * width : (self.rank + 1) * width] = own
        together = self.sum(flat)
        return [together[rank * width : (rank + 1) * width] for rank in range(self.world_size)]

    def texts(self, own: str) -> list[str]:
        """The text of each rank, on every rank, in ASCII and cut at 160 characters. It is for rare messages."""
        numbers = own.encode("ascii", "replace")[:_LONGEST_TEXT].ljust(_LONGEST_TEXT)
        return [bytes(map(int, row)).decode("ascii").rstrip() for row in self.gathered(list(map(float, numbers)))]

    def barrier(self) -> None:
        if self.group is not None:
            dist.barrier(group=self.group)


def join(device: Device, timeout: timedelta, tensor: int = 1) -> Ranks:
    """Join the job described by torchrun's environment; a process started alone is rank 0 of 1."""
    of_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if "RANK" not in os.environ:
        return Ranks(0, 1, 0, None)
    dist.init_process_group(device.backend, timeout=timeout)
    agreement = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(agreement, dist.ProcessGroup)
    local_rank = int(os.environ["LOCAL_RANK"])
    return Ranks(dist.get_rank(), dist.get_world_size(), local_rank, agreement, of_a_node, tensor)


def own_group(ranks: Ranks, timeout: timedelta) -> dist.ProcessGroup | None:
    """Another group for CPU tensors of all ranks, for a thread beside the one that uses `ranks.group`."""
    if ranks.group is None:
        return None
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def place() -> str:
    """Where this process runs: its host, which is its pod, and its node if the pod's manifest tells it."""
    node = os.environ.get(NODE)
    return socket.gethostname() + (f" (node {node})" if node else "")
