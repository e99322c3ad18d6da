"""How the ranks of one job agree: every rank reports, rank 0 decides, all get the same answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Tuple

import torch
import torch.distributed as dist

from training.checkpoint.disk import CHUNK
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import json_bytes
from training.checkpoint.tensors import byte_view

Transfer = Tuple[int, int, int]  # source, target, bytes
Reader = Callable[[int, int], bytes]
Writer = Callable[[int, memoryview], None]

_NAMED_FAILURES = 4  # failing ranks listed in one message; a dead file system fails on all of them


class Peers:
    """The ranks that save and load together; a single rank without torch.distributed.

    They exchange JSON only, over the given CPU group or, without one, gloo over all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group if group is not None else _cpu_group()
        self.rank = dist.get_rank(self.group) if self.group is not None else 0
        self.size = dist.get_world_size(self.group) if self.group is not None else 1
        self._first = dist.get_global_rank(self.group, 0) if self.group is not None else 0

    def agree(self, work: Callable[[], Any], conclude: Callable[[list[Any]], Any]) -> Any:
        """Run `work` on every rank and `conclude` on rank 0 with all JSON results; return that on every rank.

        A failure on any rank, or of `conclude`, raises the same CheckpointError on every rank. If a rank is
        gone, the others get torch.distributed's own error.
        """
        report, failure = self._attempt(work)
        reports = self._gather(report)
        verdict: dict[str, Any] = {}
        if reports is not None:
            verdict, trouble = self._attempt(lambda: conclude(_results(reports)))
            failure = failure or trouble
        verdict = self._broadcast(verdict)
        if "error" in verdict:
            raise CheckpointError(verdict["error"]) from failure
        return verdict["result"]

    def any(self, here: bool) -> bool:
        """Whether `here` is true on at least one rank; all ranks call it at the same place."""
        if self.group is None:
            return here
        flag = torch.tensor([int(here)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag.item())

    def pass_on(self, transfers: Sequence[Transfer], read: Reader, write: Writer) -> None:
        """Carry bytes between ranks, all transfers at a time and a chunk of each; every rank passes the same ones.

        `read(number, count)` on the source gives the next bytes of a transfer, `write(number, data)` on the target
        takes them. A rank on which one of these fails sends zeros from then on, so that its peers do not wait, and
        raises the error at the end.
        """
        failures: list[Exception] = []
        for first in range(0, max((size for _, _, size in transfers), default=0), CHUNK):
            works: list[Any] = []
            arriving: list[tuple[int, torch.Tensor]] = []
            for number, (source, target, size) in enumerate(transfers):
                count = min(CHUNK, size - first)
                if count <= 0 or self.rank not in (source, target):
                    continue
                data = torch.zeros(count, dtype=torch.uint8)
                if self.rank == source:
                    _guarded(failures, partial(_fill, data, read, number))
                    works.append((dist.isend(data, self._global(target), group=self.group, tag=number), data))
                else:
                    works.append((dist.irecv(data, self._global(source), group=self.group, tag=number), data))
                    arriving.append((number, data))
            for work, _ in works:
                work.wait()
            for number, data in arriving:
                _guarded(failures, partial(write, number, byte_view(data)))
        if failures:
            raise failures[0]

    def _global(self, rank: int) -> int:
        assert self.group is not None
        return dist.get_global_rank(self.group, rank)

    def _attempt(self, work: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
        try:
            return {"result": work()}, None
        except CheckpointError as error:
            return {"error": str(error)}, error
        except Exception as error:  # noqa: BLE001 - the peers wait for an answer, so every failure must reach them
            return {"error": f"{type(error).__name__}: {error}"}, error

    def _gather(self, value: Any) -> list[Any] | None:
        """Values of all ranks on rank 0, None elsewhere."""
        if self.group is None:
            return [value]
        data = _encode(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([data.numel()]), group=self.group)
        padded = torch.zeros(max(int(length) for length in lengths), dtype=torch.uint8)
        padded[: data.numel()] = data
        parts = [torch.empty_like(padded) for _ in lengths] if self.rank == 0 else None
        dist.gather(padded, parts, dst=self._first, group=self.group)
        if parts is None:
            return None
        return [_decode(part[: int(length)]) for part, length in zip(parts, lengths)]

    def _broadcast(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        if self.group is None:
            return value
        data = _encode(value)
        length = torch.tensor([data.numel()])
        dist.broadcast(length, src=self._first, group=self.group)
        if self.rank != 0:
            data = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, src=self._first, group=self.group)
        return _decode(data)


def _guarded(failures: list[Exception], work: Callable[[], Any]) -> None:
    """Do `work`, unless something failed before; keep the error."""
    if failures:
        return
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the peers wait for this rank's bytes
        failures.append(error)


def _fill(data: torch.Tensor, read: Reader, number: int) -> None:
    data.copy_(torch.frombuffer(bytearray(read(number, data.numel())), dtype=torch.uint8))


def _cpu_group() -> dist.ProcessGroup | None:
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    return group if isinstance(group, dist.ProcessGroup) else None


def _results(reports: list[dict[str, Any]]) -> list[Any]:
    """Every rank's result, or a CheckpointError with the failing ranks' reasons."""
    failed = [f"rank {rank}: {report['error']}" for rank, report in enumerate(reports) if "error" in report]
    if len(failed) > _NAMED_FAILURES:
        failed[_NAMED_FAILURES:] = [f"and {len(failed) - _NAMED_FAILURES} more ranks"]
    if failed:
        raise CheckpointError("; ".join(failed))
    return [report["result"] for report in reports]


def _encode(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json_bytes(value, "a message between ranks")), dtype=torch.uint8)


def _decode(data: torch.Tensor) -> Any:
    return json.loads(data.numpy().tobytes())
