"""Claim 5: a run that was killed continues as if nothing had happened."""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.core import State, output
from tools.prove.claims import Finding, failed, passed, unknown, warned
from tools.prove.claims.files import lost_checkpoints
from tools.prove.claims.repeatable import batches_repeat, differs
from tools.prove.observed import Proof, Rank, Run, first_other_batch
from training.prove.records import Step


@dataclass
class Point:
    """Where one rank continues: after `done` steps. `due` are the steps that it had to take from there on."""

    rank: Rank
    done: int
    due: list[Step]
    batches: dict[int, list[str]]  # by steps done


def judge(proof: Proof) -> list[Finding]:
    """Compare the restarted run with the killed one, and with the uninterrupted one after the kill."""
    whole, killed, resumed = (proof.run(name) for name in ("whole", "killed", "resumed"))
    reason = proof.why_not("killed") or killed.not_injected("kill") or proof.why_not("resumed")
    if reason:
        return [unknown(reason)]
    end = killed.last_step
    if not resumed.trained:
        return [never_starts(resumed, f"killed after step {end}")]
    silent = resumed.silent(rank.rank for rank in whole.ranks)
    if silent:
        return [unknown(silent)]
    points = [continued(rank, killed, whole) for rank in resumed.ranks if rank.steps]
    lost = [rank.rank for rank, point in zip(resumed.ranks, points, strict=False) if point is None]
    found = [point for point in points if point]
    if lost or not found:
        text = f"rank {(lost or [0])[0]}: the parameters before its first step are those of no earlier step"
        return [failed("parameters-differ", "the restarted run has other parameters than were saved", text)]
    places = sorted({point.done for point in found})
    if len(places) > 1:
        text = ", ".join(f"rank {point.rank.rank} after step {point.done}" for point in found[:4])
        return [failed("parameters-differ", "ranks continue at different steps", text)]
    done = places[0]
    if done == 0 and not killed.checkpoints:
        return [unknown(f"killed after step {end}, before the first save that was seen")]
    if done == 0:
        text = f"killed after step {end}, saved after steps {_saves(killed)}; the first step has the first parameters"
        where = [f"{path} does not lie in what survives a restart" for path in lost_checkpoints(killed)[:1]]
        return [failed("starts-anew", "the restarted run starts anew", text, *where)]
    place = f"killed after step {end}; continues after step {done}; {output.count(end - done, 'step')} done again"
    findings = [*_state(found), *_rates(found), *_batches(found, whole, killed)]
    blind = resumed.uncovered("batches")
    if blind:
        findings.append(unknown(f"the next batch is not compared: {blind}"))
    if not any(one.name for one in findings):
        findings += _end(found, whole, killed)
    findings.sort(key=lambda one: one.state is not State.FAIL)
    for one in findings[:1]:
        one.evidence.insert(0, place)
    same = "parameters, optimizer state, learning rate, batches and random state are as in the uninterrupted run"
    return _first(findings) or [passed(same, place)]


def never_starts(run: Run, before: str) -> Finding:
    """Return the finding for a restart that takes no step."""
    how = run.result.reason or f"it ended with exit code {run.result.exit_code}"
    return failed("never-starts", "the restart takes no step", before, how, f"the log says: {run.complaint()}")


def continued(rank: Rank, killed: Run, whole: Run) -> Point | None:
    """Find where a rank continues, by the parameters before its first step. None: nowhere."""
    before = next((one for one in killed.ranks if one.rank == rank.rank), None)
    uninterrupted = next((one for one in whole.ranks if one.rank == rank.rank), None)
    steps, first = before.steps if before else [], rank.steps[0]
    later = [step for step in (uninterrupted.steps if uninterrupted else []) if step.step > len(steps)]
    due = [*steps, *later]
    found = reached(steps, later, first.parameters_before)
    if not found:
        return None
    # A step with a learning rate of 0 leaves the parameters as they were: the optimizer's state tells which one it is.
    same = [done for done in found if done < len(steps) and steps[done].state_before == first.state_before]
    done = max(same) if same else min(found)
    return Point(rank, done, due[done:], uninterrupted.all_batches() if uninterrupted else {})


