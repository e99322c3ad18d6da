"""What a restart and a torn save must show to be judged, on made-up records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.prove import made
from tests.prove.changes import Runs, end, not_taken
from tests.prove.made import changed, every, run
from tools.core.verdict import State
from tools.prove.claims import judge
from training.prove.records import Batch, End, Step


def test_a_restart_that_hangs_after_a_torn_save_does_not_pass() -> None:
    def hang(runs: Runs) -> None:
        not_taken(runs, "torn-first-again")
        end(runs, "torn-first-again", ended_by="timeout", exit_code=-9)
        runs["torn-first"].injected("torn-save")[0].path += ".tmp"

    assert judge("torn", replace(changed(hang), resume=True)).state is State.FAIL


@pytest.mark.parametrize(("names", "optimizer", "state", "findings"), [
    (["torn-first-again"], "s0", State.CANNOT_TELL, []),
    (["torn-first-again"], "s5", State.FAIL, ["torn-file-used"]),
    (["torn-later-again"], "s0", State.FAIL, ["starts-anew"]),
    (["torn-later-again"], "s5", State.FAIL, ["torn-file-used"]),
    (["torn-later-again", "resumed"], "s5", State.CANNOT_TELL, []),
])  # fmt: skip
def test_parameters_of_no_step_need_not_come_from_the_torn_file(
    names: list[str], optimizer: str, state: State, findings: list[str]
) -> None:
    """A restart may start anew: prepared data has changed the random state. It may also save what no step has."""

    def other(runs: Runs) -> None:
        for name in names:
            every(runs[name], Step, parameters_before="other", state_before=optimizer)

    verdict = judge("torn", changed(other))
    assert (verdict.state, verdict.details["findings"]) == (state, findings)


def test_without_a_state_of_the_optimizer_nothing_tells_a_new_start() -> None:
    def plain(runs: Runs) -> None:
        every(runs["torn-later-again"], Step, parameters_before="other")
        for one in runs.values():
            every(one, Step, tuple(range(len(one.ranks))), state_before="")

    assert judge("torn", changed(plain)).details["findings"] == ["torn-file-used"]


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


def test_a_first_step_without_a_rate_is_told_from_none() -> None:
    """A warm-up from 0 changes no parameter in its first step: a new start looks like one after step 1."""

    def warm(runs: Runs) -> None:
        for one in runs.values():
            ranks = tuple(range(len(one.ranks)))
            every(one, Step, ranks, parameters_before=lambda it: it.parameters_before.replace("p0", "p1"))
        runs["resumed"] = runs["whole"]

    assert judge("resume", changed(warm)).details["findings"] == ["starts-anew"]


def test_a_restart_that_ends_before_it_has_read_what_is_left() -> None:
    """As one that counts its steps, and takes half as many samples in each."""

    def shorter(runs: Runs, last: int = made.STEPS - 2) -> None:
        runs["world"] = run("world", first=made.DONE, last=last, world=1, reason="finished")
        every(runs["whole"], End, reason="finished")

    found = judge("rescale", changed(shorter))
    assert (found.state, found.details["findings"]) == (State.WARN, ["samples-differ"])
    assert "20 of 28 samples that are due were read" in found.evidence[-1]
    assert judge("rescale", changed(lambda runs: shorter(runs, made.STEPS))).state is State.PASS
