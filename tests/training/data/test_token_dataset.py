"""Samples from token shards, compared with the same tokens read one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from training.data import token_shards
from training.data.errors import DataError
from training.data.index import read_index
from training.data.prepare_tokens import prepare_tokens
from training.data.sampler import PADDING, heldout_batches, micro_batches, samples_at
from training.data.token_dataset import Batch, TokenDataset

LENGTH = 48


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of many small shards with long and very short documents; tests only read it."""
    source, root = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    for number in range(150):
        words = " ".join(str(word) for word in draw.integers(0, 50, size=int(draw.choice([1, 3, 10, 150]))))
        (source / f"{number}.txt").write_text(f"{number}: {words}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_shards, "SHARD_TOKENS", 701)
        return prepare_tokens(str(source), "text", 0.1, "train", 512, root, lambda line: None)


def plain(directory: Path, split: str) -> list[list[int]]:
    """Every document's tokens, read directly."""
    index = read_index(directory)
    tokens = b"".join((directory / name).read_bytes() for name in index.splits[split].shards)
    starts = np.load(directory / index.splits[split].starts).tolist()
    ids = np.frombuffer(tokens, index.dtype).tolist()
    return [ids[start:end] for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]


def expected_row(documents: list[list[int]], sample: int) -> list[list[int]]:
    """Input, label, position and document of each token of a sample, read token by token."""
    stream = [(token, number, place) for number, ids in enumerate(documents) for place, token in enumerate(ids)]
    begin = sample * LENGTH
    window = stream[begin : begin + LENGTH + 1]
    rows: list[list[int]] = []
    for place, (now, following) in enumerate(pairwise(window)):
        token, document, in_document = now
        label = following[0] if following[1] == document else -100
        rows.append([token, label, min(in_document, place), document - window[0][1]])
    return [list(column) for column in zip(*rows, strict=True)]


def columns(batch: Batch, row: int) -> list[list[int]]:
    arrays = (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
    return [array[row].tolist() for array in arrays]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_sample_is_what_a_plain_reading_gives(directory: Path, split: str) -> None:
    dataset = TokenDataset.open(directory, split, LENGTH)
    documents = plain(directory, split)
    assert len(read_index(directory).splits["train"].shards) > 5
    assert dataset.tokens == sum(map(len, documents))
    assert len(dataset) == (dataset.tokens - 1) // LENGTH
    batch = dataset.batch(np.arange(len(dataset)))
    for sample in range(len(dataset)):
        assert columns(batch, sample) == expected_row(documents, sample), f"sample {sample}"
    assert batch.document_ids.max() > 2, "some samples hold several documents"


def test_labels_end_with_the_document(directory: Path) -> None:
    dataset = TokenDataset.open(directory, "train", LENGTH)
    batch = dataset.batch(np.arange(len(dataset)))
    index = read_index(directory)
    ends = batch.input_ids == index.eos
    assert ends.sum() > 50
    assert np.array_equal(batch.labels == -100, ends)
    assert index.bos not in batch.labels
    assert np.array_equal(batch.position_ids == 0, (batch.input_ids == index.bos) | (np.arange(LENGTH) == 0))


def test_batches_are_int64_in_the_order_asked_for(directory: Path) -> None:
    dataset = TokenDataset.open(directory, "train", LENGTH)
    batch = dataset.batch(np.array([5, 2, 5]))
    for array in (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids):
        assert array.dtype == np.int64
        assert array.shape == (3, LENGTH)
        assert np.array_equal(array[0], array[2])
    assert columns(batch, 1) == columns(dataset.batch([2]), 0)
    assert batch.input_ids.max() < dataset.vocab_size


def test_a_padding_row_has_no_labels(directory: Path) -> None:
    dataset = TokenDataset.open(directory, "train", LENGTH)
    batch = dataset.batch([3, PADDING])
    assert (batch.labels[1] == -100).all()
    assert columns(batch, 0) == columns(dataset.batch([3]), 0)


def test_indices_outside_are_refused(directory: Path) -> None:
    dataset = TokenDataset.open(directory, "train", LENGTH)
    for wrong in (len(dataset), -2):
        with pytest.raises(IndexError, match="sample indices"):
            dataset.batch([0, wrong])


def test_the_last_sample_needs_its_last_label(directory: Path) -> None:
    tokens = read_index(directory).splits["heldout"].tokens
    assert len(TokenDataset.open(directory, "heldout", tokens - 1)) == 1
    with pytest.raises(DataError, match=rf"has {tokens:,} tokens, too few for one sample of {tokens:,}"):
        TokenDataset.open(directory, "heldout", tokens)


def test_opening_what_is_not_a_dataset(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a prepared dataset: it has no index\.json"):
        TokenDataset.open(tmp_path, "train", LENGTH)
    with pytest.raises(DataError, match="no split 'heldut'; did you mean 'heldout'"):
        TokenDataset.open(directory, "heldut", LENGTH)
    damaged = shutil.copytree(directory, tmp_path / "damaged")
    shard = damaged / "train-00003.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train-00003\.bin has 1401 bytes, not 1402"):
        TokenDataset.open(damaged, "train", LENGTH)


def test_the_digest_names_the_content(directory: Path, prepared: Callable[..., Path]) -> None:
    train, heldout = (TokenDataset.open(directory, split, LENGTH) for split in ("train", "heldout"))
    assert train.digest == heldout.digest != TokenDataset.open(prepared(), "train", LENGTH).digest
    assert train.unigram_nats == heldout.unigram_nats == read_index(directory).unigram_nats


def test_an_epoch_by_ranks_that_change_in_number_gives_back_the_whole_text(directory: Path) -> None:
    dataset = TokenDataset.open(directory, "train", LENGTH)
    n, batch_size, position = len(dataset), 8, 0
    samples = np.full((n, LENGTH), -1)
    times_read = np.zeros(n, dtype=int)
    world_sizes = [1, 2, 4, 2, 4, 1]
    while position + batch_size <= n:
        world_size = world_sizes[position // (2 * batch_size) % len(world_sizes)]
        for rank in range(world_size):
            for places in micro_batches(position, batch_size, 2, rank, world_size):
                indices = samples_at(places, 3, n)
                samples[indices] = dataset.batch(indices).input_ids
                np.add.at(times_read, indices, 1)
        position += batch_size
    rest = samples_at(np.arange(position, n), 3, n)
    samples[rest] = dataset.batch(rest).input_ids
    np.add.at(times_read, rest, 1)
    stream = [token for document in plain(directory, "train") for token in document]
    assert position > 12 * batch_size
    assert (times_read == 1).all()
    assert samples.ravel().tolist() == stream[: n * LENGTH]


def test_heldout_samples_are_read_once_by_all_ranks_together(directory: Path) -> None:
    dataset = TokenDataset.open(directory, "heldout", LENGTH)
    labels = [
        int((dataset.batch(indices).labels != -100).sum())
        for rank in range(3)
        for indices in heldout_batches(10**6, 2, rank, 3, len(dataset))
    ]
    assert sum(labels) == int((dataset.batch(np.arange(len(dataset))).labels != -100).sum())