def reached(steps: Sequence[Step], later: Sequence[Step], parameters: str) -> list[int]:
    """Return the numbers of steps after which these parameters are due: before a step, or after the last ones.

    Each of several optimizers has parameters of its own, so what one step leaves is due before the next step of the
    same optimizer. `later` are the steps that follow in another run.
    """
    due = [*steps, *later]
    found = {done for done, step in enumerate(steps) if step.parameters_before == parameters}
    for step in steps:
        if step.parameters_after == parameters:
            rest = range(step.step, len(due))
            found.add(next((done for done in rest if due[done].optimizer == step.optimizer), step.step))
    return sorted(found)


def _saves(run: Run) -> str:
    steps = sorted({save.step for _, save in run.checkpoints})
    return ", ".join(map(str, steps[:8])) or "none"


def _state(points: list[Point]) -> list[Finding]:
    """Compare the optimizer's state and the random state before the first step."""
    found = []
    for point in points:
        if not point.due:
            continue
        mine, due = point.rank.steps[0], point.due[0]
        where = f"rank {point.rank.rank}, before step {point.done + 1}"
        if mine.state_before != due.state_before:
            text = f"{where}: {mine.optimizer_class} has {mine.state_before or 'no state'}, due {due.state_before}"
            found.append(failed("optimizer-state", "the optimizer's state is not as it was", text))
        other = sorted(name for name in mine.random.keys() & due.random.keys() if mine.random[name] != due.random[name])
        if other:
            text = f"{where}: {', '.join(other)}"
            found.append(warned("random-state", "the random state is not as it was", text))
    return found


def _rates(points: list[Point]) -> list[Finding]:
    for point in points:
        for mine, due in zip(point.rank.steps, point.due, strict=False):
            if mine.rates != due.rates:
                at = f"rank {point.rank.rank}, step {point.done + mine.step}: {mine.rates[:4]}, due {due.rates[:4]}"
                return [failed("learning-rate", "the learning rate is not that of the uninterrupted run", at)]
    return []


def _batches(points: list[Point], whole: Run, killed: Run) -> list[Finding]:
    if not batches_repeat(whole, killed):
        return [unknown("the next batch is not compared: two runs from the start read different batches")]
    for point in points:
        mine = {key + point.done: digests for key, digests in point.rank.all_batches().items()}
        if point.batches and not mine:
            return [unknown(f"the next batch is not compared: no batch of rank {point.rank.rank} was seen")]
        at = first_other_batch(mine, point.batches)
        if at is None:
            continue
        if _only_changed_at_random(point, whole, at):
            text = f"rank {point.rank.rank}, step {at + 1}: the same samples with other values"
            return [warned("random-state", "samples are changed with other random numbers", text)]
        was = next((key + 1 for key, digests in point.batches.items() if digests == mine[at]), None)
        seen = f"that of step {was}" if was else "one that the uninterrupted run does not read there"
        name, what = (
            ("next-batch", "next batch {} is") if at == point.done else ("later-batches", "later batches {} are")
        )
        text = f"rank {point.rank.rank}, step {at + 1}: the batch is {seen}"
        return [failed(name, f"the {what.format('of the restarted run')} not due", text)]
    return []


def _only_changed_at_random(point: Point, whole: Run, at: int) -> bool:
    """Whether the samples are those that are due, as far as their indices are known."""
    rank = next((one for one in whole.ranks if one.rank == point.rank.rank), None)
    mine = [batch.indices for batch in point.rank.batches if batch.step == at - point.done]
    due = [batch.indices for batch in rank.batches if batch.step == at] if rank else []
    return all(mine) and mine == due[: len(mine)]


def _end(points: list[Point], whole: Run, killed: Run) -> list[Finding]:
    """Compare the parameters after the last step that both runs took."""
    if differs(whole, killed):
        return []
    for point in points:
        pairs = list(zip(point.rank.steps, point.due, strict=False))
        for mine, due in pairs:
            if mine.parameters_after != due.parameters_after:
                text = f"rank {point.rank.rank}: parameters differ from step {due.step} on"
                return [warned("other-end", "the last parameters are not those of the uninterrupted run", text)]
    return []


def _first(findings: list[Finding]) -> list[Finding]:
    """Return one finding of each name: what one rank shows, the others show too."""
    by_name: dict[str, Finding] = {}
    for one in findings:
        by_name.setdefault(one.name or one.summary, one)
    return list(by_name.values())
