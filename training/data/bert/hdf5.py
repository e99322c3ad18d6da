"""Samples that are already masked: the HDF5 shards of NVIDIA's and AWS's BERT recipes.

The format is that of `create_pretraining_data.py` in NVIDIA/DeepLearningExamples (PyTorch's BERT), which
`dp_bert_large_hf_pretrain_hdf5.py` in aws-neuron-samples also reads: one row per sample, with the keys below.

Rows are compressed together in a shard, so reading one costs as much as reading thousands. They are therefore
copied once into a dataset of flat files with random access, about half a kilobyte per sample of 128 tokens.
`-places.bin` holds 16-bit numbers: the start of the second sentence, whether it is random, the number of
masked tokens, their positions. `-guessed.bin` holds the masked tokens.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from training.data import token_shards
from training.data import tokenizer as tokenizers_
from training.data.bert.batch import PairBatch, Sample, collate
from training.data.bert.files import FlatWriter, read_flat
from training.data.errors import DataError, nearest
from training.data.index import (
    FORMAT,
    HELDOUT,
    INDEX,
    TOKENIZER,
    TRAIN,
    FileEntry,
    Index,
)
from training.data.mapped_split import MappedSplit
from training.data.prepare_tokens import directory_name, entropy, made_once, refuse_inside
from training.data.reporter import Reporter
from training.data.sources import STDLIB, Source, SourceFile, open_source
from training.data.staging import commit, staging
from training.data.token_shards import SplitWriter

KIND = "masked samples"
KEYS = (
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels",
)  # fmt: skip
_SUFFIXES = (".hdf5", ".h5")
_TEST = re.compile(r"(^|[._-])test([._-]|$)")
_ROWS = 8192
_HEAD = 3  # numbers before the positions in a row of -places.bin
_Numbers = npt.NDArray[np.int64]


def shards_in(source: str, text_field: str) -> Source | None:
    """Return the HDF5 files of a `data.source` as a source, or None if it has none."""
    if source == STDLIB:
        return None
    found = open_source(source, text_field)
    files = tuple(file for file in found.files if file.path.name.lower().endswith(_SUFFIXES))
    if any(not isinstance(file.path, Path) for file in files):
        raise DataError(f"data source {source}: HDF5 shards are read from a local disk; download them first")
    return Source(found.name, files, text_field) if files else None


def prepare(
    source: Source,
    path: str,
    heldout_fraction: float,
    tokenizer: str,
    vocab_size: int,
    sequence_length: int,
    most: int,
    root: Path,
    progress: Callable[[str], None],
    shared: Path | None = None,
) -> Path:
    """Return the dataset directory for these shards and settings: that under `shared` if it is there, else
    that under `root`, which is created if it is missing.

    Files with "test" in their names are held out, as in NVIDIA's and AWS's shards. Without such files, a
    fraction of the files but at least one is held out, or the last rows of a single file. `tokenizer` is
    copied to the dataset unless it is "train": these samples need none. Raises DataError with the file, the
    row and the reason.
    """
    given = None if tokenizer == "train" else tokenizers_.given_files(tokenizer)
    if given is not None:
        tokenizers_.load(tokenizer, given, vocab_size)
    settings = {
        "kind": KIND,
        "source": source.name,
        "heldout_fraction": heldout_fraction,
        "tokenizer": "none" if given is None else tokenizers_.fingerprint(given),
        "vocab_size": vocab_size,
        "sequence_length": sequence_length,
        "most": most,
    }
    target = root / directory_name(source, settings)
    refuse_inside(path, root)
    return made_once(target, lambda: _make(source, settings, given or {}, target, Reporter(progress)), shared)


def _make(
    source: Source, settings: dict[str, Any], tokenizer: dict[str, bytes], target: Path, reporter: Reporter
) -> None:
    begun = time.monotonic()
    with staging(target.parent, target.name) as directory:
        reporter.say(f"reading {source.describe()}")
        summary = _write(source, settings, tokenizer, directory, reporter)
        if not commit(directory, target):
            summary = "another process finished the same dataset first; using its result"
    reporter.say(f"{target.name}: {summary}; {time.monotonic() - begun:.1f} s")


def _write(
    source: Source, settings: dict[str, Any], tokenizer: dict[str, bytes], directory: Path, reporter: Reporter
) -> str:
    """Write the dataset into `directory`, the index last; return a summary in words."""
    dtype = token_shards.token_dtype(settings["vocab_size"])
    writers = {name: _RowWriter(directory, name, dtype, settings) for name in (TRAIN, HELDOUT)}
    done = 0

    def text() -> str:
        rows = writers[TRAIN].rows + writers[HELDOUT].rows
        return f"copied {rows:,} samples, {done / 2**20:,.0f} of {source.size / 2**20:,.0f} MiB"

    with writers[TRAIN], writers[HELDOUT]:
        for split, file, first, stop in _parts(source.files, settings["heldout_fraction"]):
            for rows in _rows_of(Path(str(file.path)), first, stop, settings):
                writers[split].append(rows)
                reporter.tick(text)
            done += file.size
        for split, writer in writers.items():
            if not writer.rows:
                raise DataError(f"data source {source.name}: no samples in the split '{split}'")
        files = {name: entry for writer in writers.values() for name, entry in writer.finish().items()}
    if tokenizer:
        (directory / TOKENIZER).mkdir()
    for name, data in tokenizer.items():
        (directory / TOKENIZER / name).write_bytes(data)
        files[f"{TOKENIZER}/{name}"] = token_shards.entry_of(directory / TOKENIZER / name)
    index = Index(
        format=FORMAT,
        settings=settings,
        source={},
        vocabulary=settings["vocab_size"],
        bos=writers[TRAIN].frame[0],
        eos=writers[TRAIN].frame[1],
        dtype=dtype,
        unigram_nats=entropy(writers[HELDOUT].guessed),
        splits={name: writer.split for name, writer in writers.items()},
        files=files,
    )
    (directory / INDEX).write_text(index.to_json())
    return (
        f"{writers[TRAIN].rows + writers[HELDOUT].rows:,} samples, {writers[HELDOUT].rows:,} held out, "
        "masked as in the files"
    )


def _parts(files: tuple[SourceFile, ...], heldout_fraction: float) -> Iterator[tuple[str, SourceFile, int, int | None]]:
    """Yield (split, file, first row, row to stop before) in the files' order."""
    heldout = {file.name for file in files if _TEST.search(Path(file.name).name.lower())}
    if len(files) == 1:
        rows = _count(Path(str(files[0].path)))
        border = rows - max(1, round(rows * heldout_fraction))
        yield TRAIN, files[0], 0, border
        yield HELDOUT, files[0], border, None
        return
    if not heldout:
        by_hash = sorted(files, key=lambda file: hashlib.sha256(file.name.encode()).digest())
        count = min(max(1, round(len(files) * heldout_fraction)), len(files) - 1)
        heldout = {file.name for file in by_hash[:count]}
    for file in files:
        yield HELDOUT if file.name in heldout else TRAIN, file, 0, None


