"""Made-up records of a healthy script: two ranks, twelve steps, saves after steps 5 and 10, a pass of six steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tools.prove.observed import Proof, Rank, Run
from training.prove.records import (
    Batch,
    Begin,
    Dropout,
    End,
    FoundFile,
    Injected,
    Loss,
    Outcome,
    Save,
    Step,
    Worker,
    World,
)

STEPS, PASS, BATCH = 12, 6, 2
SAVES = (5, 10)
KILLED, DONE = 7, 5  # the fault comes after step 7; the restart continues after step 5
KEPT = "/volume/checkpoints"


def step(number: int, at: int, rank: int) -> Step:
    """Return the step that a process counts as `number`, and that is step `at` of the training."""
    return Step(
        step=number, optimizer=0, optimizer_class="AdamW", parameters_before=f"p{at - 1}", parameters_after=f"p{at}",
        gradients=f"g{at}", state_before=f"s{at - 1}", random={"torch": f"r{rank}.{at}"}, rates=[round(0.1 / at, 6)],
        collectives=3, seconds=0.01, tensors={"weight": f"w{at - 1}"},
    )  # fmt: skip


def batch(number: int, at: int, rank: int, world: int) -> Batch:
    """Return the batch of step `at` + 1: the samples of a pass are dealt to the ranks in turn."""
    size = BATCH * 2 // world
    passes, place = divmod(at, PASS)
    first = place * BATCH * 2 + rank * size
    samples = PASS * BATCH * 2
    order = [str((one * 5 + passes * 7) % samples) for one in range(samples)]
    indices = order[first : first + size]
    rows = [f"row{index}" for index in indices]
    return Batch(
        step=number, number=number, module="Net", shape=[size, 4], digest="/".join(rows), rows=rows, passes=passes,
        order=f"order{passes}", indices=indices, dataset="data",
    )  # fmt: skip


def rank(number: int, first: int = 0, last: int = STEPS, world: int = 2, reason: str = "steps") -> Rank:
    """Return a rank that trains from after step `first` to step `last`. Without a reason it has no End."""
    events: list[Any] = [
        Begin(number, number, world, 0, 100 + number, ["train.py"], "3.11.7"),
        World(0, world, number, "gloo", 1800.0, 1),
    ]
    for count, at in enumerate(range(first, last), 1):
        events += [
            batch(count - 1, at, number, world), Dropout(count - 1, f"d{number}.{at}"),
            Loss(count - 1, 1.0 / (at + 1), True), step(count, at + 1, number),
        ]  # fmt: skip
        if at + 1 in SAVES and number == 0:
            path = f"{KEPT}/step-{at + 1}.pt"
            events.append(Save(count, (at + 1) // 5, path, 1000, "torch.save", False, 0.1))
    if reason:
        events.append(End(last - first, reason, parameters=f"p{last}", optimizer_steps=last - first))
    return Rank(number, events)


def run(name: str, ended_by: str = "itself", exit_code: int = 0, world: int = 2, **span: Any) -> Run:
    """Return a start whose ranks take the same steps."""
    files = [FoundFile(f"{KEPT}/step-{at}.pt", 1000, True) for at in SAVES]
    outcome = Outcome(name, ended_by, exit_code=exit_code, exit_codes=[exit_code], seconds=5.0, files=files)
    return Run(name, outcome, [rank(number, world=world, **span) for number in range(world)])


def hit(one: Run, kind: str, ranks: tuple[int, ...], at: int, **more: Any) -> Run:
    """Add the fault to ranks of a start."""
    for number in ranks:
        one.ranks[number].events.append(Injected(kind, number, at, **more))
    return one


def torn(name: str, at: int, last: int) -> Run:
    made = run(name, "fault", -9, last=last, reason="")
    return hit(made, "torn-save", (0,), at, path=f"{KEPT}/step-{at}.pt", bytes=500, whole=1000)


def terminated() -> Run:
    made = hit(run("term", exit_code=143, last=KILLED, reason=""), "terminate", (0, 1), KILLED)
    made.ranks[0].events.append(Save(KILLED, 2, f"{KEPT}/step-7.pt", 1000, "torch.save", False, 0.1))
    assert made.outcome
    made.outcome.fault_seconds = 2.0
    return made


def failing(name: str, seconds: float) -> Run:
    made = hit(run(name, exit_code=1, last=6, reason=""), name, (1,), 6)
    assert made.outcome
    made.outcome.fault_seconds = seconds
    return made


def healthy() -> Proof:
    """Return a proof in which each claim holds."""
    runs = [
        run("whole"), run("again"), hit(run("killed", "fault", -9, last=KILLED, reason=""), "kill", (0, 1), KILLED),
        run("resumed", first=DONE), run("world", first=DONE, world=1), torn("torn-first", 5, 5),
        run("torn-first-again"), torn("torn-later", 10, 10), run("torn-later-again", first=5), terminated(),
        failing("exception", 1.0), failing("hang", 30.0),
    ]  # fmt: skip
    for one in runs:
        one.workers = [
            Worker(0, passes, worker, "numpy", f"state {passes} {worker}", True)
            for passes in (0, 1)
            for worker in (0, 1)
        ]
    return Proof({one.name: one for one in runs}, STEPS)


def changed(change: Callable[[dict[str, Run]], Any]) -> Proof:
    """Return the healthy proof with one change to its starts."""
    proof = copy.deepcopy(healthy())
    change(proof.runs)
    return proof


def every(one: Run, kind: type[Any], ranks: tuple[int, ...] = (0, 1), **values: Any) -> None:
    """Set fields of all events of one kind."""
    for number in ranks:
        for event in one.ranks[number].of(kind):
            for name, value in values.items():
                setattr(event, name, value(event) if callable(value) else value)


def without(one: Run, *kinds: type[Any]) -> None:
    """Drop all events of some kinds."""
    for each in one.ranks:
        each.events = [event for event in each.events if not isinstance(event, kinds)]
