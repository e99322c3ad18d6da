"""Changes of the records of a healthy script: what a fault, or a harmless difference, would leave there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.prove import made
from tests.prove.made import every, run, without
from tools.prove.observed import Run
from training.prove.records import Batch, Dropout, End, Fetched, FoundFile, Peers, Save, Uncovered

Runs = dict[str, Run]
PAIRS = ([0, 1], [2, 3])  # of four ranks


def failed_world(runs: Runs) -> None:
    runs["world"] = run("world", exit_code=1, first=5, last=5, world=1, reason="exit")


def no_message(runs: Runs) -> None:
    failed_world(runs)
    runs["world"].outcome.exit_code = 0  # type: ignore[union-attr]


def refused(runs: Runs) -> None:
    failed_world(runs)
    runs["world"].log = "ValueError: the checkpoint is of another number of ranks"


def not_taken(runs: Runs, name: str) -> None:
    runs[name] = run(name, exit_code=1, first=5, last=5, reason="exit")
    runs[name].log = "RuntimeError: damaged"


def outside(runs: Runs, path: str, **more: Any) -> None:
    runs["whole"].outcome.files.append(FoundFile(path, 10, False, **more))  # type: ignore[union-attr]


def end(runs: Runs, name: str, **values: Any) -> None:
    for key, value in values.items():
        setattr(runs[name].outcome, key, value)


def crashed(runs: Runs) -> None:
    every(runs["whole"], End, reason="finished")
    end(runs, "whole", exit_code=1)


def never_saves(runs: Runs) -> None:
    for one in runs.values():
        without(one, Save)


def writes_nothing(one: Run) -> None:
    without(one, Save)
    assert one.outcome
    one.outcome.files = []


def never_writes(runs: Runs) -> None:
    for one in runs.values():
        writes_nothing(one)


def saves_data(one: Run, path: str = f"{made.KEPT}/data.pt") -> None:
    """Let rank 0 save prepared data before the first step, where an older file lies, and no checkpoint."""
    writes_nothing(one)
    one.ranks[0].events.append(Save(0, 1, path, 1000, "torch.save", True, 0.1))
    assert one.outcome
    one.outcome.files = [FoundFile(path, 1000, path.startswith(made.KEPT))]


def early_kill(runs: Runs) -> None:
    without(runs["killed"], Save)
    runs["resumed"], runs["world"] = run("resumed"), run("world", world=1)


def kill_after_data(runs: Runs) -> None:
    early_kill(runs)
    saves_data(runs["killed"])


def save_outside(runs: Runs) -> None:
    every(runs["whole"], Save, (0,), path="/other/step.pt")
    outside(runs, "/other/step.pt")


def same_states(runs: Runs) -> None:
    for one in runs["whole"].workers:
        one.state = "s"


def fetched(runs: Runs, *of_workers: str, trained: bool = True) -> None:
    """Let the workers of a loader begin a stream with these samples, one a letter, on which a step may train."""
    if trained:
        batch = runs["whole"].ranks[0].of(Batch)[0]
        batch.rows = [*batch.rows, *of_workers[0]]
    for worker, rows in enumerate(of_workers):
        runs["whole"].fetched.append(Fetched(0, 0, 0, worker, list(rows)))


def unused_states(runs: Runs) -> None:
    for one in runs["whole"].workers:
        one.state, one.used = "s", False


def stream(runs: Runs, turn: bool = True) -> None:
    """Let two ranks read twelve samples each without a DataLoader, and then those of the other one, or their own."""
    for number in (0, 1):
        for event in runs["whole"].ranks[number].of(Batch):
            whose = (number + turn * (event.step // 6)) % 2
            event.rows = [f"{whose} {event.step % 6} {one}" for one in (0, 1)]
            event.passes, event.indices = None, []


def moved(runs: Runs, again: bool = False) -> None:
    """Let the ranks read a data set in order, which shuffles itself before each pass, or before the first one only."""
    for one in runs["whole"].ranks:
        for batch in one.batches:
            passes, place = divmod(batch.step, 6)
            order = random.Random(0 if again else passes).sample(range(24), 24)
            batch.indices = [str(place * 4 + one.rank * 2 + at) for at in (0, 1)]
            batch.rows, batch.order = [f"row{order[int(index)]}" for index in batch.indices], "in order"
            batch.digest = "/".join(batch.rows)


def parted(runs: Runs, how: str = "tensor") -> None:
    """Let both ranks hold parts of one model: rank 1 reads what rank 0 reads, or what rank 0 made of it."""
    first, second = runs["whole"].ranks
    for one in (first, second):
        one.events.append(Peers(how, [0, 1]))
    read = [replace(event) for event in first.of(Batch)] if how == "tensor" else []
    second.events = [*(event for event in second.events if not isinstance(event, Batch)), *read]
    runs["whole"].workers *= 2  # those of the loaders of both ranks
    every(runs["whole"], Dropout, state=lambda one: f"d{one.step}")


def parted_and_apart(runs: Runs) -> None:
    parted(runs)
    every(runs["whole"], Batch, (1,), digest=lambda one: f"other {one.step}" if one.step % 2 else one.digest)


def parted_twice(runs: Runs) -> None:
    """Let four ranks hold two models, and read one batch."""
    whole = runs["whole"] = run("whole", world=4)
    without(whole, Batch)
    for one in whole.ranks:
        one.events += [*(made.batch(at, at, 0, 2) for at in range(made.STEPS)), Peers("tensor", PAIRS[one.rank // 2])]


def averaged(runs: Runs, every_steps: int = 4) -> None:
    """Let the ranks average their parameters between two steps, after every few of them."""
    for one in runs["whole"].ranks:
        for step in one.steps:
            step.parameters_after += f" of rank {one.rank}"
            if step.step % every_steps != 1:
                step.parameters_before += f" of rank {one.rank}"


def augmented(runs: Runs) -> None:
    """Change the values of samples in each pass and start. Their places in the data set stay."""
    for name in ("whole", "world"):
        for one in runs[name].ranks:
            for event in one.of(Batch):
                event.rows = [f"{name} {event.passes} {row}" for row in event.rows]


def no_steps(runs: Runs) -> None:
    runs["whole"] = run("whole", first=0, last=0, reason="finished")


def raised(runs: Runs) -> None:
    every(runs["whole"], End, reason="exception", error="ValueError: no")


def shifted() -> Run:
    """Return a restart of one rank that skips the batches of two ranks as if they were its own."""
    one = run("world", first=5, world=1)
    one.ranks[0].events = [
        made.batch(event.step, event.step + 2, 0, 1) if isinstance(event, Batch) else event
        for event in one.ranks[0].events
    ]
    return one


def two_optimizers(runs: Runs) -> None:
    """Let two optimizers with parameters of their own step in turn."""
    for one in runs.values():
        for step in (event for each in one.ranks for event in each.steps):
            at, one_of_two = int(step.gradients[1:]), int(step.gradients[1:]) % 2
            step.optimizer, step.state_before = one_of_two, f"s{one_of_two}.{at}"
            step.parameters_before, step.parameters_after = f"p{one_of_two}.{max(0, at - 2)}", f"p{one_of_two}.{at}"


def skipped(name: str) -> Callable[[Runs], None]:
    return lambda runs: end(runs, name, ended_by="skipped", reason="no save in 12 steps")


def unseen(what: str) -> Callable[[Runs], None]:
    return lambda runs: runs["whole"].ranks[0].events.append(Uncovered(what, "the optimizer is compiled"))
