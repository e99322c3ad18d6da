"""The feed of a stream: each rank reads its lanes in threads, ahead of the steps."""

from __future__ import annotations

import hashlib
import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.data.errors import DataError
from training.data.index import HELDOUT
from training.data.remote_files import RemotePlace
from training.data.retries import Stopped
from training.data.sampler import heldout_batches
from training.data.stream.lanes import Plan, Sample, State, samples
from training.data.token_dataset import NO_LABEL, TokenDataset
from training.data.token_dataset import Batch as TokenBatch

if TYPE_CHECKING:
    from training.config import Config
    from training.distributed.ranks import Ranks
    from training.task import Batch

# More lanes mean more connections and more blocks to read again on a resume; more ranks than this are rare.
MOST_LANES = 64
# If there are few files they are read in parts, so that a machine's ranks can share them.
FEWEST_LANES = 8
_AHEAD_STEPS = 2
_KEPT_STATES = 4
_SAY_AFTER = 10.0
_CLOSING_S = 5.0


def lanes_for(config: Config, files: int, world_size: int) -> int:
    """Return the stream's number of lanes: `data.stream.lanes`, or one derived from batch size and files.

    It does not depend on the number of ranks, so that any number of ranks reads the same samples. Raises
    DataError if the ranks cannot share the lanes evenly.
    """
    assert config.data.stream is not None
    batch = config.train.global_batch_size
    most = min(MOST_LANES, max(files, FEWEST_LANES))
    lanes = config.data.stream.lanes or max(n for n in range(1, most + 1) if batch % n == 0)
    if lanes % world_size:
        fitting = [n for n in range(1, batch + 1) if batch % n == 0 and n % world_size == 0]
        near = min(fitting, key=lambda n: abs(n - lanes), default=None)
        hint = f"; nearest data.stream.lanes: {near}, for a new run" if near else ""
        raise DataError(f"{world_size} ranks cannot share the stream's {lanes} lanes evenly{hint}")
    return lanes


class _LaneThread:
    """Reads one lane's samples ahead of need."""

    def __init__(self, plan: Plan, lane: int, state: State | None, ahead: int, stop: threading.Event) -> None:
        self._queue: queue.Queue[Sample | Exception] = queue.Queue(ahead)
        self._stop = stop
        self._thread = threading.Thread(target=self._run, args=(plan, lane, state), daemon=True)
        self._thread.start()

    def _run(self, plan: Plan, lane: int, state: State | None) -> None:
        try:
            for sample in samples(plan, lane, state):
                if not self._put(sample):
                    return
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001 - `take` raises it again
            self._put(error)

    def _put(self, item: Sample | Exception) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def take(self, waiting: Callable[[], None]) -> Sample:
        """Return the next sample; `waiting` is called every _SAY_AFTER seconds until there is one."""
        while True:
            try:
                item = self._queue.get(timeout=_SAY_AFTER)
            except queue.Empty:
                waiting()
                continue
            if isinstance(item, Exception):
                raise item
            return item

    def join(self, seconds: float) -> None:
        self._thread.join(max(0.0, seconds))


