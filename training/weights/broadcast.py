"""Results of rank 0, or of every rank, shared with all ranks that open weights together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training.checkpoint.peers import Peers
from training.distributed.ranks import Ranks


class Broadcast:
    """All ranks of a job, or only this process if `ranks` is None or has no group. Results travel as JSON."""

    def __init__(self, ranks: Ranks | None) -> None:
        self.ranks = ranks if ranks is not None and ranks.group is not None else None
        self._peers = Peers(self.ranks.group) if self.ranks is not None else None
        self.rank = self.ranks.rank if self.ranks is not None else 0
        self.size = self.ranks.world_size if self.ranks is not None else 1

    def gather(self, work: Callable[[], Any]) -> list[Any]:
        """Every rank's result, on every rank; an error on one rank is a CheckpointError on all."""
        return [work()] if self._peers is None else list(self._peers.agree(work, lambda results: results))

    def first(self, work: Callable[[], Any]) -> Any:
        """Rank 0's result, on every rank."""
        return work() if self._peers is None else self._peers.agree(lambda: None, lambda _: work())
