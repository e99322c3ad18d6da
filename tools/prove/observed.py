"""What the starts of a proof recorded, as the judges read it."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tools.core import output, tables
from training.prove import records
from training.prove.records import Batch, Outcome, Save, Step

TABLE: dict[str, Any] = tables.load("prove/claims.yaml")
TAIL_BYTES = 256 << 10
_ERROR = re.compile(
    r"\b[\w.]{0,100}(?:Error|Exception|Exit|Interrupt)\b:? ?.*|^.*\b(?:error|fatal):.*"
    r"|^terminate called .*|^what\(\): .*|^Segmentation fault.*",
    re.IGNORECASE,
)
T = TypeVar("T")
Naming = Callable[[Batch], list[str]]
_LAUNCHER = re.compile(r"ChildFailedError|elastic\.multiprocessing|CalledProcessError|SignalException")


@dataclass
class Rank:
    """The events of one rank, in order. Steps are in the order of their numbers."""

    rank: int
    events: list[Any]

    def of(self, kind: type[T]) -> list[T]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[T]) -> T | None:
        """Return the last event of one kind, or None."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    @property
    def begin(self) -> records.Begin:
        return self.of(records.Begin)[0]

    @property
    def end(self) -> records.End | None:
        return self.last(records.End)

    @property
    def steps(self) -> list[Step]:
        return self.of(Step)

    @property
    def batches(self) -> list[Batch]:
        return self.of(Batch)

    @property
    def peers(self) -> set[int]:
        """The ranks that hold parts of one model with this one, and this one."""
        return {self.rank}.union(*(event.ranks for event in self.of(records.Peers)))

    def all_batches(self) -> dict[int, list[str]]:
        """Return the digests of the batches of each step: the key is the number of steps done before it."""
        found: dict[int, list[str]] = {}
        for batch in self.batches:
            found.setdefault(batch.step, []).append(batch.digest)
        return found

    def losses(self) -> dict[int, records.Loss]:
        """Return the last loss before each step, by the number of steps done."""
        return {loss.step: loss for loss in self.of(records.Loss)}


