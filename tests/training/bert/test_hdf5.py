"""The recipes' HDF5 shards: read like NVIDIA's loader does; a bad shard is one error with its row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.training import inprocess
from tests.training.bert.conftest import LENGTH, VOCABULARY
from tests.training.inprocess import StopAfter, Texts, losses, same, tensors
from training.bert import TASK
from training.config import Config, apply_override, load_texts
from training.data.bert.batch import NO_LABEL
from training.data.bert.hdf5 import KEYS, MaskedRows
from training.data.errors import DataError
from training.data.index import read_index, verify
from training.data.inspection import inspect
from training.prepare.bert import prepare_for, splits_of

CLS, SEP, MASK = 2, 3, 4
TYPES = ("i4", "i1", "i1", "i4", "i4", "i1")


def rows(count: int, seed: int, most: int = 6) -> dict[str, np.ndarray]:
    """Samples in the published layout: padded with zeros, masked positions ascending, then zeros."""
    draw = np.random.default_rng(seed)
    made = {
        key: np.zeros((count, width), np.int64) for key, width in zip(KEYS, [LENGTH] * 3 + [most] * 2, strict=False)
    }
    made["next_sentence_labels"] = draw.integers(0, 2, count)
    for row in range(count):
        length = int(draw.integers(12, LENGTH + 1))
        second = int(draw.integers(3, length - 2))
        ids = draw.integers(5, VOCABULARY, length)
        ids[[0, second - 1, length - 1]] = [CLS, SEP, SEP]
        able = np.setdiff1d(np.arange(length), [0, second - 1, length - 1])
        positions = np.sort(draw.permutation(able)[: int(draw.integers(1, most + 1))])
        made["masked_lm_positions"][row, : len(positions)] = positions
        made["masked_lm_ids"][row, : len(positions)] = ids[positions]
        ids[positions] = MASK
        made["input_ids"][row, :length] = ids
        made["input_mask"][row, :length] = 1
        made["segment_ids"][row, second:length] = 1
    return made


def write(path: Path, values: dict[str, np.ndarray]) -> None:
    """Write them as `create_pretraining_data.py` does."""
    with h5py.File(path, "w") as file:
        for key, kind in zip(KEYS, TYPES, strict=True):
            if key in values:
                file.create_dataset(key, data=values[key], dtype=kind, compression="gzip")


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards of unequal size, one of them a test shard, and a file that is not a shard."""
    directory = tmp_path_factory.mktemp("hdf5")
    for number, count in enumerate((37, 5, 60, 21)):
        write(directory / f"wikicorpus_en_training_{number}.hdf5", rows(count, number))
    write(directory / "wikicorpus_en_test_0.hdf5", rows(30, 9))
    (directory / "README.txt").write_text("not a shard")
    return directory


@pytest.fixture(scope="session")
def masked(texts: Texts, shards: Path) -> Texts:
    """The tiny configuration on these shards."""
    return apply_override(texts, f"data.source={shards}")


def published_item(values: dict[str, np.ndarray], row: int) -> tuple[np.ndarray, ...]:
    """A row as both recipes' `pretraining_dataset` returns it: ids, segments, mask, labels, next."""
    ids, mask, segments, positions, guessed, following = (values[key][row] for key in KEYS)
    labels = np.full(len(ids), NO_LABEL)
    used = len(positions)
    padded = np.flatnonzero(positions == 0)
    if len(padded):
        used = padded[0]
    labels[positions[:used]] = guessed[:used]
    return ids, segments, mask, labels, following


def test_every_row_is_what_the_published_loader_reads(masked: Texts, data_root: Path, shards: Path) -> None:
    config = load_texts(masked)
    directory = prepare_for(config, data_root, lambda line: None)
    train, heldout = splits_of(config, directory)
    assert (len(train), len(heldout)) == (123, 30)
    files = sorted(shards.glob("*training*.hdf5"))
    values = {key: np.concatenate([h5py.File(file)[key][:] for file in files]) for key in KEYS}
    order = np.random.default_rng(3).permutation(123)
    arrays = train.batch(order, np.zeros(123)).arrays()
    for place, row in enumerate(order.tolist()):
        ids, segments, mask, labels, following = published_item(values, row)
        assert np.array_equal(arrays["input_ids"][place], ids)
        assert np.array_equal(arrays["token_type_ids"][place], segments)
        assert np.array_equal(arrays["attention_mask"][place], mask)
        ours = np.full(LENGTH, NO_LABEL)
        known = arrays["masked_labels"][place] != NO_LABEL
        ours[arrays["masked_positions"][place][known]] = arrays["masked_labels"][place][known]
        assert np.array_equal(ours, labels)
        assert arrays["next_sentence_label"][place] == following
    assert verify(directory).splits["train"].documents == 123
    seen = inspect(directory).splits["train"]
    filled = int(np.concatenate([h5py.File(file)["input_mask"][:] for file in files]).sum())
    assert seen.samples == 123
    assert seen.waste == pytest.approx(1 - filled / (123 * LENGTH))


