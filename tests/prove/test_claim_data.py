"""Which samples and parameters the ranks may share: parts of one model, streams and samplers, on made-up records."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.prove import made
from tests.prove.changes import Runs, averaged, moved, parted, parted_and_apart, parted_twice
from tests.prove.made import changed, healthy
from tools.core.verdict import State, Verdict
from tools.prove.claims import judge
from tools.prove.observed import at_random
from tools.prove.run import figures_of
from training.prove.records import Batch, Ended, Fetched, Worker


def test_ranks_that_train_apart_are_averaged_or_named() -> None:
    assert "again after step 4" in judge("world", changed(averaged)).summary
    never = judge("world", changed(lambda runs: averaged(runs, 99)))
    assert never.details["findings"] == ["parameters-differ"]


def test_what_the_ranks_of_one_model_read_is_said() -> None:
    same, other, staged = (
        judge("data", changed(change)) for change in (parted, parted_and_apart, lambda runs: parted(runs, "pipeline"))
    )
    assert same.summary.endswith("read one batch")
    assert "12 of 12 batches are equal" in same.evidence[0]
    assert (other.state, other.summary.endswith("read different batches")) == (State.WARN, True)
    assert "6 of 12 batches are equal" in other.evidence[0]
    assert "equal" not in staged.evidence[0]


def test_a_first_input_that_is_constant_does_not_fail() -> None:
    """Such as the matrix of a graph, or a prompt: what is beside it holds the samples."""

    def constant(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            made.every(runs["whole"], Batch, digest="graph", rows=["node"], indices=[])
            for batch in one.batches:
                batch.beside = f"{one.rank} {batch.number}"

    assert judge("data", changed(constant)).state is State.CANNOT_TELL


def test_samples_that_parts_of_a_model_read_together_count_once() -> None:
    apart, together = (figures_of(proof.run("whole")) for proof in (healthy(), changed(parted)))
    assert apart["samples a second"] == 2 * together["samples a second"]


def test_ranks_of_two_models_may_not_read_one_batch() -> None:
    found = judge("data", changed(parted_twice))
    assert found.details["findings"] == ["same-batches"]
    assert "ranks 0 and 2" in found.evidence[0]


def test_replicas_of_parts_are_compared_by_part() -> None:
    """Ranks 0 and 1 hold stages of one model, and ranks 2 and 3 those of its copy."""

    def staged(runs: Runs, wrong: int | None = None) -> None:
        parted_twice(runs)
        for one in runs["whole"].ranks:
            for step in one.steps:
                stage = f" of stage {one.rank % 2}{' changed' * (one.rank == wrong)}"
                step.parameters_before, step.parameters_after = (
                    digest + stage for digest in (step.parameters_before, step.parameters_after)
                )

    assert judge("world", changed(staged)).state is State.PASS
    found = judge("world", changed(lambda runs: staged(runs, 3)))
    assert found.details["findings"] == ["parameters-differ"]
    assert "ranks 1 and 3" in found.evidence[0]


def _read(rows: Callable[[int], list[str]], length: int | None = None, size: int = 8) -> Verdict:
    """Return the verdict on claim 3 where each rank reads these rows: by a loop of its own, or by a DataLoader.

    Each iteration over the DataLoader has `length` samples and comes to an end.
    """

    def change(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            read = rows(one.rank)
            for batch in one.batches:
                at = batch.step * size
                batch.rows, batch.digest = read[at : at + size], f"{one.rank} {batch.step}"
                batch.passes, batch.indices, batch.dataset = None, [], ""
                batch.iteration = at // length if length else None
            one.events += [Ended(number) for number in range(made.STEPS * size // length - 1 if length else 0)]

    return judge("data", changed(change))


def _draws(draw: random.Random, samples: int) -> list[str]:
    return [f"row{draw.randrange(samples)}" for _ in range(99)]


def _passes(draw: random.Random, samples: int) -> list[str]:
    return [f"row{at}" for _ in range(9) for at in draw.sample(range(samples), samples)]


def _shards(draw: random.Random, shards: int) -> list[str]:
    return [f"row{shard}.{at}" for shard in draw.choices(range(shards), k=12) for at in range(8)]


@pytest.mark.parametrize(
    ("rows", "samples", "length", "states"),
    [
        (_draws, 12, None, {State.PASS, State.CANNOT_TELL}), (_draws, 40, None, {State.PASS}),
        (_passes, 24, None, {State.CANNOT_TELL}), (_passes, 90, None, {State.CANNOT_TELL}),
        (_shards, 12, 16, {State.PASS}), (_passes, 24, 24, {State.FAIL}),
    ],
    ids=["few draws", "draws", "own orders", "one pass", "shards of short passes", "passes with an end"],
)  # fmt: skip
def test_samples_that_are_drawn_may_be_shared(
    rows: Callable[[random.Random, int], list[str]], samples: int, length: int | None, states: set[State]
) -> None:
    """Ranks that draw share most samples only by chance. A loop without a DataLoader does not tell its end."""
    of_seed = (lambda rank, seed=seed: rows(random.Random(99 * seed + rank), samples) for seed in range(20))
    assert {_read(of_rank, length).state for of_rank in of_seed} <= states


def test_one_order_is_no_order_of_its_own() -> None:
    assert _read(lambda _: _passes(random.Random(1), 24)).details["findings"] == ["shared-samples"]


@pytest.mark.parametrize("numbers", [True, False])
def test_samples_that_nothing_tells_apart_are_unknown(numbers: bool) -> None:
    """Single whole numbers without places, or values that change at random in data sets of the ranks' own."""

    def alike(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            for batch in one.batches:
                batch.dataset, batch.digest = f"copy {one.rank}", f"{one.rank} {batch.step}"
                batch.rows = [] if numbers else [f"{one.rank} {batch.step} {index}" for index in batch.indices]
                batch.indices = [] if numbers else batch.indices

    verdict = judge("data", changed(alike))
    assert (verdict.state, "nothing distinguishes" in verdict.summary) == (State.CANNOT_TELL, True)


def own_shuffles(runs: Runs) -> None:
    """Let each rank read all samples in the order of a copy that it has shuffled."""
    for one in runs["whole"].ranks:
        order = random.Random(one.rank).sample(range(24), 24)
        for batch in one.batches:
            at = batch.step % 12 * 2
            batch.indices, batch.rows = [f"{at}", f"{at + 1}"], [f"row{order[at]}", f"row{order[at + 1]}"]
            batch.passes, batch.dataset, batch.digest = batch.step // 12, f"copy {one.rank}", "/".join(batch.rows)


@pytest.mark.parametrize(
    ("whole", "one_order", "state"),
    [
        pytest.param(True, False, State.WARN, id="each draws all"),
        pytest.param(True, True, State.PASS, id="one order, of which each takes its batches"),
        pytest.param(False, False, State.PASS, id="divided"),
    ],
)
def test_samplers_that_draw_all_of_a_large_data_set_are_named(whole: bool, one_order: bool, state: State) -> None:
    """No sample is on both ranks in the steps that were seen."""

    def large(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            for batch in one.batches:
                batch.passes, batch.whole, batch.order = 0, whole, "one" if one_order else f"of {one.rank}"
                batch.indices = [str(1000 * one.rank + 2 * batch.step + at) for at in (0, 1)]
                batch.rows = [f"row{index}" for index in batch.indices]
                batch.digest = "/".join(batch.rows)

    found = judge("data", changed(large))
    assert (found.state, found.details["findings"]) == (state, ["shared-samples"] if state is State.WARN else [])


def own_parts(runs: Runs) -> None:
    """Let each rank have its own part of the samples as a data set: both count from 0."""
    for one in runs["whole"].ranks:
        for batch in one.batches:
            batch.indices = [str(2 * (batch.step % 6) + at) for at in (0, 1)]
            batch.rows, batch.dataset = [f"{one.rank} {index}" for index in batch.indices], f"part {one.rank}"
            batch.digest = "/".join(batch.rows)


def whole_numbers(runs: Runs) -> None:
    """Let each rank shuffle all samples, which are single whole numbers, for itself."""
    for one in runs["whole"].ranks:
        order = random.Random(one.rank).sample(range(24), 24)
        for batch in one.batches:
            at = batch.step % 12 * 2
            batch.indices, batch.rows = [str(order[at]), str(order[at + 1])], []
            batch.passes, batch.digest = batch.step // 12, f"{one.rank} {batch.step}"


def dispatched(runs: Runs, broken: bool = False) -> None:
    """Let rank 0 read the samples of both ranks and send rank 1 its own, as accelerate does."""
    for batch in runs["whole"].ranks[1].batches:
        batch.passes, batch.order, batch.indices, batch.dataset = None, None, [], ""
    if broken:
        for left, right in zip(*(one.batches for one in runs["whole"].ranks), strict=True):
            right.rows = left.rows


def test_a_data_set_that_shuffles_itself_has_another_order() -> None:
    assert judge("data", changed(moved)).state is State.PASS
    assert judge("data", changed(lambda runs: moved(runs, again=True))).details["findings"] == ["order-fixed"]
    assert not at_random(changed(moved).run("whole").ranks)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (own_shuffles, State.FAIL), (own_parts, State.PASS), (whole_numbers, State.FAIL), (dispatched, State.PASS),
        (lambda runs: dispatched(runs, broken=True), State.FAIL),
    ],
)  # fmt: skip
def test_samples_are_told_apart_by_what_all_ranks_know(change: Callable[[Runs], None], state: State) -> None:
    assert judge("data", changed(change)).state is state


