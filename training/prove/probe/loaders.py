"""Passes of DataLoaders, the samples of each batch, and the random state of their workers."""

from __future__ import annotations

import functools
import os
import random
import re
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from .. import records
from . import random_state, samples
from .digest import digests, hashed
from .state import Probe

_PASS = "TRAINYARD_PROVE_PASS"  # "loader:pass" of the worker processes that start next
_ORDER = 16  # samples from which the order of a pass is told
_INDEX = 64  # characters
_DISTINCT = 8  # fewer may have the same order by chance
_FETCHES = 4  # batches of a worker that are watched for the use of random numbers
_AHEAD = 8  # batches that a framework may read ahead
_REMEMBERED = 4096  # batches that a script may keep and use again
_DEPTH = 4
_ADDRESS = re.compile("0x[0-9a-f]+")


@dataclass
class Pass:
    """One iteration over a DataLoader."""

    number: int | None  # None: a stream
    dataset: str = ""  # digest of what the data set holds
    whole: bool = False  # its sampler draws each sample of the data set once
    batches: deque[list[str]] = field(default_factory=deque)  # indices of the samples that were drawn, not yet yielded
    first: list[str] = field(default_factory=list)
    over: bool = False
    read: int = 0  # batches that the script read
    used: int = 0  # of these, how many the model has had, with those that were skipped
    ahead: int | None = None  # how many the script reads before the model has one; None: not known yet
    iteration: int | None = None  # of a stream, from 0
    ended: bool = False  # the script has read its end

    @property
    def order(self) -> str | None:
        """A digest of the first samples in their order, once enough of them were drawn."""
        known = len(self.first) >= _ORDER or self.over
        return hashed(*self.first) if known and len(set(self.first)) >= _DISTINCT else None

    def drew(self, index: Any) -> None:
        """Note the samples of the next batch."""
        several = index if isinstance(index, (list, tuple)) else [index]
        indices = [str(one)[:_INDEX] for one in several[: samples.ROWS]]
        self.batches.append(indices)
        self.first.extend(f"{one}," for one in indices[: _ORDER - len(self.first)])


@dataclass
class DataSet:
    """A data set that loaders read. A script may make a new one for each pass, in place of the last one."""

    number: int  # in the order in which they became known
    kind: type
    same: Callable[[Any], bool]
    gone: Callable[[], bool]
    held: str  # digest of what it holds
    passes: int = 0  # begun


@dataclass
class Place:
    """Where in its DataLoader a batch comes from. All is None where that is unknown."""

    of: Pass = field(default_factory=lambda: Pass(None))
    indices: list[str] = field(default_factory=list)
    number: int = 0  # of the batch in its pass, from 1


