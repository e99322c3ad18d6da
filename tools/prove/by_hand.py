"""Parallelism that a script has written by hand: torch marks no tensor of it, and its ranks look like faulty ones."""

from itertools import combinations

from tools.prove.observed import Rank, Run
from training.prove.records import Peers, Step

CLAIMS = ("world", "data", "rescale")  # compare the ranks that hold copies of one model


def reason(run: Run) -> str:
    """Return why the ranks of a run may hold parts of one model, or an empty text."""
    if any(rank.of(Peers) for rank in run.ranks):
        return ""
    pairs = (_halves(*pair) for pair in combinations(run.ranks, 2))
    return run.uncovered("replicas") or next(filter(None, pairs), "")


def _halves(first: Rank, other: Rank) -> str:
    """Look for ranks that read one batch and hold different values, of which those that are equal stay equal.

    Equal tensors of copies that are trained apart differ after the first step, for their gradients do.
    """
    steps = [[one for one in rank.steps if one.optimizer == 0] for rank in (first, other)]
    pairs = [(left, right) for left, right in zip(*steps, strict=False) if left.tensors.keys() == right.tensors.keys()]
    batches = list(zip(first.batches, other.batches, strict=False))
    alone = any(not left.collectives or not right.collectives for left, right in pairs)
    if len(pairs) < 2 or alone or not batches or any(left.digest != right.digest for left, right in batches):
        return ""
    apart = _differing(*pairs[0])
    ever = set[str]().union(*(_differing(*pair) for pair in pairs))
    begun, ended = pairs[0][0].tensors, pairs[-1][0].tensors
    trained = [name for name in begun.keys() - ever if begun[name] != ended.get(name, begun[name])]
    if not apart or not trained:
        return ""
    return (
        f"ranks {first.rank} and {other.rank} read the same batches, {len(apart)} of {len(begun)} tensors"
        f" differ on them from the first step on, and {len(trained)} that are trained stay equal: they may hold parts"
        " of one model"
    )


def _differing(left: Step, right: Step) -> set[str]:
    return {name for name, digest in left.tensors.items() if right.tensors[name] != digest}
