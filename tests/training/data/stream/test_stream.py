"""Streams: ranks are disjoint and together complete, shuffled, exact on resume at any number of ranks."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.data.stream.conftest import ALL_TEXTS, ROWS, SHARDS
from training.config import Config, ConfigError, apply_override, load_texts
from training.data import retries
from training.data.errors import DataError
from training.data.index import read_index
from training.data.prepare_tokens import verify
from training.data.sources import open_source
from training.data.stream.feed import StreamFeed, lanes_for
from training.data.stream.lanes import Plan, State, samples
from training.data.stream.open import open_stream, prepare_first
from training.data.token_dataset import NO_LABEL
from training.task import Batch

pytestmark = pytest.mark.usefixtures("impatient")

BATCH, LENGTH = 24, 16


class Rank:
    """One of several ranks, with what a feed needs."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.local_rank, self.first = rank, world_size, rank, rank == 0


@pytest.fixture
def stream_config(texts: dict[str, tuple[str, str]]) -> Callable[..., Config]:
    """The tiny configuration with a stream of a source, and other keys."""

    def make(source: object, *keys: str) -> Config:
        own = dict(texts)
        for key in (
            f"data.source={source}", "data.stream={shuffle_buffer: 20}", f"sequence_length={LENGTH}",
            f"train.global_batch_size={BATCH}", "parallel.micro_batch_size=1", *keys,
        ):  # fmt: skip
            own = apply_override(own, key)
        return load_texts(own)

    return make


Feeds = Callable[..., list[StreamFeed]]


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[Feeds]:
    """Open a stream on several ranks; their threads are ended afterwards."""
    opened: list[StreamFeed] = []

    def start(config: Config, world_size: int = 1, say: Callable[[str], None] = lambda line: None) -> list[StreamFeed]:
        first = prepare_first(config, tmp_path / "data", lambda line: None)
        made = [open_stream(config, first, Rank(rank, world_size), say) for rank in range(world_size)]  # type: ignore[arg-type]
        opened.extend(made)
        return made

    yield start
    for feed in opened:
        feed.close()


def read_on(feed: StreamFeed, steps: int = 25) -> list[list[bytes]]:
    """Read that many steps from the start."""
    return [rows(feed.batches(step * BATCH)) for step in range(steps)]


def rows(batches: Sequence[Batch]) -> list[bytes]:
    """Every sample of some batches, in a form that can be compared."""
    return [
        b"".join(array[number].tobytes() for array in batch.arrays().values())
        for batch in batches
        for number in range(len(batch.arrays()["input_ids"]))
    ]


def plan_of(source: str, lanes: int, *, below: int = 0, block: int = 10, seed: int = 1) -> Plan:
    """Lanes over a source whose tokens are the documents' numbers: -1, shard, row, words, -2."""

    def encode(texts: list[str]) -> list[Any]:
        return [np.array([0, 1 + int(t[9:11]), 100 + int(t[12:15]), *range(500, 500 + len(t) % 7)]) for t in texts]

    files = tuple(file.path for file in open_source(source).files)
    return Plan(files, "text", lanes, seed, block, below, LENGTH, encode)


def documents(plan: Plan, lane: int, count: int) -> list[tuple[int, int]]:
    """The first `count` documents that a lane yields, as (shard, row)."""
    tokens: list[int] = []
    begun = 0
    for sample in samples(plan, lane):
        tokens += sample.tokens[:-1].tolist()
        begun += int((sample.tokens[:-1] == 0).sum())
        if begun > count:
            break
    starts = [place for place, token in enumerate(tokens) if token == 0][:count]
    return [(tokens[place + 1] - 1, tokens[place + 2] - 100) for place in starts]


EVERY = {(shard, row) for shard in range(SHARDS) for row in range(ROWS)}


@pytest.mark.parametrize("lanes", [1, 4, 9, 16])
def test_lanes_are_disjoint_and_together_complete(shard_directory: Path, lanes: int) -> None:
    plan = plan_of(str(shard_directory), lanes)
    found: Counter[tuple[int, int]] = Counter()
    for lane in range(lanes):
        units = plan.units(lane, 0)
        share = sum(len(range(unit % plan.parts, ROWS, plan.parts)) for unit in units)
        found.update(documents(plan, lane, share))
    assert found == Counter(EVERY), "each document of the epoch once, over all lanes"


def test_documents_are_shuffled_by_the_seed_and_again_each_epoch(shard_directory: Path) -> None:
    source = str(shard_directory)
    first, second = (documents(plan_of(source, 1, seed=seed), 0, 2 * len(EVERY)) for seed in (1, 2))
    assert documents(plan_of(source, 1, seed=1), 0, 300) == first[:300]
    assert first[:300] != second[:300]
    assert set(first[: len(EVERY)]) == set(first[len(EVERY) :]) == EVERY
    assert first[: len(EVERY)] != first[len(EVERY) :]
    in_order = sum(a[0] == b[0] and a[1] < b[1] for a, b in pairwise(first)) / len(first)
    assert in_order < 0.7, "rows do not come in their order"