class Loaders:
    """Follows the DataLoaders of this process."""

    def __init__(self, probe: Probe) -> None:
        self.probe, self.torch = probe, probe.torch
        self.sets: list[DataSet] = []
        self.of: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self.recent: deque[tuple[str, Place]] = deque(maxlen=_AHEAD)
        self.streams = 0  # iterations over streams
        self.known: dict[str, Place] = {}  # by the digest of what was read, or of what the model had of it
        self.kept: Place | None = None  # of the last batch that the script had kept
        self._begin = probe.safe("batches")(self._begin_pass)
        self._note = probe.safe("batches")(self._yielded)
        self._end = probe.safe("batches")(self._ended)

    def install(self) -> None:
        """Wrap the iterators of DataLoaders, and what reads samples in their workers."""
        module: Any = sys.modules["torch.utils.data.dataloader"]
        base, multi = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
        init, reset, index, following = base.__init__, multi._reset, base._next_index, base.__next__

        @functools.wraps(init)
        def begin(one: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._begin(one, loader)
            init(one, loader, *args, **kwargs)

        @functools.wraps(reset)
        def begin_again(one: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                self._begin(one, loader)
            reset(one, loader, first_iter)

        @functools.wraps(index)
        def next_index(one: Any) -> Any:
            of = self.of.get(one)
            try:
                found = index(one)
            except StopIteration:
                if of is not None:
                    of.over = True
                raise
            if of is not None and of.number is not None:
                of.drew(found)
            return found

        @functools.wraps(following)
        def next_batch(one: Any) -> Any:
            try:
                found = following(one)
            except StopIteration:
                self._end(one)
                raise
            self._note(one, found)
            return found

        base.__init__, multi._reset, base._next_index, base.__next__ = begin, begin_again, next_index, next_batch
        self._wrap_fetchers(module._DatasetKind)

    def _begin_pass(self, iterator: Any, loader: Any) -> None:
        data = loader.dataset
        known = self._known(data)
        stream = isinstance(data, self.torch.utils.data.IterableDataset)
        whole = not stream and draws_all(self.torch.utils.data, loader)
        self.of[iterator] = Pass(None if stream else known.passes, known.held, whole)
        if stream:
            self.of[iterator].iteration = self.streams
            self.streams += 1
        os.environ[_PASS] = f"{known.number}:{known.passes}"
        known.passes += 1

    def _known(self, data: Any) -> DataSet:
        found = next((one for one in self.sets if one.same(data)), None)
        if found is not None:
            return found
        held, same, gone = name_of(self.torch, data), *_identity(data)
        old = [one for one in self.sets if one.kind is type(data) and one.gone()]
        before = next((one for one in old if one.held == held), old[0] if old else None)
        if before is None:
            self.sets.append(DataSet(len(self.sets), type(data), same, gone, held))
            return self.sets[-1]
        before.same, before.gone, before.held = same, gone, held
        return before

    def _yielded(self, iterator: Any, batch: Any) -> None:
        of = self.of.get(iterator)
        if of is None:
            return
        of.read += 1
        place = Place(of, of.batches.popleft() if of.batches else [], of.read)
        if not self.torch.is_grad_enabled():
            return
        data = samples.main(self.torch, batch if isinstance(batch, (list, tuple)) else [batch], {})
        digest = samples.digest(self.torch, data) if data is not None else ""
        if of.read == 1:
            self.known.clear()
        if digest:
            self._remember(digest, place)
        self.recent.append((digest, place))

    def _ended(self, iterator: Any) -> None:
        of = self.of.get(iterator)
        if of is not None and not of.ended:
            of.ended = True
            if of.iteration is not None:
                self.probe.later(records.Ended(of.iteration))

    def place(self, digest: str) -> Place:
        """Return where a batch of this content comes from, or where one comes from that the script has changed."""
        if not self.recent:
            return Place()
        last = self.recent[-1][1].of
        if not last.ended:
            self.kept = None
        elif digest in self.known:
            return self._again(self.known[digest])
        if self.kept is not None:
            return self.kept
        found = self._place(digest)
        self._remember(digest, found)
        return found

    def _remember(self, digest: str, place: Place) -> None:
        if len(self.known) < _REMEMBERED:
            self.known.setdefault(digest, place)

    def _again(self, place: Place) -> Place:
        """Return the place of a batch after the end of its loader.

        A script may keep the batches, as `itertools.cycle` and `list` do: each round is a pass.
        """
        of = self.kept.of if self.kept is not None else place.of
        if place.number < of.used:
            of = replace(of, number=None if of.number is None else of.number + 1)
            if of.iteration is not None:
                of.iteration, self.streams = self.streams, self.streams + 1
        of.used = place.number
        if of is not place.of:
            self.kept = Place(of, place.indices, place.number)
        return self.kept or place

    def _place(self, digest: str) -> Place:
        found = next((place for known, place in reversed(self.recent) if known == digest), None)
        last = self.recent[-1][1]
        if found is None:
            number = self._next(last.of)
            mine = (place for _, place in self.recent if place.of is last.of)
            found = next((place for place in mine if place.number == number), last)
        found.of.used = max(found.of.used, found.number)
        return found

    def _next(self, of: Pass) -> int:
        """Return the number of the batch that the model has now: the last one, or one before it if a script prefetches.

        A restart may skip batches, by mistake also in later passes. Then it reads several before the first one that the
        model has.
        """
        if of.ahead is None:
            waiting = max(of.read - of.used - 1, 0)
            skipped = self.probe.restart and waiting > 1
            of.ahead = 0 if skipped or waiting >= _AHEAD else waiting
        number = of.read - of.ahead
        return min(of.used + 1, of.read) if of.ahead and number <= of.used else number

    # Workers

    def _wrap_fetchers(self, kind: Any) -> None:
        create = kind.create_fetcher
        follow = self.probe.safe("random")(self._follow)

        @functools.wraps(create)
        def create_fetcher(kind: Any, dataset: Any, *args: Any) -> Any:
            fetcher = create(kind, dataset, *args)
            info = self.torch.utils.data.get_worker_info()
            if info is not None:
                follow(fetcher, dataset, int(info.id))
            return fetcher

        kind.create_fetcher = staticmethod(create_fetcher)

    def _follow(self, fetcher: Any, dataset: Any, worker: int) -> None:
        """Record the sources of random numbers of a worker, when its first batches show which ones are used."""
        loader, number = (int(text) for text in os.environ.get(_PASS, "0:0").split(":"))
        os.environ[_PASS] = f"{loader}:{number + 1}"  # a worker that stays makes its next fetcher for the next pass
        fetch, before, left = fetcher.fetch, _states(self.torch, dataset), [_FETCHES]
        look = self.probe.safe("random")(self._look)
        note = self.probe.safe("batches")(self._fetched)
        rows = [samples.ROWS * isinstance(dataset, self.torch.utils.data.IterableDataset)]  # still to be noted

        @functools.wraps(fetch)
        def followed(index: Any) -> Any:
            try:
                found = fetch(index)
                if rows[0] > 0:
                    rows[0] -= note(found, (loader, number, worker), bool(getattr(fetcher, "ended", False))) or 1
                return found
            except StopIteration:
                note([], (loader, number, worker), True)
                raise
            finally:
                if left[0] > 0:
                    left[0] -= 1
                    look(dataset, before, left, (loader, number, worker))

        fetcher.fetch = followed

    def _fetched(self, batch: Any, place: tuple[int, int, int], ended: bool) -> int:
        """Record a batch of a stream, which no other worker should have. Return the number of its samples."""
        data = samples.main(self.torch, batch if isinstance(batch, (list, tuple)) else [batch], {})
        rows = [] if data is None else samples.row_digests(self.torch, data)
        self.probe.write_worker(records.Fetched(self.probe.rank, *place, rows, ended))
        return len(rows)

    def _look(self, dataset: Any, before: dict[str, str], left: list[int], place: tuple[int, int, int]) -> None:
        after = _states(self.torch, dataset)
        for source in list(before):
            used = after.get(source) != before[source]
            if used or left[0] == 0:
                self.probe.write_worker(records.Worker(*place, source, before.pop(source), used))


def _identity(data: Any) -> tuple[Callable[[Any], bool], Callable[[], bool]]:
    """Return what tells whether another data set is this one, and whether this one is gone. It is not kept alive."""
    place = id(data)
    try:
        held = weakref.ref(data)
    except TypeError:  # a list
        return lambda other: id(other) == place, lambda: False
    return lambda other: held() is other, lambda: held() is None


def draws_all(data: Any, loader: Any) -> bool:
    """Return whether a loader has one of torch's samplers that draw each sample of the data set once."""
    batches, sampler = loader.batch_sampler, loader.sampler
    if batches is not None:
        if type(batches) is not data.BatchSampler:
            return False
        sampler = batches.sampler
    once = type(sampler) is data.SequentialSampler or (type(sampler) is data.RandomSampler and not sampler.replacement)
    return once and len(sampler) == len(loader.dataset)


def _states(torch: Any, dataset: Any) -> dict[str, str]:
    """Return a digest of each source of random numbers in a worker."""
    return {**random_state.digest(torch), **dict(_generators(torch, dataset, "dataset", 0, set()))}


def name_of(torch: Any, dataset: Any) -> str:
    """Return a digest of what a data set holds, or an empty text where it does not let itself be read."""
    try:
        return hashed(*_held(torch, dataset, 0, set()))
    except Exception:  # noqa: BLE001 - attributes of the script's own objects
        return ""


def _held(torch: Any, value: Any, depth: int, seen: set[int]) -> Iterator[str]:
    """Yield texts of what a data set holds: its numbers and texts, the beginnings of lists, tensors up to a size.

    Generators of random numbers are left out: ranks that read one data set may seed them differently.
    """
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        yield repr(value)[:256]
    elif id(value) in seen or depth > _DEPTH or _generator_state(torch, value) is not None:
        return
    else:
        seen.add(id(value))
        yield type(value).__qualname__
        if isinstance(value, torch.Tensor):
            yield f"{tuple(value.shape)}{digests(torch, [value[:1024] if value.dim() else value])[0]}"
        elif hasattr(value, "tobytes") and hasattr(value, "shape"):
            yield f"{value.shape}{hashed(value[:1024].tobytes() if value.shape else value.tobytes())}"
        elif isinstance(value, dict):
            for key, one in list(value.items())[:64]:
                yield f"{key}"[:256]
                yield from _held(torch, one, depth + 1, seen)
        elif isinstance(value, (list, tuple)):
            yield f"{len(value)}"
            for one in value[:256]:
                yield from _held(torch, one, depth + 1, seen)
        elif isinstance(value, (set, frozenset)):
            yield from sorted(repr(one)[:256] for one in value)[:256]
        elif _has_attributes(value) and not hasattr(value, "iloc"):  # which tables of pandas have
            yield from _held(torch, vars(value), depth + 1, seen)
        elif getattr(type(value), "__repr__", None) is not object.__repr__:  # ranges, paths, tables
            yield _ADDRESS.sub("", repr(value)[:4096])


def _has_attributes(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type)


def _generators(torch: Any, value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield the generators that a data set keeps: in its attributes, in its transforms, in what it wraps."""
    if id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    state = _generator_state(torch, value)
    if state is not None:
        yield name, state
        return
    if isinstance(value, dict):
        inner = [(f"{name}[{key}]", one) for key, one in list(value.items())[:64]]
    elif isinstance(value, (list, tuple)):
        inner = [(f"{name}[{place}]", one) for place, one in enumerate(value[:16])]
    else:
        held = vars(value) if _has_attributes(value) and not isinstance(value, torch.Tensor) else {}
        inner = [(f"{name}.{key}", one) for key, one in list(held.items())[:64]]
    for path, one in inner:
        if not isinstance(one, (str, bytes, int, float, bool, type(None))):
            yield from _generators(torch, one, path, depth + 1, seen)


def _generator_state(torch: Any, value: Any) -> str | None:
    if isinstance(value, random.Random):
        return hashed(value.getstate()[:2])
    if isinstance(value, torch.Generator):
        return hashed(value.get_state().tolist())
    module = type(value).__module__ or ""
    if module.startswith("numpy.random") and hasattr(value, "bit_generator"):
        return hashed(_plain(value.bit_generator.state))
    if module.startswith("numpy.random") and hasattr(value, "get_state"):
        return hashed(_plain(value.get_state()))
    return None


def _plain(state: Any) -> Any:
    """Return a state without arrays, whose text would be shortened."""
    if isinstance(state, dict):
        return sorted((key, _plain(one)) for key, one in state.items())
    if isinstance(state, (list, tuple)):
        return [_plain(one) for one in state]
    return state.tolist() if hasattr(state, "tolist") else state
