"""torch.distributed as this rank sees it."""

from __future__ import annotations

import datetime
import functools
import inspect
from typing import Any

from .. import records
from . import random_state
from .imports import on_import
from .state import Probe

POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
SHORT_SECONDS = 5.0  # a launcher may then wait 30 s for ranks that do not end on SIGTERM
DEFAULT_SECONDS = 1800.0  # of gloo; torch.distributed.constants.default_pg_timeout
NCCL_SECONDS = 600.0  # torch.distributed.constants.default_pg_nccl_timeout, which is None without CUDA


class World:
    """Records the process groups and counts their collectives."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.timeout = 0.0
        self.asked = ""  # the backend that the script asked for: a stand-in gives it another one
        self.shortened = False
        self._limited: list[Any] = []  # groups with a time-out of the script's own
        self._last: tuple[int, int] | None = None
        self._count: int | None = None
        self._record = probe.safe("collectives")(self._write)

    def install(self, distributed: Any) -> None:
        """Wrap the calls that make process groups."""
        if not distributed.is_available():
            return
        module = distributed.distributed_c10d
        for name in ("init_process_group", "new_group"):
            made = self._wrapped(getattr(module, name), name == "init_process_group")
            for holder in (module, distributed):
                setattr(holder, name, made)
        for name in POINT_TO_POINT:
            sent = self._sent(getattr(module, name))
            for holder in (module, distributed):
                setattr(holder, name, sent)
        on_import("torch.distributed.algorithms.join", self.probe.safe("steps")(self._wrap_join))

    def _sent(self, function: Any) -> Any:
        note = self.probe.safe("replicas")(self._note_sent)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            note()
            return function(*args, **kwargs)

        return call

    def _note_sent(self) -> None:
        if self.probe.forward_calls:
            self.probe.uncovered("replicas", "ranks send tensors to each other: they may hold parts of one model")

    def _wrap_join(self, module: Any) -> None:
        enter = module.Join.__enter__

        @functools.wraps(enter)
        def call(join: Any) -> Any:
            if getattr(join, "_enable", True):
                reason = "ranks take unequal numbers of steps (torch.distributed.algorithms.Join)"
                self.probe.uncovered("steps", reason)
            return enter(join)

        module.Join.__enter__ = call

    def _wrapped(self, function: Any, default: bool) -> Any:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.probe.safe("collectives")(self._made)(signature.bind(*args, **kwargs), result, default)
            if default:
                random_state.seed_late(self.probe, self.probe.rank)
            self._record()
            return result

        return call

    def _made(self, given: inspect.BoundArguments, result: Any, default: bool) -> None:
        """Note the time-out that the script gave to a group. Frameworks give torch's own where their user sets none."""
        set_to = given.arguments.get("timeout")
        seconds = set_to.total_seconds() if isinstance(set_to, datetime.timedelta) else 0.0
        if default:
            self.timeout = seconds
            self.asked = str(given.arguments.get("backend") or "nccl").lower()
        if seconds > SHORT_SECONDS and seconds != DEFAULT_SECONDS:
            self._limited.append(self.probe.distributed.group.WORLD if default else result)

    def shorten(self) -> None:
        """Shorten the time-outs that the script has set, before a rank hangs."""
        module = self.probe.distributed.distributed_c10d
        change = getattr(module, "set_timeout", None) or module._set_pg_timeout
        for group in self._limited:
            if group in module._world.pg_map:
                change(datetime.timedelta(seconds=SHORT_SECONDS), group)
                self.shortened, self._last = True, None
        self._record()

    def _write(self) -> None:
        """Write a World event when the world is another one than before."""
        distributed = self.probe.distributed
        if distributed is None:
            return
        module = distributed.distributed_c10d
        now = (int(distributed.get_world_size()), len(module._world.pg_map))
        if now == self._last:
            return
        self._last = now
        backend = str(distributed.get_backend())
        self.probe.write(
            records.World(
                step=self.probe.step,
                size=now[0],
                rank=int(distributed.get_rank()),
                backend=backend,
                timeout=self.timeout or self._default_timeout(module, backend),
                groups=now[1],
                shortened=self.shortened,
            )
        )

    def begin(self) -> None:
        """Count from here on: what ran before the first forward call made the group and the model."""
        self.probe.safe("collectives")(self.collectives)()

    def collectives(self) -> int | None:
        """Return how many collectives ran since the last call; None without a group, and where one does not count."""
        self._record()
        distributed = self.probe.distributed
        if distributed is None:
            return None
        try:
            count = sum(group._get_sequence_number_for_group() for group in distributed.distributed_c10d._world.pg_map)
        except RuntimeError:  # not every backend counts: some run collectives that nobody would see
            return None
        before, self._count = self._count, count
        return count - (before or 0)

    def _default_timeout(self, module: Any, backend: str) -> float:
        """Return the time-out in seconds of a group for which the script set none."""
        if self.probe.stand_in and "nccl" in self.asked:
            return NCCL_SECONDS
        find = getattr(module, "_get_default_timeout", None)
        return float(find(backend).total_seconds()) if find else DEFAULT_SECONDS
