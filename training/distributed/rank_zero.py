"""Long work on some ranks, such as rank 0, while the others wait without a collective that could time out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from training.run import heartbeat


class Ranks(Protocol):
    """The part of `training.distributed.ranks.Ranks` used here; preparing data must not import torch."""

    @property
    def first(self) -> bool: ...
    @property
    def local_rank(self) -> int: ...
    def sum(self, values: list[float]) -> list[float]: ...


def while_others_wait(ranks: Ranks, work: Callable[[], object] | None) -> None:
    """Run `work` on the ranks that have it; return on every rank when all of it is done. Raises its error.

    The waiting ranks ask five times a second, so none of them stays in one collective for as long as the work
    takes. They keep sending heartbeats; on a working rank the work does.
    """
    errors: list[Exception] = []

    def guarded() -> None:
        try:
            if work:
                work()
        except Exception as error:  # noqa: BLE001 - raised again below, in the waiting thread
            errors.append(error)

    worker = threading.Thread(target=guarded)
    worker.start()
    while True:
        worker.join(timeout=0.2)
        if errors:
            raise errors[0]
        if ranks.sum([float(worker.is_alive())]) == [0.0]:
            return
        if work is None:
            heartbeat.beat()
