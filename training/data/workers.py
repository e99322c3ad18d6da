"""Processes that tokenise, one a processor; what they return is in the order of what they were given.

`python -m training.data.workers DESCRIPTOR` is one of them. It ends when its maker does.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError
from training.data.progress import INTERVAL
from training.data.tokenizer import TextTokenizer, load

_Key = TypeVar("_Key")
Tokens = list[npt.NDArray[Any]]


def processors() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """`count` processes with a tokenizer each. Raises DataError when one of them ends too early."""

    def __init__(self, tokenizer: TextTokenizer, dtype: str, count: int) -> None:
        self._count = count
        self._idle: queue.Queue[Connection] = queue.Queue()
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self._idle.put(self._start(tokenizer, dtype))

    def _start(self, tokenizer: TextTokenizer, dtype: str) -> Connection:
        ours, theirs = Pipe()
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "RAYON_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "training.data.workers", str(theirs.fileno())]
        process = subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._processes.append(process)
        ours.send((tokenizer.files, tokenizer.vocabulary, dtype))
        return ours

    def encode(
        self, batches: Iterable[tuple[_Key, Sequence[str]]], tick: Callable[[], None]
    ) -> Iterator[tuple[_Key, Tokens]]:
        """Yield each batch's documents as tokens, in order; `tick` is called while it waits."""
        waiting: deque[tuple[_Key, Future[Tokens]]] = deque()
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

    def _ask(self, texts: Sequence[str]) -> Tokens:
        connection = self._idle.get()
        try:
            connection.send(list(texts))
            answer = connection.recv()
        except (EOFError, OSError):
            raise DataError("a process that tokenises ended early; is there too little memory?") from None
        finally:
            self._idle.put(connection)
        if isinstance(answer, str):
            raise DataError(answer)
        lengths, tokens = answer
        return np.split(tokens, np.cumsum(lengths)[:-1])

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()


def _result(key: _Key, future: Future[Tokens], tick: Callable[[], None]) -> tuple[_Key, Tokens]:
    while not wait([future], timeout=INTERVAL / 4).done:
        tick()
    return key, future.result()


def _work(connection: Connection) -> None:
    files, vocabulary, dtype = connection.recv()
    tokenizer = load("of the dataset", files, vocabulary)
    while True:
        texts = connection.recv()
        try:
            documents = tokenizer.encode(texts, dtype)
        except DataError as error:
            connection.send(str(error))
            continue
        connection.send(([len(document) for document in documents], np.concatenate(documents)))


if __name__ == "__main__":
    try:
        _work(Connection(int(sys.argv[1])))
    except (EOFError, OSError, KeyboardInterrupt):
        sys.exit(0)