@dataclass
class Run:
    """One start: its outcome and its ranks. `outcome` is None where the start did not happen."""

    name: str
    outcome: Outcome | None
    ranks: list[Rank] = field(default_factory=list)
    workers: list[records.Worker] = field(default_factory=list)
    fetched: list[records.Fetched] = field(default_factory=list)
    log: str = ""
    beside: int = 0  # processes that train without ranks and without shared memory; `ranks` has one of them

    @property
    def result(self) -> Outcome:
        """The outcome of a start that happened."""
        assert self.outcome is not None
        return self.outcome

    @property
    def no_save(self) -> str:
        """Return why no checkpoint of this start is known, or an empty text."""
        none = records.UNSEEN if self.unseen_saves else f"no save in {self.last_step} steps"
        return "" if self.checkpoints else none

    @property
    def unseen_saves(self) -> list[str]:
        """The files like checkpoints that no rank saved."""
        return records.unseen_saves(self.outcome, (save for _, save in self.saves)) if self.outcome else []

    @property
    def trained(self) -> bool:
        return any(rank.steps for rank in self.ranks)

    @property
    def last_step(self) -> int:
        """The number of optimizer steps that the rank with the most of them took."""
        return max((step.step for rank in self.ranks for step in rank.steps), default=0)

    @property
    def saves(self) -> list[tuple[int, Save]]:
        return [(rank.rank, save) for rank in self.ranks for save in rank.of(Save)]

    @property
    def checkpoints(self) -> list[tuple[int, Save]]:
        """The saves after a step. What is saved before the first one may be prepared data, or arguments."""
        return [(rank, save) for rank, save in self.saves if save.step]

    @property
    def replicas(self) -> list[list[Rank]]:
        """The ranks by model: those that hold parts of one model are together."""
        found: list[list[Rank]] = []
        for rank in self.ranks:
            mine = [ranks for ranks in found if any(rank.rank in one.peers or one.rank in rank.peers for one in ranks)]
            apart = [ranks for ranks in found if ranks not in mine]
            found = [*apart, [*itertools.chain(*mine), rank]]
        return found

    @property
    def readers(self) -> list[Rank]:
        """Of the ranks of each model, the first that reads batches."""
        firsts = (next((rank for rank in ranks if rank.batches), None) for ranks in self.replicas)
        return sorted(filter(None, firsts), key=lambda one: one.rank)

    @property
    def sharded(self) -> bool:
        return any(step.sharded for rank in self.ranks for step in rank.steps)

    @property
    def shares_memory(self) -> bool:
        """Whether processes without ranks hold their parameters in shared memory."""
        alone = not self.worlds() and all(rank.begin.world == 1 for rank in self.ranks)
        return alone and len(self.ranks) > 1 and all(step.shared for rank in self.ranks for step in rank.steps)

    @property
    def stand_in(self) -> bool:
        return any(rank.begin.stand_in for rank in self.ranks)

    def uncovered(self, *whats: str) -> str:
        """Return why something cannot be observed here, or an empty text."""
        events = (event for rank in self.ranks for event in rank.of(records.Uncovered))
        return next((event.reason for event in events if event.what in whats), "")

    def injected(self, kind: str) -> list[records.Injected]:
        """Return the faults of one kind that happened."""
        return [event for rank in self.ranks for event in rank.of(records.Injected) if event.kind == kind]

    def ends(self) -> list[records.End]:
        return [rank.end for rank in self.ranks if rank.end]

    def worlds(self) -> list[records.World]:
        return [world for rank in self.ranks if (world := rank.last(records.World))]

    def dropouts(self) -> Iterator[tuple[int, records.Dropout]]:
        for rank in self.ranks:
            yield from ((rank.rank, event) for event in rank.of(records.Dropout))

    def complaint(self) -> str:
        """Return the last line of the log that names an error, else that of a start that failed, else an empty text."""
        lines = [re.sub(r"^\[(?:rank|default)?\d+\]: ?", "", line) for line in self.log.splitlines()]
        lines = [line.strip() for line in lines if re.search(r"\w", line) and not line.startswith("    ")]  # no code
        errors = [found[0] for line in lines if not _LAUNCHER.search(line) and (found := _ERROR.search(line))]
        ended_well = self.outcome is not None and self.outcome.exit_code == 0
        said = errors or ([] if ended_well else lines)
        return output.short(said[-1], 200) if said else ""

    def need(self, text: str | None = None) -> str:
        """Return what the log, or a part of it, says that the script needs, by the names of the table, or nothing."""
        said = self.log if text is None else text
        found = (need for need, rows in TABLE["needs"].items() if any(re.search(row, said) for row in rows))
        return next(found, "")

    def missing(self) -> str:
        """Return why nothing can be said about this start, or an empty text."""
        if self.outcome is None:
            return f"the start `{self.name}` did not happen"
        skipped = self.outcome.ended_by == "skipped"
        return self.outcome.reason or f"the start `{self.name}` was skipped" if skipped else ""

    def silent(self, expected: Iterable[int]) -> str:
        """Return which of some ranks took no step here, or an empty text."""
        missing = sorted(set(expected) - {rank.rank for rank in self.ranks if rank.steps})
        ranks = ", ".join(map(str, missing[:8]))
        return f"no step was seen of rank {ranks} in {TABLE['starts'][self.name]}" if missing else ""

    def not_injected(self, kind: str) -> str:
        """Return why the fault of this start did not happen as planned, or an empty text."""
        missing = self.missing()
        if missing:
            return missing
        return "" if self.injected(kind) else f"the fault of the start `{self.name}` did not reach the script"


@dataclass
class Proof:
    """All starts of a proof by name, and what the plan asked for."""

    runs: dict[str, Run]
    steps: int
    grace: float = 30.0
    notes: dict[str, str] = field(default_factory=dict)  # start -> why it was not planned
    asked: int = 1  # the ranks of a node that the command names; 0 without a launcher
    resume: bool = False  # a restart has a command of its own
    stand_in: Run | None = None  # the run that took no step with the stand-in for CUDA either

    def run(self, name: str) -> Run:
        """Return a start. One that was not carried out has no outcome."""
        return self.runs.get(name) or Run(name, None)

    def why_not(self, name: str) -> str:
        """Return why nothing can be said about a start, or an empty text."""
        run = self.run(name)
        return self.notes.get(name, "") if run.outcome is None and name in self.notes else run.missing()