class StreamFeed:
    """A stream divided over ranks by lanes. Rank r reads the lanes r, r + ranks, ...

    A step takes equally many samples of every lane, so the global batch is the same for any number of ranks.
    `first` is the dataset prepared from the stream's first part: its tokenizer and the held-out documents.
    """

    def __init__(self, config: Config, plan: Plan, first: Path, ranks: Ranks, say: Callable[[str], None]) -> None:
        self._config, self._ranks, self._say = config, ranks, say
        self._heldout = TokenDataset.open(first, HELDOUT, config.sequence_length)
        self.directory = first
        self._stop = threading.Event()
        places = tuple(
            replace(place, tell=say, stop=self._stop) if isinstance(place, RemotePlace) else place
            for place in plan.files
        )
        self._plan = replace(plan, files=places)
        self._lanes = list(range(ranks.rank, plan.lanes, ranks.world_size))
        self._threads: dict[int, _LaneThread] = {}
        self._position = 0
        self._states: dict[int, dict[int, State | None]] = {0: dict.fromkeys(self._lanes)}
        self._last: tuple[int, list[Batch]] | None = None
        self.reference = {
            "unigram_nats": self._heldout.unigram_nats,
            "ln_vocab": math.log(config.model.vocab_size),
        }

    @property
    def digest(self) -> str:
        """Digest of the stream's definition: its files' names, its split and order, its first part."""
        plan = self._plan
        content = [
            [place.name for place in plan.files], plan.text_field, plan.lanes, plan.seed, plan.block,
            str(plan.heldout_below), self._heldout.digest,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def describe(self) -> str:
        plan = self._plan
        parts = f", each in {plan.parts} parts" if plan.parts > 1 else ""
        return (
            f"a stream of {len(plan.files):,} files{parts} in {plan.lanes} lanes, {len(self._lanes)} a rank, "
            f"shuffled in blocks of {plan.block:,} documents"
        )

    def batches(self, position: int) -> list[Batch]:
        """Read this rank's part of the step at `position`, which is the next step or the last one again."""
        if self._last is not None and self._last[0] == position:
            return self._last[1]
        if position != self._position:
            raise DataError(f"the stream is at sample {self._position:,}, not at {position:,}")
        batch = self._config.train.global_batch_size
        rounds = batch // self._plan.lanes
        self._start(rounds)
        taken = {lane: [self._take(lane) for _ in range(rounds)] for lane in self._lanes}
        rows = [taken[lane][number] for number in range(rounds) for lane in self._lanes]
        micro = self._config.parallel.micro_batch_size
        result: list[Batch] = [_batch(rows[first : first + micro]) for first in range(0, len(rows), micro)]
        self._position = position + batch
        self._states[self._position] = {lane: taken[lane][-1].state for lane in self._lanes}
        self._states = dict(list(self._states.items())[-_KEPT_STATES:])
        self._last = (position, result)
        return result

    def _start(self, rounds: int) -> None:
        if self._threads:
            return
        states = self._states[self._position]
        ahead = max(2, _AHEAD_STEPS * rounds)
        self._threads = {lane: _LaneThread(self._plan, lane, states[lane], ahead, self._stop) for lane in self._lanes}

    def _take(self, lane: int) -> Sample:
        began = time.monotonic()
        return self._threads[lane].take(
            lambda: self._say(f"waiting for documents of lane {lane} for {time.monotonic() - began:.0f} s")
        )

    def heldout(self, sequences: int) -> Iterator[Batch]:
        """Read this rank's share of the held-out documents, which are in no lane."""
        for indices in heldout_batches(
            sequences, self._config.parallel.micro_batch_size, self._ranks.rank, self._ranks.world_size,
            len(self._heldout),
        ):  # fmt: skip
            yield self._heldout.batch(indices, np.zeros_like(indices))

    def state(self) -> dict[str, Any]:
        """This rank's lanes at the last positions: a save may come before or after the next step's read."""
        return {
            str(position): {str(lane): state for lane, state in lanes.items()}
            for position, lanes in self._states.items()
        }

    def restore(self, position: int, writers: int, state_of: Callable[[int], dict[str, Any]]) -> None:
        """Continue at a checkpoint's position, whatever number of ranks wrote it. Raises DataError."""
        lanes: dict[int, State | None] = {}
        for writer in range(writers):
            saved = state_of(writer).get(str(position), {})
            lanes |= {int(lane): state for lane, state in saved.items()}
        missing = [lane for lane in self._lanes if lane not in lanes]
        if missing:
            raise DataError(f"the checkpoint has no state of lane {missing[0]} at sample {position:,}")
        self.close()
        self._stop.clear()
        self._threads, self._last, self._position = {}, None, position
        self._states = {position: {lane: lanes[lane] for lane in self._lanes}}

    def close(self) -> None:
        """Stop the threads and wait some seconds; one that waits for a server ends with the process."""
        self._stop.set()
        last = time.monotonic() + _CLOSING_S
        for thread in self._threads.values():
            thread.join(last - time.monotonic())


def _batch(rows: list[Sample]) -> TokenBatch:
    """Collate samples; labels and positions do not cross documents' borders."""
    tokens = np.stack([row.tokens for row in rows])
    documents = np.stack([row.documents for row in rows])
    places = np.arange(tokens.shape[1] - 1)
    new = np.zeros_like(documents[:, :-1], dtype=bool)
    new[:, 1:] = documents[:, 1:-1] != documents[:, :-2]
    begins = np.maximum.accumulate(np.where(new, places, 0), axis=1)
    same = documents[:, 1:] == documents[:, :-1]
    return TokenBatch(
        input_ids=tokens[:, :-1],
        labels=np.where(same, tokens[:, 1:], NO_LABEL),
        position_ids=places - begins,
        document_ids=documents[:, :-1],
    )
