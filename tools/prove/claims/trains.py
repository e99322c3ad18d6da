"""Claim 1: steps are taken, and each of them trains the model."""

import re

from tools.core import State, output
from tools.prove.claims import Finding, failed, passed, unknown, warned
from tools.prove.observed import TABLE, Proof, Rank, Run
from training.prove.records import Loss, Step

_CODE = re.compile(r"exitcode *: *(-?\d+)")  # as torchrun tells it, of each rank
SIGNALS = 128  # a shell's exit code for a command that a signal ended, plus the signal


def judge(proof: Proof) -> list[Finding]:
    """Return what keeps the uninterrupted run from training."""
    run = proof.run("whole")
    missing = run.missing()
    if missing:
        return [unknown(missing)]
    if not run.trained:
        return [_no_step(run, proof.stand_in)]
    findings = [finding for rank in run.ranks for finding in _of_rank(rank)]
    found = [*_ended(run), *_first_of_each(findings)]
    started = max(rank.begin.world for rank in run.ranks)
    blind = run.uncovered("optimizer", "gradients") or run.silent(range(started))
    if blind and not any(one.name for one in found):
        found.append(unknown(blind))
    losses = "losses are finite" if any(rank.of(Loss) for rank in run.ranks) else "no loss was seen"
    return found or [passed(f"{output.count(run.last_step, 'step')} taken; parameters change, {losses}")]


def _no_step(run: Run, tried: Run | None) -> Finding:
    outcome = run.result
    reason, need = run.uncovered("optimizer"), run.need()
    said = [f"the log says: {run.complaint()}"] if run.complaint() else []
    if reason:
        return unknown(reason)
    if need in TABLE["reasons"]:
        return unknown(TABLE["reasons"][need], *said)
    if outcome.ended_by != "itself":
        text = outcome.reason or f"it was ended after {outcome.seconds:.0f} s"
        return unknown(f"no optimizer step was seen: {text}", *said)
    if outcome.exit_code != 0 and tried and run.need(run.complaint()) == "cuda":
        text = f"with the stand-in the log says: {tried.complaint()}"
        return unknown("the script needs CUDA, and it takes no step with the stand-in for CUDA either", *said, text)
    if outcome.exit_code != 0:
        return failed("failed", f"the script ended with exit code {outcome.exit_code} before its first step", *said)
    if not run.ranks:
        hint = "PYTHONPATH brings it: a wrapper must keep what is in it, and Python must not run with -I, -E or -S"
        return unknown("the probe was not loaded by any process of the command, or none imports torch", hint, *said)
    backward = sum(end.backward_calls for end in run.ends())
    if backward:
        text = f"gradients were computed {output.count(backward, 'time')}, and no optimizer of torch took a step"
        return unknown(text, *said)
    return failed("no-step", "the script ended with exit code 0 and took no optimizer step", *said)


def _ended(run: Run) -> list[Finding]:
    outcome = run.result
    said = f"the log says: {run.complaint()}"
    raised = [(rank.rank, rank.end) for rank in run.ranks if rank.end and rank.end.reason == "exception"]
    by_us = any(end.reason == "steps" for end in run.ends())
    if raised and not (by_us and run.uncovered("steps")):  # else the others were waiting for a rank that we ended
        rank, end = raised[0]
        return [failed("failed", f"the script failed after step {end.step}", f"rank {rank}: {end.error or said}")]
    if outcome.ended_by in ("timeout", "disk"):
        return [unknown(f"the run did not end: {outcome.reason or outcome.ended_by}", f"{run.last_step} steps taken")]
    if outcome.exit_code != 0 and not by_us:
        finished = run.ends() and all(rank.end and rank.end.reason == "finished" for rank in run.ranks)
        if finished and not _gave_code(run):
            text = f"all {len(run.ranks)} ranks reached the end of the script; exit code {outcome.exit_code}"
            return [warned("ends-badly", "the ranks finish, and their processes then fail", text, said)]
        return [failed("failed", f"the script ended with exit code {outcome.exit_code}", said)]
    return []


def _gave_code(run: Run) -> bool:
    """Return whether a rank ended with an exit code of its own, as by `raise SystemExit(1)`. A crash is a signal."""
    codes = [int(code) for code in _CODE.findall(run.log)]
    if not codes and len(run.ranks) == 1 and "died with <Signals" not in run.log:  # as accelerate tells it
        codes = [run.result.exit_code or 0]
    return any(0 < code < SIGNALS for code in codes)