def test_another_world_finds_samples_that_rank_0_has_sent() -> None:
    assert judge("rescale", changed(dispatched)).state is State.PASS


def test_workers_of_two_ranks_may_not_share_a_state() -> None:
    proof = healthy()
    proof.runs["whole"].workers += [Worker(0, 0, 0, "numpy", "state 0 0", True)]
    assert judge("data", proof).details["findings"] == ["equal-augmentation"]


@pytest.mark.parametrize(
    ("drawn", "ended", "state"),
    [
        (lambda worker: random.Random(worker).sample(range(40), 40), True, State.FAIL),
        (lambda worker: random.Random(worker).sample(range(40), 24), False, State.CANNOT_TELL),
        (lambda worker: [at % 40 for at in random.Random(worker).sample(range(40), 40) * 2], False, State.PASS),
        (lambda _: [*range(40)] * 2, False, State.FAIL),
        (lambda worker: random.Random(worker).sample(range(20 * worker, 20 * worker + 20), 20), True, State.PASS),
        (lambda worker: random.Random(worker).choices(range(40), k=60), True, State.PASS),
        (lambda worker: [8 * shard + at for shard in (2, worker, 3, worker) for at in range(8)], True, State.PASS),
    ],
    ids=["own orders", "no end seen", "over and over", "one order", "divided", "with replacement", "shards again"],
)
def test_workers_that_read_one_stream(drawn: Callable[[int], list[int]], ended: bool, state: State) -> None:
    proof = healthy()
    for worker in (0, 1):
        rows = [f"row{at}" for at in drawn(worker)]
        batches = [rows[at : at + 4] for at in range(0, len(rows), 4)]
        proof.runs["whole"].fetched += [Fetched(0, 0, 0, worker, batch) for batch in batches]
        proof.runs["whole"].fetched[-1].ended = ended
    verdict = judge("data", proof)
    assert verdict.state is state
    assert verdict.details["findings"] == (["same-workers"] if state is State.FAIL else [])


