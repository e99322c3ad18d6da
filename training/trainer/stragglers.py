"""Stragglers: ranks whose own work takes longer than that of the others. They are named while training continues.

Own work waits for no other rank: reading data, the optimizer's update and, where every rank holds the whole model, the
forward and backward passes. In a sharded model these passes wait for other ranks in every block, so that a slow rank
makes all of them slow; they are left out there.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from training.device import Device
from training.distributed.ranks import place
from training.models.causal import trained_parameters
from training.run import heartbeat
from training.run.straggling import Straggling
from training.trainer.parallelize import Parallel

# Over so many steps, in each half of them, own work takes so many times the median of all ranks.
RULES = ((10, 1.5), (60, 1.2))
OF_SHARDS = 0.5  # is added to the factor, because an update takes a short time
SHARE = 0.1  # of a step's time: less is not worth a name where the passes count
UNSETTLED = 3  # steps that compile and connect
REPEAT = 100  # steps until a straggler is named again
_MOST_NAMED = 4  # ranks
log = logging.getLogger("trainyard")


class Work:
    """Marks of one step: where this rank works alone, and where it waits for others."""

    def __init__(self, device: Device, whole: bool, data_s: float, wait_s: float) -> None:
        self._device, self._whole, self._data_s, self._wait_s = device, whole, data_s, wait_s
        self._began = device.mark()
        self._ready: Any = None
        self._exchanged: Any = None
        self._updates: Any = None

    def ready(self, _parameter: object = None) -> None:
        """Mark that the gradients of this rank are computed; the last micro batch counts."""
        self._ready = self._device.mark()

    def exchanged(self) -> None:
        """Mark that the gradients are those of all ranks."""
        self._exchanged = self._device.mark()

    def updates(self) -> None:
        """Mark that the update begins."""
        self._updates = self._device.mark()

    def seconds(self, end: Any) -> tuple[float, float]:
        """Return the seconds of own work and of waiting, for a step whose update ended at the mark `end`."""
        between = self._device.seconds
        own, wait = self._data_s + between(self._updates, end), self._wait_s
        if self._whole and self._ready is not None:
            own += between(self._began, self._ready)
            wait += between(self._ready, self._exchanged)
        return own, wait


class Times(NamedTuple):
    """A step: the own work and the waiting of each rank, and how long it took, in seconds."""

    own: Sequence[float]
    wait: Sequence[float]
    step: float


class Stragglers:
    """Takes the times of all ranks, step by step, and names the ranks that are slow. Rank 0 judges."""

    def __init__(self, parallel: Parallel, device: Device) -> None:
        self._ranks, self._device = parallel.ranks, device
        self._whole = parallel.replicated
        self._places = self._ranks.texts(place()) if self._ranks.world_size > 1 else []
        self._work: Work | None = None
        self._seen = 0
        self._times: deque[Times] = deque(maxlen=max(steps for steps, _ in RULES))
        self._own: deque[tuple[float, float]] = deque(maxlen=RULES[0][0])
        self._named: list[int] = []
        self._named_at = 0
        if self._whole and self._judged:  # the gradient of the first parameter is among the last ones
            _, first = next(iter(trained_parameters(parallel.model)))
            first.register_post_accumulate_grad_hook(lambda _: self._work.ready() if self._work else None)

    @property
    def _judged(self) -> bool:
        """Whether there is another rank, and a device that works while it is told to, not at the end of a step."""
        return self._ranks.world_size > 1 and self._device.wraps

    def begin(self, data_s: float, wait_s: float) -> Work:
        """Begin a step, with the seconds that its data took and the seconds until all ranks had theirs."""
        self._work = Work(self._device, self._whole, data_s, wait_s)
        return self._work

    def see(self, step: int, times: Times) -> dict[str, Any]:
        """Take a step's times; return what its record says about stragglers, which is empty without one."""
        self._seen += 1
        if not self._judged or self._seen <= UNSETTLED:
            return {}
        rank = self._ranks.rank
        self._own.append((times.own[rank], times.wait[rank]))
        heartbeat.measured(*(statistics.fmean(column) for column in zip(*self._own, strict=True)))
        if not self._ranks.first:
            return {}
        self._times.append(times)
        found = next((found for steps, factor in RULES if (found := self._slow(steps, factor))), None)
        if found is None:
            if self._named:
                log.info("step %d: no rank is slower than the others any more", step)
            self._named = []
            return {}
        if found.ranks != self._named or step - self._named_at >= REPEAT:
            self._named, self._named_at = found.ranks, step
            log.warning("step %d: straggler: %s: %s", step, self._who(found.ranks), found)
        return {"stragglers": asdict(found)}

    def _slow(self, steps: int, factor: float) -> Straggling | None:
        """Return the ranks that are slow by one rule."""
        if len(self._times) < steps:
            return None
        recent = list(self._times)[-steps:]
        halves = (recent[: steps // 2], recent[steps // 2 :])
        ranks = sorted(set.intersection(*(self._slow_in(half, factor) for half in halves)))
        if not ranks:
            return None
        own, wait = _means([one.own for one in recent]), _means([one.wait for one in recent])
        worst = max(ranks, key=own.__getitem__)
        usual, waits = statistics.median_low(own), statistics.median_high(wait)
        return Straggling(ranks, steps, own[worst], usual, wait[worst], waits)

    def _slow_in(self, some: Sequence[Times], factor: float) -> set[int]:
        own = _means([one.own for one in some])
        usual, least = statistics.median_low(own), SHARE * statistics.fmean(one.step for one in some)
        factor, least = (factor, least) if self._whole else (factor + OF_SHARDS, 0.0)
        return {rank for rank, each in enumerate(own) if each >= factor * usual and each - usual >= least}

    def _who(self, ranks: Sequence[int]) -> str:
        named = ", ".join(f"rank {rank} on {self._places[rank]}" for rank in ranks[:_MOST_NAMED])
        return named + (f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else "")


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column."""
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]
