"""Claim 3: each rank reads its own samples, in another order in each pass, with random numbers of its own."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from tools.core import State
from tools.prove.claims import Finding, failed, passed, unknown, warned
from tools.prove.observed import Naming, Proof, Rank, Run, naming, samples
from training.prove.records import Ended, Peers

MOST = 0.5  # share of the samples that two ranks have in common, from which it is not an accident
Passes = dict[int | None, list[str]]
MOSTLY = 0.75  # of the samples behind the end of a pass that all ranks divide
WINDOW = 8  # samples
FEWEST_ROWS = 4  # of a pass whose order is compared
UNLIKE = "nothing distinguishes the samples of the ranks: they are single whole numbers, or their values are random"
NO_END = "right only if it has no end, and none was seen"
ALL = 0.9  # share of the samples from which on two readers of a stream have both read all of it
DRAWN = 0.2  # share of the samples that are new after as many as there are, from which on they are drawn
REPEATED = 0.1  # share of a rank's samples in one pass, from which on a sampler repeats samples on purpose


def judge(proof: Proof) -> list[Finding]:
    """Compare what the ranks of the uninterrupted run read."""
    run = proof.run("whole")
    blind = run.uncovered("batches")
    readers, replicas = run.readers, run.replicas
    if blind or len(readers) < len(replicas) or len(run.ranks) < max(rank.begin.world for rank in run.ranks):
        return [unknown(blind or "no batch of a rank was seen")]
    found, evidence = _ranks(readers, naming(readers))
    if run.shares_memory:
        found = [one for one in found if one.name == "same-batches"]  # each process may pass over the data on its own
    found += [*_order(readers), *_dropout(run), *_workers(run), *_replicated(run), *_parts_apart(run)]
    if found:
        return found
    if len(run.ranks) == 1:
        return [passed("one rank reads all samples", *evidence)]
    parted = [_parted(ranks) for ranks in replicas if len(ranks) > 1]
    if len(readers) == 1:
        return [passed("the ranks hold parts of one model and read one batch", *parted, *evidence)]
    who = f"{len(readers)} replicas of several ranks each" if parted else f"{len(readers)} ranks"
    return [passed(f"{who} read different batches", *parted[:4], *evidence)]


def _parts_apart(run: Run) -> list[Finding]:
    """Compare what ranks read that hold parts of the same layers: each part must be of the result for one batch."""
    for event in (event for rank in run.ranks for event in rank.of(Peers) if event.how == "tensor"):
        ranks = [rank for rank in run.ranks if rank.rank in event.ranks and rank.batches]
        equal, common = _equal(ranks)
        if len(ranks) > 1 and equal < common:
            who = ", ".join(str(rank.rank) for rank in ranks)
            text = f"ranks {who} hold parts of one layer: {equal} of {common} batches are equal on them"
            return [warned("parts-apart", "ranks that hold parts of one layer read different batches", text)]
    return []


def _parted(ranks: list[Rank]) -> str:
    how = sorted({event.how for rank in ranks for event in rank.of(Peers)})
    text = f"ranks {', '.join(str(one.rank) for one in ranks)} hold parts of one model: {' and '.join(how)} parallel"
    many = sum(bool(rank.batches) for rank in ranks) > 1
    return text + ("; {} of {} batches are equal on them".format(*_equal(ranks)) if many else "")


def _equal(ranks: list[Rank]) -> tuple[int, int]:
    """Return how many batches are equal on all those of some ranks that read any, and how many all of these read."""
    rows = list(zip(*(rank.batches for rank in ranks if rank.batches), strict=False))
    return sum(len({batch.digest for batch in row}) == 1 for row in rows), len(rows)


def _ranks(readers: list[Rank], named: Naming) -> tuple[list[Finding], list[str]]:
    evidence = []
    ended = [_ended(rank) for rank in readers]
    told = None not in ended  # where the first pass of a stream ends
    read = {rank.rank: _named(rank, named) for rank in readers}
    if told:
        firsts = (_named(rank, named, streams=True)[end] for rank, end in zip(readers, ended, strict=True))
        read = {rank.rank: {None: rows} for rank, rows in zip(readers, firsts, strict=True)}
    if not set.intersection(*(set(passes) for passes in read.values())):  # passes are known on some ranks only
        read = {rank: {None: list(itertools.chain(*passes.values()))} for rank, passes in read.items()}
    known = all(batch.indices for rank in readers for batch in rank.batches)  # content alone may come twice
    for number in {
        number for passes in read.values() for number in passes if (known if number is not None else not told)
    }:
        _cut(read.values(), number)
    begun = _begun(readers, named)
    for left, right in itertools.combinations(readers, 2):
        pairs = list(zip(left.batches, right.batches, strict=False))
        same = [one for one, other in pairs if one.digest == other.digest]
        who = f"ranks {left.rank} and {right.rank}"
        if len(same) == len(pairs):
            text = f"{who}: {len(same)} of {len(pairs)} batches are equal, first digest {same[0].digest}"
            if any(one.beside != other.beside for one, other in pairs):
                return [unknown("the first input of the model is equal on all ranks, and others differ", text)], []
            return [failed("same-batches", "ranks read the same batches", text)], []
        drawn = _drawn((left, right), named)
        finding, text = _shared(read[left.rank], read[right.rank], who, len(readers), known, begun, drawn)
        finding = finding or _undivided(left, right, who, text)
        evidence.append(text)
        if finding:
            return [finding], []
    return [], evidence[:4]


def _ended(rank: Rank) -> int | None:
    """Return the first iteration over a stream that the model has, if its end was seen."""
    first = next((batch.iteration for batch in rank.batches if batch.iteration is not None), None)
    return first if any(event.iteration == first for event in rank.of(Ended)) else None


def _named(rank: Rank, named: Naming, streams: bool = False) -> Passes:
    """Return the samples of each pass, of which a stream is one, or with `streams` of each iteration over a stream.

    A script may call its model twice with one batch.
    """
    found: Passes = defaultdict(list)
    last: tuple[str, list[str]] = ("", [])
    for batch in rank.batches:
        at = (batch.dataset, batch.indices) if batch.indices else (batch.digest, [])
        if at != last:
            found[batch.iteration if streams else batch.passes].extend(named(batch))
        last = at
    return found


def _begun(readers: list[Rank], named: Naming) -> dict[int | None, set[str]]:
    """Return the samples with which all ranks begin each pass: a sampler may fill up the last step with these."""
    found: dict[int | None, set[str]] = defaultdict(set)
    for rank in readers:
        for number in {batch.passes for batch in rank.batches}:
            found[number].update(named(next(batch for batch in rank.batches if batch.passes == number)))
    return found


def _cut(read: Iterable[Passes], number: int | None) -> None:
    """Leave what all ranks read before they begin again: a stream and an endless sampler tell no end of a pass."""
    held = [passes for passes in read if number in passes]
    if number is None or any(_repeats(passes[number]) for passes in held):
        length = _first_pass([passes[number] for passes in held])
        for passes in held:
            passes[number] = passes[number][:length]


def _repeats(rows: list[str]) -> int:
    return len(rows) - len(set(rows))


def _drawn(ranks: Iterable[Rank], named: Naming) -> State:
    """Return what it means if ranks share most samples of a stream, and each reads them in an order of its own.

    It is right if the stream has no end, or draws samples: they come again within one iteration, or before all were
    read. Without a DataLoader no end can be seen.
    """
    streams = [_named(rank, named, streams=True) for rank in ranks]
    first, *others = ([row for rows in one.values() for row in rows] for one in streams)
    if any(first[: len(other)] == other[: len(first)] for other in others):
        return State.FAIL  # one order
    iterations = (rows for one in streams for number, rows in one.items() if number is not None)
    if any(_before_repeats(rows) < len(rows) for rows in iterations) or all(map(_draws, streams)):
        return State.PASS
    blind = any(None in one for one in streams)
    return State.FAIL if not blind and any(rank.of(Ended) for rank in ranks) else State.CANNOT_TELL


def _draws(stream: dict[int | None, list[str]]) -> bool:
    """Return whether a rank has not read all of its samples when it begins again: passes over a data set would."""
    first, *others = stream.values()
    seen, rest = set(first), [*itertools.chain(*others)]
    if None in stream:
        rest = [*{*first, *rest}]
        seen = set([*itertools.chain(*stream.values())][: len(rest)])
    return sum(row not in seen for row in rest) > DRAWN * len(rest)


def _shared(
    mine: Passes, theirs: Passes, who: str, world: int, known: bool, begun: dict[int | None, set[str]], drawn: State
) -> tuple[Finding | None, str]:
    """Count the samples that two ranks share within one pass. A sampler may pad by world - 1 samples."""
    text = ""
    for number in sorted(mine.keys() & theirs.keys(), key=lambda one: -1 if one is None else one):
        one, other = mine[number], theirs[number]
        fewer = min(len(set(one)), len(set(other)))
        common = len(set(one) & set(other))
        place = "of a stream" if number is None else f"in pass {number}"
        text = f"{who}: {common} of {fewer} samples {place} are on both"
        many = min(REPEATED * len(one), common / 4)  # draws with replacement share twice what one rank repeats
        if number is not None and known and common and min(_repeats(one), _repeats(other)) >= many:
            return None, f"{text}; {_repeats(one)} of {len(one)} come again on one rank: the sampler repeats samples"
        repeated = sum(count - 1 for count in (Counter(one) + Counter(other)).values() if count > 2)
        if fewer and common > MOST * fewer and common > world - 1:
            if number is None and drawn is State.PASS:
                return None, f"{text}; they come again before it ends: it has no end, or draws with replacement"
            if number is None and (drawn is State.CANNOT_TELL or common < ALL * fewer):
                return unknown(f"ranks read mostly the same samples of a stream: {NO_END}", text), text
            return failed("shared-samples", "ranks read mostly the same samples", text), text
        inner = len((set(one) & set(other)) - begun[number])
        if number is not None and inner > world - 1 + repeated:
            return warned("shared-samples", "ranks share samples within one pass", text), text
    if not any(mine.values()) or not any(theirs.values()):
        return unknown(UNLIKE, f"{who}: no samples to compare"), ""
    return None, text


def _undivided(left: Rank, right: Rank, who: str, text: str) -> Finding | None:
    """Return a finding if two samplers draw all of one data set in orders of their own.

    In a large data set few samples, or none, are on both ranks after some steps.
    """
    for one, other in zip(left.batches, right.batches, strict=False):
        same = one.dataset == other.dataset != "" and one.passes == other.passes
        if same and one.whole and other.whole and one.order and other.order and one.order != other.order:
            whole = f"in pass {one.passes} the sampler of each draws the whole data set"
            return warned("shared-samples", "no sampler divides the data set among the ranks", f"{text}; {whole}")
    return None


def _first_pass(streams: list[list[str]]) -> int:
    """Return how many samples each rank reads in the first pass of a stream, which does not say where it ends.

    A pass ends where what follows was read before: most of it by all ranks together, if no sample came twice until
    then, or else half of it by one rank itself.
    """
    together = [row for place in zip(*streams, strict=False) for row in place]
    world, seen = len(streams), set[str]()
    for place, row in enumerate(together):
        if row in seen:
            length = place // world
            if length >= WINDOW // 2 and _known(together[length * world :][: WINDOW * world], seen, MOSTLY):
                return length
            break
        seen.add(row)
    return min(map(_before_repeats, streams), default=0)


def _before_repeats(rows: list[str], window: int = WINDOW) -> int:
    """Return how many samples come before one from which on half of some samples were read before."""
    seen: set[str] = set()
    for place, row in enumerate(rows):
        if row in seen and _known(rows[place : place + window], seen):
            return place
        seen.add(row)
    return len(rows)


def _known(rows: list[str], seen: set[str], share: float = 0.5) -> bool:
    return sum(row in seen for row in rows) >= share * len(rows)


def _order(readers: list[Rank]) -> list[Finding]:
    contents = [_named(rank, lambda batch: batch.rows) for rank in readers]
    for rank, held in zip(readers, contents, strict=True):
        known = {batch.passes: batch.order for batch in rank.batches if batch.passes is not None and batch.order}
        rows = {number: row for number, row in _named(rank, samples).items() if number is not None}
        for first, second in itertools.pairwise(sorted(rows)):
            if first in known and second in known:
                same = known[first] == known[second]
            else:
                length = min(len(rows[first]), len(rows[second]))
                different = len(set(rows[first][:length])) >= FEWEST_ROWS
                same = different and rows[first][:length] == rows[second][:length]
            if same and not _moved(held[first], held[second], {row for one in contents for row in one.get(first, [])}):
                text = f"rank {rank.rank}: passes {first} and {second} have the same order"
                return [warned("order-fixed", "the order of the samples does not change with the pass", text)]
    return []


def _moved(one: list[str], other: list[str], before: set[str]) -> bool:
    """Return whether a data set has changed the order of its samples itself, so that their places tell nothing."""
    return other != one[: len(other)] and _known(other, before)


def _dropout(run: Run) -> list[Finding]:
    states: dict[int, dict[int, str]] = defaultdict(dict)
    readers = {rank.rank for rank in run.readers}
    for rank, event in (one for one in run.dropouts() if one[0] in readers):
        states[event.step].setdefault(rank, event.state)
    compared = {step: row for step, row in states.items() if len(row) > 1}
    if not compared or any(len(set(row.values())) > 1 for row in compared.values()):
        return []
    step = min(compared)
    text = f"step {step + 1}: random state {next(iter(compared[step].values()))} on {len(compared[step])} ranks"
    return [warned("equal-dropout", "dropout is the same on all ranks", text)]


def _replicated(run: Run) -> list[Finding]:
    """Compare what the workers of one loader read of a stream in one pass.

    It is only a warning where no step trained on these samples: the loader may be for evaluation.
    """
    trained = {row for rank in run.readers for batch in rank.batches for row in batch.rows}
    seen: dict[tuple[int, int], dict[int, Passes]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for event in run.fetched:
        seen[event.rank, event.loader][event.worker][event.passes].extend(event.rows)
    ended = {(event.rank, event.loader, event.passes) for event in run.fetched if event.ended}
    for (rank, loader), workers in seen.items():
        for (left, mine), (right, theirs) in itertools.combinations(sorted(workers.items()), 2):
            pairs = {number: (mine[number], theirs[number]) for number in mine if number in theirs}
            ordered = {number for number, (one, other) in pairs.items() if one[: len(other)] == other[: len(one)]}
            drawn = _draws(mine) and _draws(theirs) and len(ordered) < len(pairs)
            for number, (one, other) in pairs.items() if not drawn else ():
                common = _replicas(one, other, number in ordered)
                if not common:
                    continue
                text = f"rank {rank}: workers {left} and {right} read the same {len(common)} samples in one pass"
                every = (rank, loader, number) in ended and len(common) >= ALL * min(len({*one}), len({*other}))
                if number not in ordered and not every:
                    return [unknown(f"the workers of a loader read the same samples of a stream: {NO_END}", text)]
                finding = failed if trained & common else warned
                return [finding("same-workers", "the workers of a loader read the same samples of a stream", text)]
    return []


def _replicas(one: list[str], other: list[str], in_order: bool) -> set[str]:
    """Return the samples that two workers share, if these are not an accident: all in one order, or many of one pass.

    A worker that reads samples again before its stream ends has a stream without an end, or draws with replacement.
    """
    common = set(one) & set(other)
    if in_order:
        return common if len(common) >= FEWEST_ROWS else set()
    if any(_before_repeats(rows) < len(rows) for rows in (one, other)):
        return set()
    first, second = (set(rows[: _before_repeats(rows, 1)]) for rows in (one, other))
    common = first & second
    return common if len(common) >= WINDOW and len(common) > REPEATED * min(len(first), len(second)) else set()


def _workers(run: Run) -> list[Finding]:
    """Compare the random states of the loaders' workers: over workers, ranks and passes."""
    seen: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for one in run.workers:
        if one.used:
            seen[one.loader, one.source, one.state].append(f"worker {one.worker} in pass {one.passes}")
    together = max(map(len, run.replicas))  # ranks whose loaders read the same samples
    for (_, source, state), workers in seen.items():
        if len(workers) > together:
            text = f"{source} has the state {state} in {', '.join(workers[:4])} of all ranks"
            return [warned("equal-augmentation", "workers of a loader draw the same random numbers", text)]
    return []
