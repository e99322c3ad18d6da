"""The ten judges, on made-up records: each finding, its healthy neighbour, and what is unknown."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.prove import made
from tests.prove.made import changed, every, healthy, rank, run, without
from tools.core.verdict import State, Verdict
from tools.prove import claims
from tools.prove.claims import NAMES, judge
from tools.prove.observed import TABLE, Run
from training.prove.records import (
    Batch,
    Begin,
    Dropout,
    End,
    FoundFile,
    Injected,
    Loss,
    Peers,
    Save,
    Step,
    Uncovered,
    Worker,
    World,
)

Runs = dict[str, Run]
PAIRS = ([0, 1], [2, 3])  # of four ranks


@pytest.mark.parametrize("claim", NAMES)
def test_a_healthy_script_keeps_each_claim(claim: str) -> None:
    verdict = judge(claim, healthy())
    assert (verdict.state, verdict.details["findings"]) == (State.PASS, []), verdict


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


def lose(runs: Runs, name: str, kept: bool = False) -> None:
    for path in (f"{made.KEPT}/step-5.pt", f"{made.KEPT}/step-10.pt"):
        runs[name].outcome.files.append(FoundFile(path.replace(made.KEPT, "/other"), 10, kept))  # type: ignore[union-attr]


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


def early_kill(runs: Runs) -> None:
    without(runs["killed"], Save)
    runs["resumed"], runs["world"] = run("resumed"), run("world", world=1)


def save_outside(runs: Runs) -> None:
    every(runs["whole"], Save, (0,), path="/other/step.pt")
    outside(runs, "/other/step.pt")


def same_states(runs: Runs) -> None:
    for one in runs["whole"].workers:
        one.state = "s"


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


def parted(runs: Runs, how: str = "tensor") -> None:
    """Let both ranks hold parts of one model: rank 1 reads what rank 0 reads, or what rank 0 made of it."""
    first, second = runs["whole"].ranks
    for one in (first, second):
        one.events.append(Peers(how, [0, 1]))
    read = [replace(event) for event in first.of(Batch)] if how == "tensor" else []
    second.events = [*(event for event in second.events if not isinstance(event, Batch)), *read]
    runs["whole"].workers *= 2  # those of the loaders of both ranks
    every(runs["whole"], Dropout, state=lambda one: f"d{one.step}")


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


FINDINGS: dict[str, tuple[State, Callable[[Runs], Any]]] = {
    "trains/no-step": (State.FAIL, no_steps),
    "trains/failed": (State.FAIL, raised),
    "trains/ends-badly": (State.WARN, crashed),
    "trains/parameters-fixed": (State.FAIL, lambda r: every(
        r["whole"], Step, parameters_after=lambda one: one.parameters_before)),
    "trains/zero-gradients": (State.FAIL, lambda r: every(r["whole"], Step, zero_gradients=True)),
    "trains/loss-not-finite": (State.FAIL, lambda r: every(r["whole"], Loss, finite=lambda one: one.step != 3)),
    "trains/gradients-not-finite": (State.FAIL, lambda r: every(
        r["whole"], Step, finite_gradients=lambda one: one.step != 3)),
    "trains/foreign-parameters": (State.FAIL, lambda r: every(r["whole"], Step, foreign=["parameter 0"])),
    "trains/missing-parameters": (State.FAIL, lambda r: every(r["whole"], Step, missing=["head.weight"])),
    "trains/gradients-kept": (State.FAIL, lambda r: every(r["whole"], Step, accumulated=True)),
    "world/no-group": (State.FAIL, lambda r: without(r["whole"], World)),
    "world/other-size": (State.FAIL, lambda r: every(r["whole"], World, size=1, rank=0)),
    "world/no-collectives": (State.FAIL, lambda r: every(r["whole"], Step, collectives=0)),
    "world/parameters-differ": (State.FAIL, lambda r: every(
        r["whole"], Step, (1,), parameters_before=lambda one: f"x{one.step - 1}",
        parameters_after=lambda one: f"x{one.step}")),
    "data/same-batches": (State.FAIL, lambda r: every(r["whole"], Batch, digest=lambda one: f"b{one.step}")),
    "data/shared-samples": (State.FAIL, lambda r: every(
        r["whole"], Batch, rows=lambda one: [f"{one.step}", f"{one.step + 1}"], indices=[])),
    "data/order-fixed": (State.WARN, lambda r: every(r["whole"], Batch, order="order")),
    "data/equal-dropout": (State.WARN, lambda r: every(r["whole"], Dropout, state=lambda one: f"d{one.step}")),
    "data/equal-augmentation": (State.WARN, same_states),
    "repeatable/no-seed": (State.WARN, lambda r: every(r["whole"], End, seeded=True)),
    "repeatable/runs-differ": (State.WARN, lambda r: every(
        r["again"], Step, parameters_after=lambda one: f"x{one.step}")),
    "resume/never-starts": (State.FAIL, lambda r: not_taken(r, "resumed")),
    "resume/starts-anew": (State.FAIL, lambda r: r.update(resumed=run("resumed"))),
    "resume/parameters-differ": (State.FAIL, lambda r: every(r["resumed"], Step, parameters_before="other")),
    "resume/optimizer-state": (State.FAIL, lambda r: every(r["resumed"], Step, state_before="fresh")),
    "resume/learning-rate": (State.FAIL, lambda r: every(r["resumed"], Step, rates=[0.1])),
    "resume/next-batch": (State.FAIL, lambda r: every(
        r["resumed"], Batch, digest=lambda one: f"x{one.step}", indices=[])),
    "resume/later-batches": (State.FAIL, lambda r: every(
        r["resumed"], Batch, indices=[], digest=lambda one: f"x{one.step}" if one.step == 3 else one.digest)),
    "resume/random-state": (State.WARN, lambda r: every(r["resumed"], Step, random={"torch": "fresh"})),
    "resume/other-end": (State.WARN, lambda r: every(
        r["resumed"], Step, parameters_after=lambda one: f"x{one.step}" if one.step > 4 else one.parameters_after)),
    "torn/never-starts": (State.FAIL, lambda r: not_taken(r, "torn-later-again")),
    "torn/starts-anew": (State.FAIL, lambda r: r.update({"torn-later-again": run("torn-later-again")})),
    "torn/torn-file-used": (State.FAIL, lambda r: every(r["torn-later-again"], Step, parameters_before="half")),
    "torn/ranks-apart": (State.FAIL, lambda r: r["torn-later-again"].ranks.__setitem__(0, rank(0))),
    "sigterm/ignored": (State.WARN, lambda r: r.update(term=made.hit(run("term"), "terminate", (0, 1), made.KILLED))),
    "sigterm/not-saved": (State.WARN, lambda r: without(r["term"], Save)),
    "sigterm/not-in-time": (State.WARN, lambda r: end(r, "term", ended_by="timeout")),
    "failures/not-ended": (State.FAIL, lambda r: end(r, "exception", ended_by="timeout")),
    "failures/hidden": (State.FAIL, lambda r: end(r, "exception", exit_code=0)),
    "failures/hang-not-ended": (State.WARN, lambda r: end(r, "hang", ended_by="timeout")),
    "rescale/never-starts": (State.FAIL, no_message),
    "rescale/starts-anew": (State.FAIL, lambda r: r.update(world=run("world", world=1))),
    "rescale/samples-differ": (State.WARN, lambda r: r.update(world=shifted())),
    "files/no-checkpoint": (State.WARN, lambda r: without(r["whole"], Save)),
    "files/checkpoint-outside": (State.FAIL, save_outside),
    "files/files-outside": (State.WARN, lambda r: outside(r, "/srv/results.json")),
    "files/one-path": (State.FAIL, lambda r: r["whole"].ranks[1].events.extend(r["whole"].ranks[0].of(Save))),
    "files/overwritten": (State.WARN, lambda r: every(r["whole"], Save, (0,), overwritten=True)),
    "files/secret": (State.FAIL, lambda r: outside(r, "/tmp/log.txt", secret="Hugging Face token")),
}  # fmt: skip


def shifted() -> Run:
    """Return a restart of one rank that skips the batches of two ranks as if they were its own."""
    one = run("world", first=5, world=1)
    one.ranks[0].events = [
        made.batch(event.step, event.step + 2, 0, 1) if isinstance(event, Batch) else event
        for event in one.ranks[0].events
    ]
    return one


@pytest.mark.parametrize("name", FINDINGS)
def test_each_finding_is_named_with_evidence(name: str) -> None:
    claim, _, finding = name.partition("/")
    state, change = FINDINGS[name]
    verdict = judge(claim, changed(change))
    assert finding in verdict.details["findings"], verdict
    assert verdict.state is state, verdict
    assert verdict.remedy
    assert any(any(letter.isdigit() for letter in line) or "/" in line for line in verdict.evidence) or finding in (
        "no-step", "no-group", "no-seed"), verdict  # fmt: skip


@pytest.mark.parametrize(
    ("what", "state", "name", "text"),
    [
        (["accumulated"], State.FAIL, "gradients-kept", "5 of 5 steps of Adam0, first step 4"),
        (["zero_gradients"], State.WARN, "zero-gradients", "zero or missing in all 6 steps of Adam0, first step 2"),
        (
            ["zero_gradients", "no_gradients"],
            State.FAIL,
            "zero-gradients",
            "zero or missing in all 6 steps of Adam0, first step 2",
        ),
    ],
)
def test_a_fault_of_one_of_two_optimizers_is_named(what: list[str], state: State, name: str, text: str) -> None:
    """A half of all steps may be all steps of one optimizer, such as that of a critic or of a generator.

    Gradients that are zero, and not missing, may be those of a critic that counts only later.
    """

    def alternate(runs: Runs) -> None:
        every(runs["whole"], Step, optimizer=lambda step: step.step % 2, optimizer_class=lambda s: f"Adam{s.step % 2}")
        for step in (1, 3, 5, 7, 9, 11):
            for one in runs["whole"].ranks:
                vars(one.steps[step]).update(dict.fromkeys(what, True))

    found = judge("trains", changed(alternate))
    assert (found.state, found.details["findings"], found.evidence[0]) == (state, [name], f"rank 0: {text}")


def test_ranks_that_train_apart_are_averaged_or_named() -> None:
    assert "again after step 4" in judge("world", changed(averaged)).summary
    never = judge("world", changed(lambda runs: averaged(runs, 99)))
    assert never.details["findings"] == ["parameters-differ"]


@pytest.mark.parametrize("tried", [True, False])
@pytest.mark.parametrize("said", ["RuntimeError: Found no NVIDIA driver", "ValueError: no such option"])
def test_a_script_that_the_stand_in_cannot_carry_is_unknown(said: str, tried: bool) -> None:
    """Only after the stand-in was tried, and only where CUDA is what the script complains about."""

    def ended(runs: Runs) -> None:
        runs["whole"] = run("whole", exit_code=1, first=0, last=0, reason="exit")
        runs["whole"].log = f"using the GPU\n{said}\n"

    stand_in = Run("whole", None, log="RuntimeError: unknown parameter type\n") if tried else None
    found = judge("trains", replace(changed(ended), stand_in=stand_in))
    unknown = tried and "NVIDIA" in said
    assert found.state is (State.CANNOT_TELL if unknown else State.FAIL)
    assert ("unknown parameter type" in " ".join(found.evidence)) == unknown


def test_the_log_of_a_run_without_a_step_is_quoted_once() -> None:
    def broken(runs: Runs) -> None:
        runs["whole"] = run("whole", exit_code=1, first=0, last=0, reason="exit")
        runs["whole"].log = "RuntimeError: damaged"

    verdicts = claims.judge_all(NAMES, changed(broken))
    assert [any("damaged" in line for line in one.evidence) for one in verdicts] == [True] + 9 * [False]
    assert "damaged" in judge("resume", changed(broken)).evidence[0], "alone, it quotes it too"


def test_a_restart_that_hangs_after_a_torn_save_does_not_pass() -> None:
    def hang(runs: Runs) -> None:
        not_taken(runs, "torn-first-again")
        end(runs, "torn-first-again", ended_by="timeout", exit_code=-9)
        runs["torn-first"].injected("torn-save")[0].path += ".tmp"

    assert judge("torn", replace(changed(hang), resume=True)).state is State.FAIL


def test_what_the_ranks_of_one_model_read_is_said() -> None:
    def differ(runs: Runs) -> None:
        parted(runs)
        every(runs["whole"], Batch, (1,), digest=lambda one: f"other {one.step}" if one.step % 2 else one.digest)

    same, other, staged = (
        judge("data", changed(change)) for change in (parted, differ, lambda runs: parted(runs, "pipeline"))
    )
    assert same.summary.endswith("read one batch")
    assert "12 of 12 batches are equal" in same.evidence[0]
    assert other.summary.endswith("read different batches")
    assert "6 of 12 batches are equal" in other.evidence[0]
    assert "equal" not in staged.evidence[0]


def test_ranks_of_two_models_may_not_read_one_batch() -> None:
    found = judge("data", changed(parted_twice))
    assert found.details["findings"] == ["same-batches"]
    assert "ranks 0 and 2" in found.evidence[0]


def test_replicas_of_parts_are_compared_by_part() -> None:
    """Ranks 0 and 1 hold stages of one model, and ranks 2 and 3 those of its copy."""

    def staged(runs: Runs, wrong: int | None = None) -> None:
        parted_twice(runs)
        for one in runs["whole"].ranks:
            for step in one.steps:
                stage = f" of stage {one.rank % 2}{' changed' * (one.rank == wrong)}"
                step.parameters_before, step.parameters_after = (
                    digest + stage for digest in (step.parameters_before, step.parameters_after)
                )

    assert judge("world", changed(staged)).state is State.PASS
    found = judge("world", changed(lambda runs: staged(runs, 3)))
    assert found.details["findings"] == ["parameters-differ"]
    assert "ranks 1 and 3" in found.evidence[0]


@pytest.mark.parametrize("place", ["temporary", "final"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_restart_with_a_command_of_its_own_needs_a_checkpoint(resume: bool, place: str) -> None:
    """After the first save was torn there is none, but for a file that was torn in its final place."""

    def refuse(runs: Runs) -> None:
        not_taken(runs, "torn-first-again")
        if place == "temporary":
            runs["torn-first"].injected("torn-save")[0].path += ".tmp"

    proof = replace(changed(refuse), resume=resume)
    verdict = judge("torn", proof)
    assert verdict.state is (State.PASS if resume and place == "temporary" else State.FAIL)
    assert "damaged" in " ".join(verdict.evidence)


def test_the_worse_rank_decides() -> None:
    def unequal(runs: Runs) -> None:
        for one, changes in zip(runs["whole"].ranks, (False, True), strict=True):
            step = one.steps[3]
            step.finite_gradients = False
            step.parameters_after = "other" if changes else step.parameters_before

    found = judge("trains", changed(unequal))
    assert (found.state, found.details["findings"]) == (State.FAIL, ["gradients-not-finite"])


def test_a_stream_that_all_ranks_read_in_other_orders_is_named() -> None:
    """The ranks share a few samples at the beginning, and most of them at the end."""

    def shuffled(runs: Runs) -> None:
        for number, one in enumerate(runs["whole"].ranks):
            for event in one.of(Batch):
                first = event.step * 2
                event.rows = [f"row{(at * (5 + 2 * number) + number * 11) % 24}" for at in (first, first + 1)]
                event.passes, event.indices = None, []

    assert judge("data", changed(shuffled)).details["findings"] == ["shared-samples"]


def test_the_table_has_a_case_for_each_finding() -> None:
    known = {f"{claim}/{name}" for claim, row in TABLE["claims"].items() for name in row["findings"]}
    assert known == set(FINDINGS)


def two_optimizers(runs: Runs) -> None:
    """Let two optimizers with parameters of their own step in turn."""
    for one in runs.values():
        for step in (event for each in one.ranks for event in each.steps):
            at, one_of_two = int(step.gradients[1:]), int(step.gradients[1:]) % 2
            step.optimizer, step.state_before = one_of_two, f"s{one_of_two}.{at}"
            step.parameters_before, step.parameters_after = f"p{one_of_two}.{max(0, at - 2)}", f"p{one_of_two}.{at}"


NEIGHBOURS: dict[str, tuple[str, Callable[[Runs], Any]]] = {
    "one step without a gradient": ("trains", lambda r: every(
        r["whole"], Step, zero_gradients=lambda one: one.step == 3)),
    "a parameter that is in no optimizer for one step": ("trains", lambda r: every(
        r["whole"], Step, missing=lambda one: ["head"] if one.step == 9 else [])),
    "a sampler that pads by one sample": ("data", lambda r: every(
        r["whole"], Batch, rows=lambda one: ["pad", one.rows[1]] if one.step == 5 else one.rows, indices=[])),
    "samples of equal content": ("data", lambda r: every(r["whole"], Batch, rows=["same", "same"])),
    "dropout that is equal in one step": ("data", lambda r: every(
        r["whole"], Dropout, state=lambda one: "d" if one.step == 2 else one.state)),
    "random numbers that no worker uses": ("data", unused_states),
    "ranks that hold parts of one model by tensor parallelism": ("data", parted),
    "ranks that hold stages of one model": ("data", lambda r: parted(r, "pipeline")),
    "ranks that train apart and are averaged": ("world", averaged),
    "a stream that begins anew": ("data", stream),
    "a stream that begins anew in another order": ("data", lambda r: stream(r, turn=False)),
    "a restart between the steps of two optimizers": ("resume", two_optimizers),
    "another rank that is refused": ("rescale", refused),
    "a restart that takes more steps than were left": ("rescale", lambda r: r.update(
        world=run("world", first=5, last=made.STEPS + 6, world=1))),
    "values that change at random": ("rescale", augmented),
    "a first save that was torn": ("torn", lambda r: r.update({"torn-first-again": run("torn-first-again")})),
    "a file in /tmp": ("files", lambda r: outside(r, "/tmp/cache/kernel.so")),
}  # fmt: skip


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_what_is_no_fault_is_not_named(name: str) -> None:
    claim, change = NEIGHBOURS[name]
    verdict = judge(claim, changed(change))
    assert (verdict.state, verdict.details["findings"]) == (State.PASS, []), verdict


def skipped(name: str) -> Callable[[Runs], None]:
    return lambda runs: end(runs, name, ended_by="skipped", reason="no save in 12 steps")


def unseen(what: str) -> Callable[[Runs], None]:
    return lambda runs: runs["whole"].ranks[0].events.append(Uncovered(what, "the optimizer is compiled"))


UNKNOWN: dict[str, tuple[str, str, Callable[[Runs], Any]]] = {
    "an optimizer that cannot be followed": ("trains", "compiled", unseen("optimizer")),
    "collectives that cannot be counted": ("world", "compiled", unseen("collectives")),
    "batches that cannot be read": ("data", "compiled", unseen("batches")),
    "a run that is not there": ("repeatable", "did not happen", lambda r: r.pop("again")),
    "no save before the kill": ("resume", "no save in 12 steps", skipped("killed")),
    "no save to be torn": ("torn", "no save in 12 steps", skipped("torn-first")),
    "a kill that did not happen": ("resume", "did not reach", lambda r: without(r["killed"], Injected)),
    "a torn save that did not happen": ("torn", "did not reach", lambda r: without(r["torn-later"], Injected)),
    "a signal that was not sent": ("sigterm", "did not reach", lambda r: without(r["term"], Injected)),
    "an exception that was not raised": ("failures", "did not reach", lambda r: without(r["exception"], Injected)),
    "a world that cannot be changed": ("rescale", "did not happen", lambda r: r.pop("world")),
    "runs that read other batches": ("resume", "not compared", lambda r: every(
        r["killed"], Batch, digest=lambda one: f"x{one.step}")),
    "a kill before the first save": ("resume", "before the first save", early_kill),
    "another world after a kill before the first save": ("rescale", "before the first save", early_kill),
    "a script that never saves": ("sigterm", "no save in 12 steps", never_saves),
    "a time-out of the run": ("trains", "did not end", lambda r: end(r, "whole", ended_by="timeout", reason="late")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_was_not_seen_is_unknown(name: str) -> None:
    claim, reason, change = UNKNOWN[name]
    verdict = judge(claim, changed(change))
    assert verdict.state is State.CANNOT_TELL, verdict
    assert reason in " ".join([verdict.summary, *verdict.evidence])


@pytest.mark.parametrize("claim", NAMES)
def test_nothing_passes_without_a_step(claim: str) -> None:
    verdict = judge(claim, changed(no_steps))
    assert verdict.state is (State.FAIL if claim == "trains" else State.CANNOT_TELL)


NEEDS: dict[str, list[tuple[str, type[Any]]]] = {
    "world": [("whole", World)],
    "data": [("whole", Batch)],
    "repeatable": [("again", Step)],
    "resume": [("killed", Injected), ("resumed", Step)],
    "torn": [("torn-later", Injected), ("torn-later-again", Step)],
    "sigterm": [("term", Injected)],
    "failures": [("exception", Injected), ("hang", Injected)],
    "rescale": [("killed", Injected), ("world", Step)],
}


@pytest.mark.parametrize(("claim", "start", "kind"), [(claim, *one) for claim, rows in NEEDS.items() for one in rows])
def test_no_claim_passes_without_what_it_looks_at(claim: str, start: str, kind: type[Any]) -> None:
    assert judge(claim, changed(lambda runs: without(runs[start], kind))).state is not State.PASS


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("claim", "start", "kind"),
    [
        ("trains", "whole", Step), ("world", "whole", Step), ("data", "whole", Batch), ("repeatable", "again", Step),
        ("resume", "resumed", Step), ("resume", "resumed", Batch), ("torn", "torn-later-again", Step),
    ],
)  # fmt: skip
def test_no_claim_passes_without_one_rank(claim: str, start: str, kind: type[Any], number: int) -> None:
    """Neither where a rank recorded nothing of it, nor where the rank is absent."""

    def blind(runs: Runs) -> None:
        one = runs[start].ranks[number]
        one.events = [event for event in one.events if not isinstance(event, kind)]

    assert judge(claim, changed(blind)).state is State.CANNOT_TELL
    absent = changed(lambda runs: runs[start].ranks.pop(number))
    assert judge(claim, absent).state is State.CANNOT_TELL


@pytest.mark.parametrize(("offset", "findings"), [(made.DONE, []), (0, ["next-batch"])])
def test_each_micro_batch_of_a_step_is_compared(offset: int, findings: list[str]) -> None:
    """Two batches a step: after the restart the second one is that of step `offset` + 1 of the training."""

    def accumulated(runs: Runs) -> None:
        for name, one in runs.items():
            for each in one.ranks:
                second = [made.batch(it.step, it.step, each.rank, 2) for it in each.of(Batch)]
                for it in second:
                    it.digest, it.indices = f"second {it.step + (offset if name == 'resumed' else 0)}", []
                each.events += second

    assert judge("resume", changed(accumulated)).details["findings"] == findings


def verdict_of(claim: str, state: State) -> Verdict:
    return Verdict(state, "", [], None, {"claim": claim})


@pytest.mark.parametrize(
    ("claim", "state", "strict", "code"),
    [
        ("torn", State.FAIL, False, 1),
        ("data", State.WARN, False, 0),
        ("data", State.WARN, True, 1),
        ("resume", State.CANNOT_TELL, False, 3),
        ("world", State.CANNOT_TELL, False, 3),
        ("torn", State.CANNOT_TELL, False, 0),
        ("files", State.PASS, True, 0),
    ],
)
def test_exit_codes(claim: str, state: State, strict: bool, code: int) -> None:
    assert claims.exit_code([verdict_of("trains", State.PASS), verdict_of(claim, state)], strict) == code


def test_one_rank_alone() -> None:
    """A world of one has no other rank to compare with, and none that waits for a hung one."""
    proof = healthy()
    for name, one in proof.runs.items():
        one.ranks = [rank(0, world=1)] if name == "whole" else one.ranks[:1]
    assert judge("world", proof).state is State.PASS
    assert judge("failures", proof).state is State.CANNOT_TELL  # its exception was planned for rank 1
    without(proof.runs["whole"], World)
    assert judge("world", proof).state is State.PASS
    proof.asked = 2  # accelerate without a GPU
    assert judge("world", proof).state is State.CANNOT_TELL


def test_a_first_step_without_a_rate_is_told_from_none() -> None:
    """A warm-up from 0 changes no parameter in its first step: a new start looks like one after step 1."""

    def warm(runs: Runs) -> None:
        for name, one in runs.items():
            every(
                one,
                Step,
                tuple(range(len(one.ranks))),
                parameters_before=lambda it: it.parameters_before.replace("p0", "p1"),
            )
            assert name
        runs["resumed"] = runs["whole"]

    assert judge("resume", changed(warm)).details["findings"] == ["starts-anew"]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    sys.exit(main())\n"
         "ModuleNotFoundError: No module named 'x'\n    sys.exit(run())\nChildFailedError: \n", "ModuleNotFoundError"),
        ("[rank1]: ValueError: no\n[rank1]:     raise RuntimeError\n", "ValueError: no"),
        ("step 1\nstep 2\n", "step 2"),
        ("step 1\nterminate called after throwing 'X'\n  what():  no room\n=====\n-----\n", "what(): no room"),
        ("Root cause\n  Signal 6 (SIGABRT) received\n=====\n", "Signal 6 (SIGABRT) received"),
    ],
)  # fmt: skip
def test_the_complaint_of_a_log(log: str, said: str) -> None:
    assert said in Run("whole", None, log=log).complaint()


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "epoch 3")])
def test_the_last_line_of_a_log_is_a_complaint_of_a_start_that_failed(code: int, said: str) -> None:
    outcome = run("whole", exit_code=code).outcome
    assert Run("whole", outcome, log="epoch 2\nepoch 3\n").complaint() == said


def test_the_stand_in_is_said_in_each_verdict() -> None:
    proof = changed(lambda runs: every(runs["whole"], Begin, stand_in=True))
    for claim in NAMES:
        assert judge(claim, proof).summary.endswith("(on CPU)")


def test_workers_of_two_ranks_may_not_share_a_state() -> None:
    proof = healthy()
    proof.runs["whole"].workers += [Worker(0, 0, 0, "numpy", "state 0 0", True)]
    assert judge("data", proof).details["findings"] == ["equal-augmentation"]


def _sampled(sampler: Callable[[int, int], list[int]], again: bool = False) -> Verdict:
    """Return the verdict on claim 3 where both ranks read endless passes of two samples a step, by their indices."""

    def change(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            order = sampler(one.rank, 2 * made.STEPS)
            for batch in one.batches:
                batch.passes, batch.order = 0, None
                batch.indices = [str(at) for at in order[2 * batch.step : 2 * batch.step + 2]]
                batch.rows = [f"row{at}" for at in batch.indices]
                batch.digest = f"{one.rank} {batch.number}"
            if again:
                one.events = [it for event in one.events for it in [event] * (1 + isinstance(event, Batch))]

    return judge("data", changed(change))


def _endless(rank: int, length: int) -> list[int]:
    """Return the part of one rank of shuffled passes over 16 samples that follow each other without an end."""
    whole = [at for one in range(9) for at in random.Random(one).sample(range(16), 16)]
    return whole[rank::2][:length]


def _augmented(rank: int, length: int) -> list[int]:
    """Return the part of one rank of samples that come three times each, for another augmentation on other ranks."""
    return [at for one in random.Random(1).sample(range(64), 64) for at in [one] * 3][rank::2][:length]


def _own_orders(rank: int, length: int) -> list[int]:
    return [at for one in range(9) for at in random.Random(9 * rank + one).sample(range(16), 16)][:length]


def test_a_sampler_without_an_end_and_one_that_repeats_samples() -> None:
    assert _sampled(_endless).state is State.PASS
    assert _sampled(_endless, again=True).state is State.PASS
    verdict = _sampled(_augmented)
    assert verdict.state is State.PASS
    assert "the sampler repeats samples" in verdict.evidence[0]
    broken = _sampled(_own_orders), _sampled(_own_orders, again=True)
    assert {one.state for one in broken} == {State.FAIL}


def test_ranks_that_join_are_not_compared_by_step() -> None:
    """A rank that is ended after the wished steps may leave others that wait for it."""

    def join(runs: Runs, *, said: bool) -> None:
        every(runs["whole"], End, (1,), reason="exception", error="RuntimeError: Connection closed by peer")
        if said:
            runs["whole"].ranks[0].events.append(Uncovered("steps", "ranks take unequal numbers of steps"))

    states = {claim: judge(claim, changed(lambda runs: join(runs, said=True))).state for claim in NAMES}
    unknown = {claim for claim, state in states.items() if state is State.CANNOT_TELL}
    assert unknown == {"world", "resume", "torn", "rescale"}
    assert set(states.values()) == {State.PASS, State.CANNOT_TELL}
    assert judge("trains", changed(lambda runs: join(runs, said=False))).state is State.FAIL