def _count(path: Path) -> int:
    with _opened(path) as file:
        return int(file[KEYS[0]].shape[0])


@dataclass(frozen=True)
class _Rows:
    """Some rows of a shard, checked: ids, positions and guessed are [rows, width], the others [rows]."""

    ids: _Numbers
    lengths: _Numbers
    seconds: _Numbers
    random_next: _Numbers
    counts: _Numbers
    positions: _Numbers
    guessed: _Numbers


class _opened:
    """An open shard with all keys, closed at the end. Raises DataError if h5py cannot read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise DataError(f"{path}: cannot be read as HDF5 ({str(error).partition(chr(10))[0]})") from None

    def __enter__(self) -> h5py.File:
        for key in KEYS:
            if not isinstance(self._file.get(key), h5py.Dataset):
                known = list(self._file)
                self._file.close()
                shown = ", ".join(known[:8]) or "none"
                raise DataError(f"{self._path}: no data set '{key}' (found: {shown}){nearest(key, known)}")
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _rows_of(path: Path, first: int, stop: int | None, settings: dict[str, Any]) -> Iterator[_Rows]:
    with _opened(path) as file:
        rows = _check_shapes(path, file, settings["sequence_length"], settings["most"])
        for start in range(first, rows if stop is None else stop, _ROWS):
            end = min(start + _ROWS, rows if stop is None else stop)
            try:
                values = [np.asarray(file[key][start:end], dtype=np.int64) for key in KEYS]
            except OSError as error:
                text = str(error).partition("\n")[0]
                raise DataError(f"{path}, rows {start} to {end - 1}: damaged HDF5 data ({text})") from None
            yield _checked(path, start, settings, *values)


def _check_shapes(path: Path, file: h5py.File, sequence_length: int, most: int) -> int:
    """Check the shapes of a shard against the configuration; return its number of rows."""
    rows = int(file[KEYS[0]].shape[0]) if file[KEYS[0]].ndim else 0
    for key in KEYS:
        found = file[key]
        if found.dtype.kind not in "iu":
            raise DataError(f"{path}: '{key}' holds {found.dtype}, not integers")
        if not found.ndim or found.shape[0] != rows:
            raise DataError(f"{path}: '{key}' has the shape {found.shape}, '{KEYS[0]}' {file[KEYS[0]].shape}")
    widths = {key: file[key].shape[1:] for key in KEYS[:5]}
    for key in KEYS[:3]:
        if widths[key] != (sequence_length,):
            said = " x ".join(map(str, widths[key])) or "1"
            raise DataError(f"{path}: samples of {said} tokens in '{key}', sequence_length is {sequence_length}")
    if widths[KEYS[3]] != widths[KEYS[4]] or len(widths[KEYS[3]]) != 1:
        raise DataError(f"{path}: '{KEYS[3]}' is {widths[KEYS[3]]} wide, '{KEYS[4]}' {widths[KEYS[4]]}")
    if widths[KEYS[3]][0] > most:
        raise DataError(
            f"{path}: up to {widths[KEYS[3]][0]} masked tokens per sample, masking.most is {most}; "
            f"nearest value: {widths[KEYS[3]][0]}"
        )
    return rows


def _checked(path: Path, start: int, settings: dict[str, Any], *values: _Numbers) -> _Rows:
    """Check that the parts of each row fit together; DataError names the first wrong row."""
    ids, mask, segments, positions, guessed, following = values
    vocabulary = settings["vocab_size"]
    following = following.reshape(len(ids), -1)[:, 0]
    lengths = mask.sum(axis=1)
    places = np.arange(ids.shape[1])
    filled = places < lengths[:, None]
    second = (segments == 1) & filled
    seconds = np.where(second.any(axis=1), second.argmax(axis=1), lengths)
    counts = np.where((positions == 0).any(axis=1), (positions == 0).argmax(axis=1), positions.shape[1])
    used = np.arange(positions.shape[1]) < counts[:, None]
    wrong = {
        f"a token is not in [0, {vocabulary}), model.vocab_size": ((ids < 0) | (ids >= vocabulary)) & filled,
        "input_mask is not ones and then zeros": mask != filled,
        "segment_ids are not zeros and then ones": filled & (segments != (places >= seconds[:, None])),
        "a masked position is outside the sample": used & ((positions < 0) | (positions >= lengths[:, None])),
        f"a masked token is not in [0, {vocabulary}), model.vocab_size": used
        & ((guessed < 0) | (guessed >= vocabulary)),
        "next_sentence_labels is neither 0 nor 1": ((following != 0) & (following != 1))[:, None],
        "there is no token": (lengths == 0)[:, None],
    }
    for said, bad in wrong.items():
        if bad.any():
            raise DataError(f"{path}, row {start + int(bad.any(axis=1).argmax())}: {said}")
    return _Rows(ids, lengths, seconds, following, counts, positions * used, guessed * used)


class _RowWriter:
    """Appends rows to a split: tokens to its shards, the rest to flat files. Raises OSError."""

    def __init__(self, directory: Path, split: str, dtype: str, settings: dict[str, Any]) -> None:
        self._most = settings["most"]
        self._tokens = SplitWriter(directory, split, dtype, settings["vocab_size"])
        self._places = FlatWriter(directory / places_file(split), "<u2")
        self._guessed = FlatWriter(directory / guessed_file(split), dtype)
        self.guessed: npt.NDArray[np.int64] = np.zeros(settings["vocab_size"], dtype=np.int64)
        self.frame = (0, 0)  # the tokens that the first row begins and ends with
        self.rows = 0

    def __enter__(self) -> _RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.__exit__()
        self._places.close()
        self._guessed.close()

    def append(self, rows: _Rows) -> None:
        if not len(rows.ids):
            return
        if not self.rows:
            self.frame = (int(rows.ids[0, 0]), int(rows.ids[0, rows.lengths[0] - 1]))
        filled = np.arange(rows.ids.shape[1]) < rows.lengths[:, None]
        self._tokens.append(rows.lengths.tolist(), rows.ids[filled], 0)
        spare = ((0, 0), (0, self._most - rows.positions.shape[1]))
        head = np.stack([rows.seconds, rows.random_next, rows.counts], axis=1)
        self._places.append(np.concatenate([head, np.pad(rows.positions, spare)], axis=1))
        self._guessed.append(np.pad(rows.guessed, spare))
        used = np.arange(rows.guessed.shape[1]) < rows.counts[:, None]
        self.guessed += np.bincount(rows.guessed[used], minlength=len(self.guessed))
        self.rows += len(rows.ids)

    def finish(self) -> dict[str, FileEntry]:
        """Close the files; return their entries."""
        self.split = self._tokens.finish()
        own = {writer.name: writer.entry() for writer in (self._places, self._guessed)}
        return {**self._tokens.files, **own}


def places_file(split: str) -> str:
    return f"{split}-places.bin"


def guessed_file(split: str) -> str:
    return f"{split}-guessed.bin"


class MaskedRows(MappedSplit):
    """One split of a dataset of masked samples; a sample is the same in every epoch."""

    def __init__(self, directory: Path, index: Index, split: str) -> None:
        super().__init__(directory, index, split)
        self._length, self._most = index.settings["sequence_length"], index.settings["most"]
        self._starts = np.load(directory / self._split.starts, mmap_mode="r")
        self._places = read_flat(directory / places_file(split), "<u2", _HEAD + self._most)
        self._guessed = read_flat(directory / guessed_file(split), index.dtype, self._most)

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indices: npt.ArrayLike, _epochs: npt.ArrayLike) -> PairBatch:
        """Read the samples of these indices, [samples]; PADDING gives a row without labels."""
        chosen = np.asarray(indices, dtype=np.int64)
        samples = [self.sample(max(index, 0)) for index in chosen.tolist()]
        return collate(samples, chosen >= 0, self._length, self._most, 0)

    def sample(self, index: int) -> Sample:
        """One sample as in its HDF5 file."""
        start = int(self._starts[index])
        stop = int(self._starts[index + 1]) if index + 1 < len(self) else self._split.tokens
        second, random_next, count = map(int, self._places[index, :_HEAD])
        positions, labels = self._places[index, _HEAD : _HEAD + count], self._guessed[index, :count]
        return Sample(self._shards.read(start, stop - start), second, positions, labels, random_next)
