"""Silent corruption: ranks that hold the same parameters compare them, because a broken device raises no error.

Replicas are all ranks of ddp, and the ranks at the same place of each node of hsdp. They start with the same bits and
apply the same updates, so that every difference is wrong. Each rank adds up the bit patterns of its parameters as
integers: one changed bit always changes the sum.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch.distributed.tensor import DTensor

from training.config import Config
from training.device import Device
from training.distributed.ranks import place
from training.models.causal import named_parameters
from training.run.failure import ReplicaError
from training.trainer.parallelize import Parallel

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers by their bytes
_PIECE = 1 << 24  # values that are added at once: a CPU copies them as int64
_MOST_NAMED = 8  # ranks
_WHOLE, _HALF = 1 << 64, 1 << 32
log = logging.getLogger("trainyard")


class Replicas:
    """Compares the parameters of ranks that hold the same ones; all ranks call `check` at the same step."""

    def __init__(self, config: Config, parallel: Parallel, device: Device) -> None:
        self._every, self._parallel, self._ranks = config.train.check_replicas_every, parallel, parallel.ranks
        self._device = device
        sharding, world = config.parallel.sharding, self._ranks.world_size
        apart = {"ddp": 1, "hsdp": self._ranks.local_world_size}.get(sharding, world)
        self._groups = [range(first, world, apart) for first in range(apart)]
        if self._every and apart >= world:
            of = f"parallel.sharding {sharding} on {world} rank{'s' * (world > 1)}"
            log.warning("train.check_replicas_every compares nothing: %s keeps each parameter once", of)
            self._every = 0

    def check(self, step: int, *, saves: bool) -> None:
        """Compare the replicas if that is due at this step, or if the step is about to be saved.

        Raises:
            ReplicaError: on every rank; its class is `corruption` on the ranks that differ.
        """
        if not self._every or (step % self._every and not saves):
            return
        named = dict(self._parameters())
        own = [_sum(part) for part in named.values()]
        total = [tuple(row) for row in self._ranks.gathered(_halves([sum(own)]))]
        for group in self._groups:
            if len({total[rank] for rank in group}) > 1:
                raise self._error(step, {rank: total[rank] for rank in group}, [*named], own)

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield this rank's part of each parameter."""
        for name, parameter in named_parameters(self._parallel.model):
            yield name, (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach()

    def _error(self, step: int, totals: dict[int, tuple[float, ...]], names: list[str], own: list[int]) -> ReplicaError:
        """Return what all ranks say of replicas that differ; of two of them it is unknown which one is wrong."""
        most, count = Counter(totals.values()).most_common(1)[0]
        known = 2 * count > len(totals)
        wrong = [rank for rank, total in totals.items() if not known or total != most]
        places = self._ranks.texts(f"{place()}, {self._device.torch_device} ({self._device.name()})")
        sums = self._ranks.gathered(_halves(own))
        right = next(rank for rank in totals if totals[rank] != totals[wrong[0]])
        name = next((name for at, name in enumerate(names) if _at(sums, wrong[0], at) != _at(sums, right, at)), "?")
        who = "; ".join(f"rank {rank} on {places[rank]}" for rank in wrong[:_MOST_NAMED])
        more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        rest = f"the other {count} agree" if known else "which of them is wrong is unknown, because no majority agrees"
        text = (
            f"parameters differ between ranks that hold the same ones, at step {step}, the first is {name}: {who}{more}"
            f"; {rest}. Nothing was saved since. A device, its memory or its node is broken: keep pods off it"
        )
        return ReplicaError(text, here=self._ranks.rank in wrong)


def _sum(part: torch.Tensor) -> int:
    """Return the sum of a tensor's bit patterns as an unsigned number of 64 bits."""
    here = part if part.device.type in ("cpu", "cuda") else part.cpu()
    bits = here.contiguous().view(_BITS[here.element_size()]).flatten()
    return sum(int(piece.sum(dtype=torch.int64)) for piece in bits.split(_PIECE)) % _WHOLE


def _halves(numbers: Iterable[int]) -> list[float]:
    """Return the two halves of each number of 64 bits, which the float64 that ranks exchange holds exactly."""
    return [float(half) for number in numbers for half in divmod(number % _WHOLE, _HALF)]


def _at(rows: list[list[float]], rank: int, index: int) -> list[float]:
    return rows[rank][2 * index : 2 * index + 2]