def read(name: str, directory: Path) -> Run:
    """Read what one start recorded. Damaged and missing files leave it without an outcome."""
    try:
        outcome = records.read_outcome(directory)
    except (OSError, ValueError, TypeError, AttributeError):
        return Run(name, None)
    by_rank: dict[int, list[Rank]] = {}
    for (rank, _), events in records.ranks(directory).items():
        if any(isinstance(event, records.Begin) for event in events):
            by_rank.setdefault(rank, []).append(Rank(rank, events))
    # A rank may start several processes: the one that took most steps is the training.
    ranks = [max(processes, key=_weight) for processes in by_rank.values()]
    beside = _beside(ranks[0], by_rank[ranks[0].rank]) if len(ranks) == 1 else []
    if beside and all(step.shared for process in beside for step in process.steps):
        ranks, beside = [Rank(place, process.events) for place, process in enumerate(beside)], []
    workers, fetched = records.workers(directory, records.Worker), records.workers(directory, records.Fetched)
    return Run(name, outcome, ranks, workers, fetched, tail(directory / "log"), len(beside))


def _weight(process: Rank) -> tuple[int, int]:
    return len(process.steps), len(process.events)


def _beside(best: Rank, processes: list[Rank]) -> list[Rank]:
    """Return the processes that train without ranks of their own, if there are several."""
    found = [one for one in processes if one.steps and 2 * len(one.steps) >= len(best.steps)]
    return found if len(found) > 1 and best.begin.world == 1 and not best.of(records.World) else []


def tail(path: Path) -> str:
    """Return the end of a log, or an empty text."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def naming(ranks: Iterable[Rank]) -> Naming:
    """Return what tells the samples of these ranks apart: their content, their places in the data set, or both.

    Values that change at random, and single whole numbers, which have no digest, leave the places. A place means the
    same on two ranks only if both know the places and read one data set: each may have shuffled a copy of its own.
    Samples that only such places would tell apart have no names.
    """
    readers = [rank for rank in ranks if rank.batches]
    sets = [{batch.dataset for batch in rank.batches} for rank in readers]
    told = {any(batch.indices for batch in rank.batches) for rank in readers}
    one = len(told) == 1 and all(left & right for left, right in itertools.combinations(sets, 2))
    if at_random(readers) or not any(batch.rows for rank in readers for batch in rank.batches):
        return places if one else lambda _: []
    return samples if one else lambda batch: batch.rows


def samples(batch: Batch) -> list[str]:
    """Return a name for each sample of a batch: its content, with its index in the data set where that is known.

    Samples of equal content at other places of the data set are other samples.
    """
    if len(batch.indices) == len(batch.rows):
        return [f"{index}: {row}" for index, row in zip(batch.indices, batch.rows, strict=True)]
    return batch.rows


def at_random(ranks: Iterable[Rank]) -> bool:
    """Return whether the values of samples change at random: one place of a data set gives several contents.

    They are at no other place, or the data set moves its samples.
    """
    held, where = defaultdict[Any, set[str]](set), defaultdict[str, set[Any]](set)
    for batch in (one for rank in ranks for one in rank.batches):
        for index, row in zip(batch.indices, batch.rows, strict=False):
            held[batch.dataset, index].add(row)
            where[row].add((batch.dataset, index))
    return any(sum(len(where[row]) == 1 for row in rows) > 1 for rows in held.values())


def places(batch: Batch) -> list[str]:
    """Return the places of the samples in their data set, where they are known."""
    return [f"{batch.dataset}: {index}" for index in batch.indices] if batch.dataset else []


def first_difference(left: dict[int, Any], right: dict[int, Any]) -> int | None:
    """Return the lowest common key whose values differ, or None."""
    return next((key for key in sorted(left.keys() & right.keys()) if left[key] != right[key]), None)


def first_other_batch(left: dict[int, list[str]], right: dict[int, list[str]]) -> int | None:
    """Return the first step in which two ranks read other batches, or None. A step may have been cut short."""
    common = sorted(left.keys() & right.keys())
    return next((key for key in common if any(a != b for a, b in zip(left[key], right[key], strict=False))), None)


def by_step(rank: Rank, value: Callable[[Step], Any]) -> dict[int, Any]:
    """Return one value of each step of a rank."""
    return {step.step: value(step) for step in rank.steps}
