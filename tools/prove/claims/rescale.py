"""Claim 9: a restart with another number of ranks is refused, or reads the samples that are left."""

from collections import Counter

from tools.core import output
from tools.prove.claims import Finding, failed, passed, unknown, warned
from tools.prove.claims.repeatable import batches_repeat
from tools.prove.claims.resume import never_starts, reached
from tools.prove.observed import Proof, Run, naming

MOST = 0.9  # share of the samples that are left, of which a restart that comes to its end reads at least as many
KNOWN = 0.5  # share of the samples that must occur in the uninterrupted run, or they cannot be recognised


def judge(proof: Proof) -> list[Finding]:
    """Compare what the restarted world reads with what the uninterrupted run reads from there on."""
    whole, killed, other = (proof.run(name) for name in ("whole", "killed", "world"))
    reason = proof.why_not("killed") or killed.not_injected("kill") or proof.why_not("world")
    if reason:
        return [unknown(reason)]
    outcome = other.result
    size = max((rank.begin.world for rank in other.ranks), default=0)
    before = f"{len(killed.ranks)} ranks were killed after step {killed.last_step}"
    if not other.trained:
        if outcome.ended_by == "itself" and outcome.exit_code and other.complaint():
            return [passed("another number of ranks is refused", before, f"the log says: {other.complaint()}")]
        return [never_starts(other, before)]
    if size == len(killed.ranks):
        again = f"the restart has {output.count(size, 'rank')} again"
        return [unknown(f"{again}: the script does not take the launcher's number")]
    done = _done(killed, other)
    if done == 0 and not killed.checkpoints:
        return [unknown(f"killed after step {killed.last_step}, before the first save that was seen")]
    if done == 0:
        return [failed("starts-anew", "another number of ranks starts anew without a word", before)]
    if done is None:
        return [unknown("the parameters of another number of ranks cannot be compared", before)]
    where = f"{before}; {output.count(size, 'rank')} {'continues' if size == 1 else 'continue'} after step {done}"
    return [_samples(whole, killed, other, done, where)]


def _done(killed: Run, other: Run) -> int | None:
    """Return the step after which the other world continues; sharded: the step of the last save, None if unknown."""
    first = {rank.steps[0].parameters_before for rank in other.ranks if rank.steps}
    found = [done for rank in killed.ranks for digest in first for done in reached(rank.steps, [], digest)]
    if 0 in found:
        return 0
    if found or not killed.sharded:
        return max(found, default=None)
    saves = sorted({save.step for _, save in killed.checkpoints})
    return saves[-1] if saves else None


def _samples(whole: Run, killed: Run, other: Run, done: int, where: str) -> Finding:
    if not batches_repeat(whole, killed):
        return unknown("two runs from the start read different samples", where)
    named = naming([*whole.ranks, *killed.ranks, *other.ranks])
    seen, left = Counter[str](), Counter[str]()
    for rank in whole.readers:
        for batch in rank.batches:
            (seen if batch.step < done else left).update(named(batch))
    # The restart may take more steps than the uninterrupted run had left: these say nothing.
    read = sorted((batch.step, batch.number, named(batch)) for rank in other.readers for batch in rank.batches)
    rows = [row for _, _, part in read for row in part][: sum(left.values())]
    mine = Counter(rows)
    known = sum((mine & (seen + left)).values())
    if not rows or known < KNOWN * min(len(rows), sum(left.values())):
        return unknown("the samples cannot be recognised: their values change at random", where)
    again = sum(((mine - left) & seen).values())
    due = sum((mine & left).values())
    possible = min(len(rows), sum(left.values()))
    finished = all(end.reason == "finished" for run in (whole, other) for end in run.ends())
    if finished and possible < MOST * sum(left.values()):  # the rest may have been there to fill up a last batch
        possible = sum(left.values())
    text = f"{due} of {possible} samples that are due were read, {again} that had been read before"
    if again or due < possible:
        does = "reads samples twice and others never" if again else "leaves samples out"
        return warned("samples-differ", f"another number of ranks {does}", where, text)
    return passed("another number of ranks reads the samples that are left", where, text)