def test_files_without_a_test_shard_give_whole_files(texts: Texts, tmp_path: Path) -> None:
    """No row of a held-out file is trained on; for a single file the last rows are held out."""
    many = tmp_path / "many"
    many.mkdir()
    for number in range(6):
        write(many / f"shard{number}.h5", rows(10 + number, number))
    write(tmp_path / "one.hdf5", rows(40, 1))
    for source, counts in ((many, None), (tmp_path / "one.hdf5", (36, 4))):
        config = load_texts(apply_override(texts, f"data.source={source}"))
        train, heldout = splits_of(config, prepare_for(config, tmp_path / "data", lambda line: None))
        if counts is None:
            assert len(heldout) in range(10, 16)
            assert len(train) + len(heldout) == 75
        else:
            assert (len(train), len(heldout)) == counts


def test_training_on_shards_resumes_bitwise(masked: Texts, data_root: Path, tmp_path: Path) -> None:
    overrides = ("train.steps=10", "checkpoint.every=5")
    whole = inprocess.run(masked, overrides, tmp_path / "whole", data_root, None, TASK)
    inprocess.run(masked, overrides, tmp_path / "stopped", data_root, StopAfter(4), TASK)
    resumed = inprocess.run(masked, overrides, tmp_path / "stopped", data_root, None, TASK)
    assert losses(resumed) == losses(whole)
    assert same(tensors(resumed), tensors(whole))
    report = json.loads(resumed.report.read_text())
    assert report["heldout_loss"] < report["ln_vocab_and_ln_2"] + 0.5


def broken(change: Callable[[dict[str, np.ndarray]], Any]) -> dict[str, np.ndarray]:
    values = rows(20, 0)
    change(values)
    return values


def put(key: str, place: tuple[int, ...], value: int) -> Callable[[dict[str, np.ndarray]], None]:
    def change(values: dict[str, np.ndarray]) -> None:
        values[key][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.pop("input_mask"), r"no data set 'input_mask' \(found: input_ids, "),
        (lambda v: v.update(segment_ids=v["segment_ids"][:7]), r"'segment_ids' has the shape \(7, 32\)"),
        (
            lambda v: v.update({k: v[k][:, :16] for k in KEYS[:3]}),
            r"samples of 16 tokens .* sequence_length is 32",
        ),
        (
            lambda v: v.update(rows(20, 0, most=9)),
            r"up to 9 masked tokens per sample, masking\.most is 6; nearest value: 9",
        ),
        (put("input_ids", (11, 4), 512), r"row 11: a token is not in \[0, 512\)"),
        (put("input_mask", (3, 2), 0), r"row 3: input_mask is not ones and then zeros"),
        (put("segment_ids", (5, 0), 1), r"row 5: segment_ids are not zeros and then ones"),
        (put("masked_lm_positions", (8, 0), 32), r"row 8: a masked position is outside the sample"),
        (put("masked_lm_ids", (2, 0), -1), r"row 2: a masked token is not in \[0, 512\)"),
        (put("next_sentence_labels", (19,), 3), r"row 19: next_sentence_labels is neither 0 nor 1"),
    ],
)
def test_a_bad_shard_is_one_error(
    change: Callable[[dict[str, np.ndarray]], Any], said: str, texts: Texts, tmp_path: Path
) -> None:
    """Among good shards; the error names the file, and no dataset is left."""
    source = tmp_path / "shards"
    source.mkdir()
    write(source / "a_training_0.hdf5", rows(10, 0))
    write(source / "b_training_1.hdf5", broken(change))
    config = load_texts(apply_override(texts, f"data.source={source}"))
    with pytest.raises(DataError, match=rf"b_training_1\.hdf5.*{said}"):
        prepare_for(config, tmp_path / "data", lambda line: None)
    assert not list((tmp_path / "data").iterdir())


def test_damaged_bytes_are_one_error(texts: Texts, tmp_path: Path) -> None:
    source = tmp_path / "shards"
    source.mkdir()
    write(source / "a.hdf5", rows(2000, 0))
    write(source / "b.hdf5", rows(10, 0))
    whole = (source / "a.hdf5").read_bytes()
    config = load_texts(apply_override(texts, f"data.source={source}"))
    for damage in (b"not HDF5 at all", whole[:3000], whole[:30000] + bytes(20000) + whole[50000:]):
        (source / "a.hdf5").write_bytes(damage)
        with pytest.raises(DataError, match=r"a\.hdf5.*HDF5"):
            prepare_for(config, tmp_path / "data", lambda line: None)


def test_shards_of_other_settings_are_another_dataset(masked: Texts, data_root: Path) -> None:
    config: Config = load_texts(masked)
    first = prepare_for(config, data_root, lambda line: None)
    lines: list[str] = []
    assert prepare_for(config, data_root, lines.append) == first
    assert lines == []
    other = prepare_for(load_texts(apply_override(masked, "masking.most=8")), data_root, lines.append)
    assert other != first
    index = read_index(other)
    assert MaskedRows(other, index, "train").batch([0], [0]).arrays()["masked_positions"].shape == (1, 8)