@pytest.mark.parametrize(
    ("seed", "passes", "state"), [(0, 6, State.PASS), (1, 1, State.FAIL)], ids=["own seeds", "one seed"]
)
def test_workers_that_draw_shards_for_short_passes(seed: int, passes: int, state: State) -> None:
    """Two of them may draw a shard at once. With one seed they read the same, which one pass shows."""
    proof = healthy()
    for worker in (0, 1):
        draw = random.Random(0 if seed else worker)
        for number in range(passes):
            rows = [f"row{shard}.{at}" for shard in draw.sample(range(6), 3) for at in range(8)]
            proof.runs["whole"].ranks[0].batches[0].rows += rows
            proof.runs["whole"].fetched.append(Fetched(0, 0, number, worker, rows, True))
    assert judge("data", proof).state is state


@pytest.mark.parametrize(
    ("length", "twice", "ended", "state"),
    [
        (24, False, True, State.FAIL), (24, False, False, State.CANNOT_TELL), (12, False, False, State.PASS),
        (12, True, True, State.FAIL),
    ],
    ids=["ended", "no end seen", "no end", "each batch twice"],
)  # fmt: skip
def test_a_stream_without_an_end_may_be_shared(length: int, twice: bool, ended: bool, state: State) -> None:
    """Each rank reads it in orders of its own, as resampled shards are read. One that ends has to be divided."""

    def shuffled(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            draw = random.Random(one.rank)
            rows = [f"row{at}" for _ in range(3) for at in draw.sample(range(length), length)]
            for batch in one.batches:
                first = batch.step // (1 + twice) * 2
                batch.rows, batch.digest = rows[first : first + 2], f"{one.rank} {first}"
                batch.passes, batch.indices, batch.iteration = None, [], 0
            one.events += [Ended(0)] * ended

    assert judge("data", changed(shuffled)).state is state


def _sampled(sampler: Callable[[int, int], list[int]], again: bool = False) -> Verdict:
    """Return the verdict on claim 3 where both ranks read endless passes of two samples a step, by their indices."""

    def change(runs: Runs) -> None:
        for one in runs["whole"].ranks:
            order = sampler(one.rank, 2 * made.STEPS)
            for batch in one.batches:
                batch.passes, batch.order = 0, None
                batch.indices = [str(at) for at in order[2 * batch.step : 2 * batch.step + 2]]
                batch.rows = [f"row{at}" for at in batch.indices]
                batch.digest = f"{one.rank} {batch.number}"
            if again:
                one.events = [it for event in one.events for it in [event] * (1 + isinstance(event, Batch))]

    return judge("data", changed(change))


def _endless(rank: int, length: int) -> list[int]:
    """Return the part of one rank of shuffled passes over 16 samples that follow each other without an end."""
    whole = [at for one in range(9) for at in random.Random(one).sample(range(16), 16)]
    return whole[rank::2][:length]


def _augmented(rank: int, length: int) -> list[int]:
    """Return the part of one rank of samples that come three times each, for another augmentation on other ranks."""
    return [at for one in random.Random(1).sample(range(64), 64) for at in [one] * 3][rank::2][:length]


def _own_orders(rank: int, length: int) -> list[int]:
    return [at for one in range(9) for at in random.Random(9 * rank + one).sample(range(16), 16)][:length]


def _filled(rank: int, first: int = 0) -> list[int]:
    """Return the part of one rank of 12 steps, of which rank 1 has nothing of its own for the last one."""
    own = [at for step in range(made.STEPS) for at in (4 * step + 2 * rank, 4 * step + 2 * rank + 1)]
    return own if rank == 0 else [*own[:-2], first, first + 1]


def test_a_sampler_that_fills_up_its_last_step() -> None:
    """As that of accelerate, with the samples of the first step."""
    assert _sampled(lambda rank, _: _filled(rank)).state is State.PASS
    other = _sampled(lambda rank, _: _filled(rank, first=4))
    assert (other.state, other.details["findings"]) == (State.WARN, ["shared-samples"])


def test_a_sampler_without_an_end_and_one_that_repeats_samples() -> None:
    assert _sampled(_endless).state is State.PASS
    assert _sampled(_endless, again=True).state is State.PASS
    verdict = _sampled(_augmented)
    assert verdict.state is State.PASS
    assert "the sampler repeats samples" in verdict.evidence[0]
    rare = _sampled(lambda rank, length: random.Random(rank).choices(range(150), k=length))
    assert (rare.state, "the sampler repeats samples" in rare.evidence[0]) == (State.PASS, True)
    broken = _sampled(_own_orders), _sampled(_own_orders, again=True)
    assert {one.state for one in broken} == {State.FAIL}