@pytest.mark.parametrize("block", [1, 7, 60, 5000])
def test_a_lane_continues_exactly_from_every_sample(shard_directory: Path, block: int) -> None:
    plan = plan_of(str(shard_directory), 5, block=block)
    whole = []
    for sample in samples(plan, 2):
        whole.append(sample)
        if len(whole) == 120:
            break
    for after in (0, 1, 2, 37, 80):
        state: State = json.loads(json.dumps(whole[after].state))
        resumed = samples(plan, 2, state)
        for expected, found in zip(whole[after + 1 :], resumed, strict=False):
            assert np.array_equal(expected.tokens, found.tokens)
            assert np.array_equal(expected.documents, found.documents)
            assert expected.state == found.state


def test_samples_are_the_documents_in_sequence(shard_directory: Path) -> None:
    plan = plan_of(str(shard_directory), 3)
    first = [sample for sample, _ in zip(samples(plan, 0), range(50), strict=False)]
    for one, two in pairwise(first):
        assert one.tokens[-1] == two.tokens[0], "the last label is the next sample's first input"
    assert all(len(sample.tokens) == LENGTH + 1 for sample in first)


def test_every_rank_count_reads_the_same_global_batches(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path
) -> None:
    config = stream_config(shard_directory)
    steps = {}
    for world_size in (1, 2, 4):
        ranks = feeds(config, world_size)
        steps[world_size] = [
            sorted(row for feed in ranks for row in rows(feed.batches(step * BATCH))) for step in range(6)
        ]
    assert steps[1] == steps[2] == steps[4]
    assert len(set(steps[1][0])) > BATCH * 0.9, "ranks do not read the same"


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 4), (4, 1)])
def test_a_resume_is_exact_at_any_number_of_ranks(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path, before: int, after: int
) -> None:
    config = stream_config(shard_directory)
    reference = feeds(config, 1)[0]
    whole = [sorted(rows(reference.batches(step * BATCH))) for step in range(9)]
    writers = feeds(config, before)
    for step in range(4):
        for feed in writers:
            feed.batches(step * BATCH)
    for position in (3 * BATCH, 4 * BATCH):  # a save before a step's batches are used up, and after
        states = [json.loads(json.dumps(feed.state())) for feed in writers]
        readers = feeds(config, after)
        for feed in readers:
            feed.restore(position, before, lambda rank, states=states: states[rank])  # type: ignore[misc]
        for step in range(position // BATCH, 9):
            assert sorted(row for feed in readers for row in rows(feed.batches(step * BATCH))) == whole[step]


def test_the_same_step_can_be_read_again_and_no_other(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path
) -> None:
    (feed,) = feeds(stream_config(shard_directory))
    assert rows(feed.batches(0)) == rows(feed.batches(0))
    feed.batches(BATCH)
    with pytest.raises(DataError, match=f"the stream is at sample {2 * BATCH}, not at {5 * BATCH}"):
        feed.batches(5 * BATCH)
    with pytest.raises(DataError, match="the checkpoint has no state of lane 0 at sample 999"):
        feed.restore(999, 1, lambda rank: feed.state())


def test_labels_end_with_their_document(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path, tmp_path: Path
) -> None:
    (feed,) = feeds(stream_config(shard_directory))
    index = read_index(feed.directory)
    for batch in (batch for step in range(5) for batch in feed.batches(step * BATCH)):
        ids, labels, positions, numbers = batch.arrays().values()
        begins = ids == index.bos
        begins[:, 0] = True
        assert np.array_equal(positions == 0, begins)
        assert np.array_equal(np.diff(numbers, axis=1), begins[:, 1:])
        ends = ids == index.eos
        assert np.array_equal(labels == NO_LABEL, ends)
        labelled = ~ends[:, :-1]
        assert np.array_equal(labels[:, :-1][labelled], ids[:, 1:][labelled])


def test_held_out_documents_are_never_trained_on(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path
) -> None:
    config = stream_config(shard_directory, "data.heldout_fraction=0.3")
    (feed,) = feeds(config)
    index = verify(feed.directory)
    below = index.settings["heldout_below"]
    assert below == int(0.3 * 2**64)
    plan = plan_of(str(shard_directory), 1, below=below)
    share = sum(1 for text in ALL_TEXTS if hash_of(text) >= below)
    trained = documents(plan, 0, share * 2)
    assert set(trained[:share]) == set(trained[share:])
    names = {text for text in ALL_TEXTS if (int(text[9:11]), int(text[12:15])) in set(trained)}
    assert all(hash_of(text) >= below for text in names)
    assert len(names) == share
    heldout = index.splits["heldout"].documents
    assert heldout == sum(1 for text in ALL_TEXTS if hash_of(text) < below), "the first part is the whole source"


def hash_of(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def test_held_out_batches_are_the_same_at_every_number_of_ranks(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path
) -> None:
    config = stream_config(shard_directory)
    found = []
    for world_size in (1, 2, 4):
        batches = [batch for feed in feeds(config, world_size) for batch in feed.heldout(8)]
        found.append(sorted(row for row in rows(batches)))
    assert found[0] == found[1] == found[2]


def test_a_failing_server_changes_nothing(
    stream_config: Callable[..., Config], feeds: Feeds, serve: Callable[..., Any]
) -> None:
    calm, stormy = serve(), serve(share=0.5, seed=11)
    lines: list[str] = []
    expected, found = (
        read_on(feed)
        for feed in (
            feeds(stream_config(calm.pattern))[0],
            feeds(stream_config(stormy.pattern), say=lines.append)[0],
        )
    )
    assert expected == found
    assert sum(stormy.faults().values()) > 10
    assert any("attempts failed, the next in" in line for line in lines), "retries are reported"


def test_without_retries_the_stream_ends(
    stream_config: Callable[..., Config],
    feeds: Feeds,
    serve: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control."""
    server = serve()
    (feed,) = feeds(stream_config(server.pattern))
    server.share, server.seed = 0.5, 11
    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(attempts=1, silence=0.3))
    with pytest.raises(DataError, match="gave up after 1 of 1 attempts"):
        read_on(feed)


def test_a_dead_file_ends_the_stream_with_its_url(
    stream_config: Callable[..., Config], feeds: Feeds, serve: Callable[..., Any]
) -> None:
    server = serve()
    (feed,) = feeds(stream_config(server.pattern))
    server.dead = frozenset({"/shard-04.jsonl.gz"})
    with pytest.raises(DataError, match=rf"{server.url}/shard-04\.jsonl\.gz: the server answered 503; gave up"):
        read_on(feed)


def test_lanes_follow_from_batch_and_files(stream_config: Callable[..., Config], shard_directory: Path) -> None:
    config = stream_config(shard_directory)
    assert lanes_for(config, files=SHARDS, world_size=2) == 8
    assert lanes_for(config, files=1024, world_size=4) == BATCH
    assert lanes_for(config, files=1, world_size=1) == 8, "few files are read in parts"
    set_ = stream_config(shard_directory, "data.stream.lanes=6")
    assert lanes_for(set_, files=9, world_size=3) == 6
    with pytest.raises(
        DataError, match=r"4 ranks cannot share the stream's 6 lanes evenly; nearest .*: 4, for a new run"
    ):
        lanes_for(set_, files=9, world_size=4)
    assert math.gcd(6, BATCH) == 6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["data.stream.lanes=7"],
            "data.stream.lanes 7 does not divide train.global_batch_size 24; nearest: 6",
        ),
        (["data.stream.lane=8"], "unknown key data.stream.lane; did you mean data.stream.lanes?"),
        (["data.stream.first_mb=0"], "data.stream.first_mb is 0"),
        (
            ["model.weights=run:other"],
            "data.stream is for training.pretrain only, but this is for training.finetune",
        ),
    ],
)
def test_bad_keys(stream_config: Callable[..., Config], shard_directory: Path, keys: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stream_config(shard_directory, *keys)
    assert message in str(caught.value)


def test_a_stream_without_source_is_c4(texts: dict[str, tuple[str, str]]) -> None:
    name, text = texts["model"]
    own = {
        **texts,
        "model": (
            name,
            text.replace("source:", "text_field: text, stream: {}, tokenizer: ").replace("heldout", "heldout"),
        ),
    }
    config = load_texts(own)
    assert config.data.source.startswith("hf://datasets/allenai/c4@")
    assert len(open_source(config.data.source).files) == 1024
    listed = load_texts(apply_override(texts, "data.source=[a.jsonl, https://h/b.jsonl]"))
    assert listed.data.source == "a.jsonl\nhttps://h/b.jsonl"


def test_only_rows_can_be_streamed(
    stream_config: Callable[..., Config], feeds: Feeds, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"a stream reads \.jsonl.*leave out data\.stream"):
        feeds(stream_config(corpus))
    assert not (tmp_path / "data").exists(), "found before anything is prepared"


def test_files_without_a_document_to_train_on_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": "  "}\n')
    with pytest.raises(DataError, match=r"stream: no document to train on in .*empty\.jsonl"):
        next(samples(plan_of(str(tmp_path), 1), 0))


def test_a_given_tokenizer_serves_a_stream(
    stream_config: Callable[..., Config], feeds: Feeds, shard_directory: Path, tmp_path: Path
) -> None:
    (trained,) = feeds(stream_config(shard_directory))
    again = stream_config(shard_directory, f"data.tokenizer={trained.directory / 'tokenizer'}")
    (given,) = feeds(again)
    assert rows(given.batches(0)) == rows(trained.batches(0))
