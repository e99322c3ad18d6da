"""Claim 6: a run that was killed in the middle of a save continues from an older checkpoint."""

from tools.prove.claims import Finding, failed, passed, unknown
from tools.prove.claims.resume import Point, continued, never_starts
from tools.prove.observed import Proof, Run


def judge(proof: Proof) -> list[Finding]:
    """Judge the restart after the first save was torn, and that after a later one."""
    found = [one for name in ("torn-first", "torn-later") for one in _restart(proof, name)]
    told = [one for one in found if one.name or one.state is not passed("").state]
    if told:
        return told
    return [passed("the restart takes an older checkpoint", *(line for one in found for line in one.evidence))]


def _restart(proof: Proof, name: str) -> list[Finding]:
    torn, again, whole = proof.run(name), proof.run(f"{name}-again"), proof.run("whole")
    reason = proof.why_not(name) or torn.not_injected("torn-save") or proof.why_not(f"{name}-again")
    if reason:
        return [unknown(reason)]
    event = torn.injected("torn-save")[0]
    what = f"{event.path} of step {event.step} was cut from {event.whole} to {event.bytes} bytes"
    refused = again.result.ended_by == "itself" and again.result.exit_code != 0
    if not again.trained and refused and name == "torn-first" and proof.resume and _was_temporary(event.path, whole):
        return [passed("", f"{what}; there was no older checkpoint: the restart says {again.complaint()}")]
    if not again.trained:
        return [never_starts(again, what)]
    silent = again.silent(rank.rank for rank in whole.ranks)
    if silent:
        return [unknown(silent, what)]
    points = [continued(rank, torn, whole) for rank in again.ranks if rank.steps]
    found = [point for point in points if point]
    if len(found) < len(points):
        return [_unlike_any_step(again, proof, what, name == "torn-first")]
    return [_place(found, what, event.step, name == "torn-first")]


def _was_temporary(path: str, whole: Run) -> bool:
    """Return whether a file that a save writes is gone after the save, as one that is renamed."""
    return path not in {one.path for one in whole.result.files}


def _unlike_any_step(again: Run, proof: Proof, what: str, first: bool) -> Finding:
    """Judge a restart with the parameters of no earlier step: the torn file need not be the cause."""
    whole, killed, resumed = (proof.run(name) for name in ("whole", "killed", "resumed"))
    if any(continued(rank, killed, whole) is None for rank in resumed.ranks if rank.steps):
        return unknown("a restart has the parameters of no earlier step, also without a torn file", what)
    if first and _is_new(again, whole):
        text = "the restart has a new optimizer and other parameters: it may have started anew from these"
        return unknown(text, what)
    states = {step.state_before for rank in whole.ranks for step in rank.steps}  # one if an optimizer has none
    if _is_new(again, whole) and len(states) > 1:
        return failed("starts-anew", "the restart starts anew and ignores the older checkpoint", what)
    return failed("torn-file-used", "the restart uses a torn checkpoint", what,
                  "its parameters are those of no earlier step")  # fmt: skip


def _place(points: list[Point], what: str, step: int, first: bool) -> Finding:
    places = sorted({point.done for point in points})
    if len(places) > 1:
        each = (f"rank {point.rank.rank} after step {point.done}" for point in points)
        return failed("ranks-apart", "the ranks continue after different steps", what, ", ".join(each))
    done = places[0]
    if done == 0 and not first:
        return failed("starts-anew", "the restart starts anew and ignores the older checkpoint", what)
    if done == step and any(one.rank.steps[0].state_before != one.due[0].state_before for one in points if one.due):
        return failed("torn-file-used", "the restart uses a torn checkpoint", what,
                      f"it has the parameters of step {step} and another state of the optimizer")  # fmt: skip
    return passed("", f"{what}; the restart continues after step {done}")


def _is_new(again: Run, whole: Run) -> bool:
    """Return whether the optimizers of a restart are as they were before any step.

    Its first parameters may be others: data that the first start prepared and kept draws no random number again.
    """
    firsts = {rank.rank: rank.steps[0].state_before for rank in whole.ranks if rank.steps}
    return all(rank.steps[0].state_before == firsts.get(rank.rank) for rank in again.ranks if rank.steps)
