"""Long work on some ranks while the others wait, without a collective that could time out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from training.run import heartbeat


class Ranks(Protocol):
    """The part of `training.distributed.ranks.Ranks` used here, so that preparing data needs no torch."""

    @property
    def first(self) -> bool: ...
    @property
    def local_rank(self) -> int: ...
    def sum(self, values: list[float]) -> list[float]: ...


def while_others_wait(ranks: Ranks, work: Callable[[], object] | None) -> None:
    """Do `work` where there is any; return on every rank when all of it is done. Its error is raised here.

    The ranks that wait ask five times a second, so none of them sits in one collective for as long as the
    work takes. Their heartbeats go on; that of a rank that works is the work's own.
    """
    errors: list[Exception] = []

    def guarded() -> None:
        try:
            if work:
                work()
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that waits
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
