"""Processes that tokenise, one per processor; results come in the order of the inputs.

`python -m training.data.workers DESCRIPTOR` is one of them. It ends when its parent does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Generic, TypeVar, cast

from training.data.errors import DataError
from training.data.reporter import POLL, Reporter

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")
Encode = Callable[[Sequence[str]], _Answer]
"""Turns a batch of texts into an answer."""
Batches = Iterable[tuple[_Key, Sequence[str]]]


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def encoding(
    make: Callable[[], Encode[_Answer]], count: int, reporter: Reporter
) -> Iterator[Callable[[Batches[_Key], Callable[[], str]], Iterator[tuple[_Key, _Answer]]]]:
    """Yield a function that encodes batches in order, in this process or, if `count` > 1, in `count` others.

    `make` creates the encoder in the process that uses it, so it must be picklable. The function takes
    batches with a key each, and a function that gives the line of progress.
    """
    if count == 1:
        encode = make()
        yield lambda batches, text: (
            (key, reporter.during(functools.partial(encode, texts), text, stop=lambda: None)) for key, texts in batches
        )
        return
    with contextlib.closing(Workers(make, count)) as workers:
        yield lambda batches, text: workers.encode(batches, lambda: reporter.tick(text))


class Workers(Generic[_Answer]):
    """`count` processes with an encoder each. Raises DataError if one of them ends early."""

    def __init__(self, make: Callable[[], Encode[_Answer]], count: int) -> None:
        self._count = count
        self._idle: queue.Queue[Connection] = queue.Queue()
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self._idle.put(self._start(make))

    def _start(self, make: Callable[[], Encode[_Answer]]) -> Connection:
        ours, theirs = Pipe()
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "RAYON_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "training.data.workers", str(theirs.fileno())]
        process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._processes.append(process)
        ours.send(make)
        return ours

    def encode(self, batches: Batches[_Key], tick: Callable[[], None]) -> Iterator[tuple[_Key, _Answer]]:
        """Yield each batch's key and answer, in order; `tick` is called while waiting."""
        waiting: deque[tuple[_Key, Future[_Answer]]] = deque()
        pool = ThreadPoolExecutor(self._count)
        try:
            for key, texts in batches:
                waiting.append((key, pool.submit(self._ask, texts)))
                if len(waiting) > 2 * self._count:
                    yield _result(*waiting.popleft(), tick)
            while waiting:
                yield _result(*waiting.popleft(), tick)
        finally:
            pool.shutdown(cancel_futures=True)

    def _ask(self, texts: Sequence[str]) -> _Answer:
        connection = self._idle.get()
        try:
            connection.send(list(texts))
            answer, refusal = connection.recv()
        except (EOFError, OSError):
            raise DataError("a tokenising process ended early; check whether memory is short") from None
        finally:
            self._idle.put(connection)
        if refusal:
            raise DataError(refusal)
        return cast(_Answer, answer)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _result(key: _Key, future: Future[_Answer], tick: Callable[[], None]) -> tuple[_Key, _Answer]:
    while not wait([future], timeout=POLL).done:
        tick()
    return key, future.result()


def _work(connection: Connection) -> None:
    encode = connection.recv()()
    while True:
        texts = connection.recv()
        try:
            connection.send((encode(texts), ""))
        except DataError as error:
            connection.send((None, str(error)))


if __name__ == "__main__":
    try:
        _work(Connection(int(sys.argv[1])))
    except (EOFError, OSError, KeyboardInterrupt):
        sys.exit(0)
