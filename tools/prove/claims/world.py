"""Claim 2: all ranks form one world and train one model."""

from collections.abc import Iterator

from tools.prove.claims import Finding, failed, passed, unknown
from tools.prove.observed import Proof, Rank, Run, by_step
from training.prove.records import Step


def judge(proof: Proof) -> list[Finding]:
    """Compare the ranks of the uninterrupted run with each other."""
    run = proof.run("whole")
    started = max(rank.begin.world for rank in run.ranks)
    on_gpu = not run.stand_in and any("cuda" in step.random for rank in run.ranks for step in rank.steps)
    if started == 1 and proof.asked > 1 and not on_gpu:
        text = "accelerate launch starts one process on a CPU; torchrun --nproc-per-node N SCRIPT starts N"
        return [unknown(f"the command asks for {proof.asked} ranks, and its launcher started one process", text)]
    if started == 1 and not proof.asked and run.stand_in and run.worlds():
        text = "--env LOCAL_WORLD_SIZE=2 gives it two; with torchrun, --nproc 2 starts two ranks"
        return [unknown("the script makes a world of one rank: the stand-in for CUDA has one device", text)]
    if run.beside:
        return [unknown(f"{run.beside} processes train, and torch.distributed was never initialised")]
    if started == 1 and len(run.ranks) == 1:
        return [passed("one process was started, and it trains alone")]
    if run.shares_memory:
        return [_in_shared_memory(run)]
    silent = run.silent(range(started))
    if silent:
        return [unknown(f"{started} ranks were started; {silent}")]
    blind = run.uncovered("collectives")
    found = _group(run, started) or [*_collectives(run, blind), *_equal(run)]
    return found or [passed(f"{started} ranks form one world; collectives run in each step; {_kept(run)}")]


def _in_shared_memory(run: Run) -> Finding:
    """Look for a step before which another process has changed the parameters: two models may lie in shared memory."""
    for rank in run.ranks:
        last: dict[int, str] = {}
        for step in rank.steps:
            if last.get(step.optimizer, step.parameters_before) != step.parameters_before:
                text = f"process {rank.rank}, before step {step.step}: another process has changed the parameters"
                return passed(f"{len(run.ranks)} processes train one model in shared memory", text)
            last[step.optimizer] = step.parameters_after
    return unknown(f"{len(run.ranks)} processes train in shared memory; no step shows that they train one model")


def _kept(run: Run) -> str:
    if run.sharded:
        return "sharded parameters are not compared"
    if apart := _apart(run):
        return f"ranks train apart and have equal parameters again after step {apart}"
    parted = len(run.replicas) < len(run.ranks)
    return "the parts of a model are not compared" if parted else "parameters are equal in each step"


def _group(run: Run, started: int) -> list[Finding]:
    worlds = run.worlds()
    if not worlds:
        blind = run.uncovered("collectives")
        if blind:
            return [unknown(blind)]
        return [failed("no-group", f"{started} ranks were started, and each one trains alone",
                       "torch.distributed was never initialised")]  # fmt: skip
    other = [world for world in worlds if world.size != started]
    if other or len({world.rank for world in worlds}) != started:
        seen = [f"rank {world.rank} of {world.size}, {world.backend}" for world in worlds]
        return [failed("other-size", f"{started} ranks were started; torch.distributed has another world", *seen)]
    return []


def _collectives(run: Run, blind: str) -> list[Finding]:
    counts = {rank.rank: [step.collectives for step in rank.steps] for rank in run.ranks}
    if blind or any(count is None for row in counts.values() for count in row):
        return [unknown(blind or "the collectives of a step cannot be counted here")]
    alone = [rank for rank, row in counts.items() if not any(row)]
    if not alone:
        return []
    text = f"rank {alone[0]}: 0 collectives in {len(counts[alone[0]])} steps"
    return [failed("no-collectives", "no collective runs in any step: gradients are not exchanged", text)]


def _equal(run: Run) -> list[Finding]:
    """Compare replicated parameters over the ranks, step by step."""
    if run.sharded or _apart(run):
        return []
    for first, other in _copies(run):
        pairs = zip(first.steps, other.steps, strict=False)
        for left, right in pairs:
            if _model(left) == _model(right):
                continue
            if left.tensors and right.tensors and not left.tensors.keys() & right.tensors.keys():
                return [unknown("the ranks hold different parameters: they cannot be compared")]
            return [_differ(first, other, left.step)]
    return []


def _model(step: Step) -> str:
    """Return the digest of the model's parameters: those of the optimizer may be copies or a rank's slice of them."""
    return step.model_before or step.parameters_after


def _apart(run: Run) -> int | None:
    """Return the first step after which ranks that trained apart have equal parameters again: they were averaged."""
    found = []
    for first, other in _copies(run):
        pairs = list(zip(first.steps, other.steps, strict=False))
        differ = [at for at, (left, right) in enumerate(pairs) if left.parameters_after != right.parameters_after]
        same = [at for at, (left, right) in enumerate(pairs) if left.parameters_before == right.parameters_before]
        again = next((at for at in same if differ and at > differ[0]), None)
        if differ and again is None:
            return None
        found.append(again or 0)
    return max(found, default=0) or None


def _copies(run: Run) -> Iterator[tuple[Rank, Rank]]:
    """Yield pairs of ranks that hold the same part of the model."""
    first, *others = run.replicas
    for other in others:
        yield from zip(first, other, strict=False)


def _differ(first: Rank, other: Rank, step: int) -> Finding:
    gradients = [by_step(rank, lambda one: one.gradients).get(step) for rank in (first, other)]
    tensors = [by_step(rank, lambda one: one.tensors) for rank in (first, other)]
    mine, theirs = (row.get(step + 1) or row.get(step) or {} for row in tensors)
    name = next((name for name in mine if name in theirs and mine[name] != theirs[name]), None)
    before = [by_step(rank, lambda one: one.parameters_before).get(step) for rank in (first, other)]
    evidence = [
        f"ranks {first.rank} and {other.rank}, after step {step}" + (f": {name}" if name else ""),
        f"gradients of this step: {gradients[0]} and {gradients[1]}",
    ]
    if before[0] != before[1]:
        evidence.append(f"parameters before this step: {before[0]} and {before[1]}")
    return failed("parameters-differ", "replicated parameters differ between ranks", *evidence)
