"""The ten judges, on made-up records: each finding, its healthy neighbour, and what is unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.prove import made
from tests.prove.changes import (
    Runs,
    augmented,
    averaged,
    crashed,
    early_kill,
    end,
    fetched,
    kill_after_data,
    moved,
    never_saves,
    never_writes,
    no_message,
    no_steps,
    not_taken,
    outside,
    parted,
    parted_and_apart,
    raised,
    refused,
    same_states,
    save_outside,
    saves_data,
    shifted,
    skipped,
    stream,
    two_optimizers,
    unseen,
    unused_states,
    writes_nothing,
)
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
    Injected,
    Loss,
    Save,
    Step,
    Uncovered,
    World,
)


@pytest.mark.parametrize("claim", NAMES)
def test_a_healthy_script_keeps_each_claim(claim: str) -> None:
    verdict = judge(claim, healthy())
    assert (verdict.state, verdict.details["findings"]) == (State.PASS, []), verdict


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
    "data/order-fixed": (State.WARN, lambda r: moved(r, again=True)),
    "data/equal-dropout": (State.WARN, lambda r: every(r["whole"], Dropout, state=lambda one: f"d{one.step}")),
    "data/equal-augmentation": (State.WARN, same_states),
    "data/same-workers": (State.FAIL, lambda r: fetched(r, "abcde", "fghij", "abcde")),
    "data/parts-apart": (State.WARN, parted_and_apart),
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
    "files/no-checkpoint": (State.WARN, lambda r: writes_nothing(r["whole"])),
    "files/checkpoint-outside": (State.FAIL, save_outside),
    "files/files-outside": (State.WARN, lambda r: outside(r, "/srv/results.json")),
    "files/one-path": (State.FAIL, lambda r: r["whole"].ranks[1].events.extend(r["whole"].ranks[0].of(Save))),
    "files/overwritten": (State.WARN, lambda r: every(r["whole"], Save, (0,), overwritten=True)),
    "files/secret": (State.FAIL, lambda r: outside(r, "/tmp/log.txt", secret="Hugging Face token")),
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("ranks", "log", "name"),
    [
        (2, "  exitcode  : 1 (pid: 7)\n  exitcode  : -15 (pid: 8)\n", "failed"),
        (2, "  exitcode  : -6 (pid: 7)\n  exitcode  : -15 (pid: 8)\n", "ends-badly"),
        (1, "", "failed"), (1, "died with <Signals.SIGABRT: 6>", "ends-badly"),
    ],
)  # fmt: skip
def test_an_exit_code_of_the_script_is_told_from_a_crash_at_its_end(ranks: int, log: str, name: str) -> None:
    """`raise SystemExit(1)` leaves no exception to be seen: such a rank seems to have finished."""

    def left(runs: Runs) -> None:
        crashed(runs)
        runs["whole"].ranks, runs["whole"].log = runs["whole"].ranks[:ranks], log
        every(runs["whole"], Begin, tuple(range(ranks)), world=ranks)

    assert judge("trains", changed(left)).details["findings"] == [name]


def test_the_worse_rank_decides() -> None:
    def unequal(runs: Runs) -> None:
        for one, changes in zip(runs["whole"].ranks, (False, True), strict=True):
            step = one.steps[3]
            step.finite_gradients = False
            step.parameters_after = "other" if changes else step.parameters_before

    found = judge("trains", changed(unequal))
    assert (found.state, found.details["findings"]) == (State.FAIL, ["gradients-not-finite"])


def test_the_table_has_a_case_for_each_finding() -> None:
    known = {f"{claim}/{name}" for claim, row in TABLE["claims"].items() for name in row["findings"]}
    assert known == set(FINDINGS)


NEIGHBOURS: dict[str, tuple[str, Callable[[Runs], Any]]] = {
    "one step without a gradient": ("trains", lambda r: every(
        r["whole"], Step, zero_gradients=lambda one: one.step == 3)),
    "a parameter that is in no optimizer for one step": ("trains", lambda r: every(
        r["whole"], Step, missing=lambda one: ["head"] if one.step == 9 else [])),
    "workers that divide a stream": ("data", lambda r: fetched(r, "abcde", "fghij")),
    "workers of a stream of equal samples": ("data", lambda r: fetched(r, "aaaaa", "aaaaa")),
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
    "a kill after data was saved": ("resume", "before the first save", kill_after_data),
    "another world after a kill before the first save": ("rescale", "before the first save", early_kill),
    "a script that never saves": ("sigterm", "no save in 12 steps", never_writes),
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
    every(proof.runs["whole"], Step, (0,), random={"cuda": "r0"})  # and on a machine with one
    assert judge("world", proof).state is State.PASS


@pytest.mark.parametrize(
    ("asked", "group", "state"), [(0, True, State.CANNOT_TELL), (0, False, State.PASS), (1, True, State.PASS)]
)
def test_a_rank_for_each_device_of_the_stand_in_is_no_world(asked: int, group: bool, state: State) -> None:
    """A script that spawns its ranks, one for each device, trains on one rank there. A launcher may ask for one."""
    proof = healthy()
    whole = proof.runs["whole"]
    whole.ranks, proof.asked = [rank(0, world=1)], asked
    every(whole, Begin, (0,), stand_in=True)
    if not group:
        without(whole, World)
    assert judge("world", proof).state is state


def test_the_stand_in_is_said_in_each_verdict() -> None:
    proof = changed(lambda runs: every(runs["whole"], Begin, stand_in=True))
    for claim in NAMES:
        assert judge(claim, proof).summary.endswith("(on CPU)")


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


def test_checkpoints_of_a_process_that_is_not_a_rank_are_unknown() -> None:
    """A child process that the script starts may save: its files show it."""
    verdict = judge("files", changed(lambda runs: without(runs["whole"], Save)))
    assert (verdict.state, verdict.details["findings"]) == (State.CANNOT_TELL, [])
    assert "files like checkpoints are written" in verdict.summary
    assert any("step-" in line for line in verdict.evidence)
    verdict = judge("sigterm", changed(never_saves))
    assert (verdict.state, "files like checkpoints are written" in verdict.summary) == (State.CANNOT_TELL, True)


@pytest.mark.parametrize(
    ("path", "name"), [(f"{made.KEPT}/data.pt", "no-checkpoint"), ("/other/data.pt", "files-outside")]
)
def test_data_that_is_saved_before_the_first_step_is_no_checkpoint(path: str, name: str) -> None:
    verdict = judge("files", changed(lambda runs: saves_data(runs["whole"], path)))
    assert verdict.state is State.WARN
    assert name in verdict.details["findings"]


def test_an_earlier_save_that_ends_after_sigterm_loses_steps() -> None:
    verdict = judge("sigterm", changed(lambda runs: every(runs["term"], Save, (0,), step=5)))
    assert verdict.details["findings"] == ["not-saved"]
    assert "2 steps lost: the last save is that of step 5" in verdict.evidence


@pytest.mark.parametrize(("reason", "said"), [("steps", "--steps looks further"), ("finished", "12 steps, no save")])
def test_a_script_may_save_after_the_steps_of_a_proof(reason: str, said: str) -> None:
    def cut(runs: Runs) -> None:
        never_writes(runs)
        every(runs["whole"], End, reason=reason)

    verdict = judge("files", changed(cut))
    assert verdict.details["findings"] == ["no-checkpoint"]
    assert verdict.evidence[0].endswith(said)
    assert ("in 12 steps" in verdict.summary) == (reason == "steps")


def test_workers_of_a_stream_that_no_step_trains_on_are_a_warning() -> None:
    """Its loader may be for evaluation."""
    verdict = judge("data", changed(lambda runs: fetched(runs, "abcde", "abcde", trained=False)))
    assert (verdict.state, verdict.details["findings"]) == (State.WARN, ["same-workers"])