def _first_of_each(findings: list[Finding]) -> list[Finding]:
    """Join equal findings of several ranks: the evidence of all, the rest once, of a failed one if there is one."""
    joined: dict[str, Finding] = {}
    for one in sorted(findings, key=lambda one: one.state is not State.FAIL):
        joined.setdefault(one.name, Finding(one.state, one.summary, [], one.name)).evidence.extend(one.evidence)
    return list(joined.values())


def _of_rank(rank: Rank) -> list[Finding]:
    steps, where = rank.steps, f"rank {rank.rank}"
    if not steps:
        return []
    found = []
    rates = sorted({rate for step in steps for rate in step.rates})
    if all(step.parameters_before == step.parameters_after for step in steps):
        text = f"{where}: digest {steps[0].parameters_before} before step 1 and after step {steps[-1].step}"
        found.append(failed("parameters-fixed", "no parameter ever changes", f"{text}; learning rates {rates[:4]}"))
    return [*found, *_zero_gradients(rank, where), *_finite(rank, where), *_optimizer(rank, where)]


def _zero_gradients(rank: Rank, where: str) -> list[Finding]:
    """Judge each optimizer by its own steps. The loss of one part may have the weight 0 at first."""
    whole = all(step.zero_gradients for step in rank.steps)
    for own in [rank.steps] if whole else _by_optimizer(rank.steps):
        if not all(step.zero_gradients for step in own) or (len(own) == 1 and not whole):
            continue
        of = "" if whole else f" of {own[0].optimizer_class}"
        text = f"{where}: zero or missing in all {len(own)} steps{of}, first step {own[0].step}"
        if whole or all(step.no_gradients for step in own):
            return [failed("zero-gradients", f"every gradient{of} is zero", text)]
        return [warned("zero-gradients", f"every gradient{of} is zero in these steps", text)]
    return []


def _finite(rank: Rank, where: str) -> list[Finding]:
    loss = next((one for one in rank.of(Loss) if not one.finite), None)
    if loss is not None:
        text = f"{where}: loss {loss.value} after step {loss.step}"
        return [failed("loss-not-finite", "a loss is not finite", text)]
    step = next((one for one in rank.steps if not one.finite_gradients), None)
    if step is None:
        return []
    make = warned if step.parameters_before == step.parameters_after else failed
    return [make("gradients-not-finite", "a gradient is not finite", f"{where}, step {step.step}")]


def _optimizer(rank: Rank, where: str) -> list[Finding]:
    found = []
    # Optimizers become known with their first step: the second half knows all of them.
    late = rank.steps[len(rank.steps) // 2 :]
    for own in _by_optimizer(late):
        foreign = set(own[0].foreign).intersection(*(step.foreign for step in own))
        if foreign:
            text = f"{where}, step {own[-1].step}: {_names(foreign)} in {own[-1].optimizer_class}"
            summary = "the optimizer holds parameters that the forward pass does not use"
            found.append(failed("foreign-parameters", summary, text))
    missing = set(late[0].missing).intersection(*(step.missing for step in late)) if late else set()
    if missing:
        text = f"{where}, step {late[-1].step}: {_names(missing)}"
        summary = "parameters get a gradient and are in no optimizer"
        found.append(failed("missing-parameters", summary, text))
    return [*found, *_kept_gradients(rank, where)]


def _by_optimizer(steps: list[Step]) -> list[list[Step]]:
    """Return the steps of each optimizer: a model may have one for each of its parts."""
    return [[step for step in steps if step.optimizer == one] for one in sorted({step.optimizer for step in steps})]


def _kept_gradients(rank: Rank, where: str) -> list[Finding]:
    """Judge each optimizer by its own steps, after its first one."""
    for _, *later in _by_optimizer(rank.steps):
        kept = [step.step for step in later if step.accumulated]
        if len(kept) * 2 > len(later):
            text = f"{where}: {len(kept)} of {len(later)} steps of {later[0].optimizer_class}, first step {kept[0]}"
            return [failed("gradients-kept", "gradients are not cleared after a step", text)]
    return []


def _names(names: set[str]) -> str:
    some = sorted(names)
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
