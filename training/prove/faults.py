"""Chooses when a fault happens, from what the uninterrupted start recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import records
from .plan import Fault, Start


class NoFault(Exception):
    """There is no moment for this fault; the text says why."""


class Seen:
    """The steps and saves of one start, by rank."""

    def __init__(self, directory: Path) -> None:
        self.steps: dict[int, int] = {}
        self.saves: dict[int, list[records.Save]] = {}
        self._all: list[records.Save] = []
        self._directory = directory
        for (rank, _), events in records.ranks(directory).items():
            steps = [event.step for event in events if isinstance(event, records.Step)]
            if max(steps, default=0) >= self.steps.get(rank, 0):
                self.steps[rank] = max(steps, default=0)
                self._all += [event for event in events if isinstance(event, records.Save)]
                # What is saved before the first step may be prepared data: no restart continues from it.
                self.saves[rank] = [event for event in events if isinstance(event, records.Save) and event.step]

    @property
    def last(self) -> int:
        """The number of steps that each rank took."""
        return min(self.steps.values(), default=0)

    def others_save(self) -> bool:
        """Return whether files like checkpoints were written, and no rank saved them."""
        try:
            return bool(records.unseen_saves(records.read_outcome(self._directory), self._all))
        except (OSError, ValueError, TypeError):
            return False

    def save_steps(self) -> list[int]:
        """Return the steps after which something was saved, in order."""
        return sorted({save.step for saves in self.saves.values() for save in saves})


def chosen(start: Start, whole: Path, limit: int) -> Fault:
    """Return the fault of a start with its rank and its step or save. Raises NoFault."""
    assert start.fault is not None
    fault, seen = Fault(**vars(start.fault)), Seen(whole)
    if seen.last == 0:
        raise NoFault("the script took no optimizer step")
    if fault.kind in ("exception", "hang"):
        return _in_one_rank(fault, seen)
    if fault.kind in ("kill", "torn-save") and not seen.save_steps():
        if seen.others_save():
            return _unseen(fault, seen)
        raise NoFault(f"no save in {limit if seen.last >= limit else seen.last} steps")
    if fault.kind == "torn-save":
        return _torn(start, fault, seen)
    if fault.step is None:
        if fault.kind == "kill" and seen.save_steps()[0] >= seen.last:
            raise NoFault(f"the first save comes after step {seen.last}, which is the last one")
        fault.step = _between_saves(seen)
    elif fault.step > seen.last:
        raise NoFault(f"the script ends after step {seen.last}, before step {fault.step} of the interruption")
    return fault


def _in_one_rank(fault: Fault, seen: Seen) -> Fault:
    if len(seen.steps) == 1:
        if fault.kind == "hang":
            raise NoFault("no other rank waits for a single one")
        fault.rank = 0
    else:
        fault.rank = fault.rank or 1
    fault.step = min(seen.last, fault.step or max(2, seen.last // 2))
    return fault


def _unseen(fault: Fault, seen: Seen) -> Fault:
    """Choose a late step where a process that is not a rank saves: the time of its save is unknown."""
    if fault.kind == "torn-save":
        raise NoFault(f"{records.UNSEEN}: no save can be interrupted")
    fault.step = fault.step or max(1, seen.last - 2)
    return fault


def _between_saves(seen: Seen) -> int:
    """Return a step with a save before it, work since that save, and at least two steps left where there are any.

    A rank is interrupted before it can save after that step.
    """
    saves = seen.save_steps()
    after = [step for step in range(1, seen.last + 1) if saves and saves[0] < step]
    early = [step for step in after if step <= seen.last - 2] or after[:1]
    good = [step for step in early if step not in saves] or early
    later = [step for step in good if step > seen.last // 2]
    found = (later or good)[:1]
    return found[0] if found else max(1, seen.last // 2)


def _torn(start: Start, fault: Fault, seen: Seen) -> Fault:
    """Choose a save of the lowest rank that saves: the first one, or one after the first whole checkpoint."""
    fault.rank = min(rank for rank, saves in seen.saves.items() if saves)
    saves = seen.saves[fault.rank]
    if fault.save is not None:
        return fault
    if start.name == "torn-first":
        fault.save = saves[0].number
        return fault
    later = [save for save in saves if save.step > saves[0].step]
    if not later:
        raise NoFault(f"only one checkpoint was written in {seen.last} steps")
    middle: Any = [save for save in later if save.step == later[len(later) // 2].step]
    fault.save = max(middle, key=lambda save: save.bytes).number
    return fault
