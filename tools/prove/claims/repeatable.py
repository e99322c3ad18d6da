"""Claim 4: two whole runs are equal."""

from tools.core import output
from tools.prove.claims import Finding, passed, unknown, warned
from tools.prove.observed import Proof, Rank, Run, by_step, first_difference, first_other_batch


def judge(proof: Proof) -> list[Finding]:
    """Compare two whole runs, rank by rank and step by step."""
    whole, again = proof.run("whole"), proof.run("again")
    reason = proof.why_not("again") or again.silent(rank.rank for rank in whole.ranks)
    if reason:
        return [unknown(reason)]
    found = [_unseeded()] if any(end.seeded for end in whole.ends()) else []
    difference = differs(whole, again)
    if difference:
        size = spread(whole, again)
        text = f"losses differ by up to {size:.1%}" if size else "the losses of common steps are equal"
        return [*found, warned("runs-differ", "two whole runs differ", difference, text)]
    if whole.last_step != again.last_step:
        text = f"{whole.last_step} and {again.last_step} steps"
        return [*found, warned("runs-differ", "two whole runs take different numbers of steps", text)]
    text = f"two runs of {whole.last_step} steps are bitwise equal on {output.count(len(whole.ranks), 'rank')}"
    return found or [passed(text)]


def _unseeded() -> Finding:
    return warned("no-seed", "no seed is set", "the probe seeded each rank, so that runs can be compared")


def differs(left: Run, right: Run) -> str:
    """Return where two runs first differ in the steps that both took, or an empty text."""
    found = []
    for one, other in zip(left.ranks, right.ranks, strict=False):
        step = first_difference(*(by_step(rank, lambda it: it.parameters_after) for rank in (one, other)))
        if step is not None:
            found.append((step, _where(one, other, step)))
    return min(found)[1] if found else ""


def _where(one: Rank, other: Rank, step: int) -> str:
    at = first_other_batch(one.all_batches(), other.all_batches())
    if at is not None and at < step:
        return f"rank {one.rank} reads another batch in step {at + 1}"
    mine, theirs = (by_step(rank, lambda it: it.tensors).get(step + 1, {}) for rank in (one, other))
    name = next((name for name in mine if mine[name] != theirs.get(name, mine[name])), None)
    return f"rank {one.rank}: parameters differ after step {step}" + (f", first {name}" if name else "")


def spread(left: Run, right: Run) -> float:
    """Return the largest relative difference of two losses of the same step."""
    worst = 0.0
    for one, other in zip(left.ranks, right.ranks, strict=False):
        mine, theirs = one.losses(), other.losses()
        for step in mine.keys() & theirs.keys():
            a, b = mine[step], theirs[step]
            if a.finite and b.finite:
                worst = max(worst, abs(a.value - b.value) / max(abs(a.value), abs(b.value), 1e-12))
    return worst


def batches_repeat(left: Run, right: Run) -> bool:
    """Return whether two runs read the same batches in the steps that both took."""
    rows = zip(left.ranks, right.ranks, strict=False)
    return all(first_other_batch(one.all_batches(), other.all_batches()) is None for one, other in rows)
