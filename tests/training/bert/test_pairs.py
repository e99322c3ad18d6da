"""Sentence pairs: whole sentences in order, half of the second ones from elsewhere, exact on resume."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.training.bert.conftest import LENGTH, VOCABULARY
from training.data.bert.batch import NO_LABEL, Sample
from training.data.bert.masking import Rules
from training.data.bert.pairs import FRAME, SentencePairs, cut_to, runs_of
from training.data.bert.prepare_pairs import prepare_pairs
from training.data.bert.sentences import sentences_of
from training.data.bert.wordpiece import read_vocabulary
from training.data.errors import DataError
from training.data.index import read_index, verify

Open = Callable[..., SentencePairs]


@pytest.fixture(scope="session")
def pairs(dataset: Path) -> Open:
    """Open the training split: `pairs(seed=7, most=6)`."""

    def opened(seed: int = 7, split: str = "train", length: int = LENGTH) -> SentencePairs:
        vocabulary = read_vocabulary(dataset / "tokenizer")
        return SentencePairs(dataset, read_index(dataset), split, length, Rules(0.15, 6, False), vocabulary, seed)

    return opened


@pytest.fixture(scope="session")
def text_of(dataset: Path) -> Callable[[Sample], tuple[str, str]]:
    """A sample's two sentences as text, unmasked."""
    tokenizer = Tokenizer.from_file(str(dataset / "tokenizer/tokenizer.json"))

    def parts(sample: Sample) -> tuple[str, str]:
        tokens = np.array(sample.tokens)
        tokens[sample.positions] = sample.labels
        first, second = tokens[1 : sample.second - 1], tokens[sample.second : -1]
        return tokenizer.decode(first.tolist()), tokenizer.decode(second.tolist())

    return parts


def test_a_sentence_ends_with_its_line_or_at_a_mark_before_a_capital() -> None:
    text = 'One. Two! "Three?" Four is 3.5 m long.\n\n  five, e. g. six\nSeven'
    found = list(sentences_of(text))
    assert found == ["One.", "Two!", '"Three?"', "Four is 3.5 m long.", "five, e. g. six", "Seven"]


@pytest.mark.parametrize(
    ("lengths", "room", "runs"),
    [
        ([5, 5, 5, 5], 10, [(0, 2), (2, 4)]),
        ([5, 5, 5, 5, 5], 10, [(0, 2), (2, 4), (3, 5)]),  # a single last sentence reuses its neighbour
        ([12, 1, 1], 10, [(0, 2), (1, 3)]),  # never a single sentence
        ([3, 3, 3, 3], 10, [(0, 4)]),
        ([7], 10, []),
        ([], 10, []),
    ],
)
def test_runs_fill_a_sequence_and_have_two_sentences(
    lengths: list[int], room: int, runs: list[tuple[int, int]]
) -> None:
    assert runs_of(lengths, room) == runs


@pytest.mark.parametrize(("first", "second"), [(50, 5), (5, 50), (30, 30), (31, 30), (1, 200), (3, 4)])
def test_the_longer_sentence_is_shortened(first: int, second: int) -> None:
    draw = np.random.default_rng(0)
    fronts = []
    for _ in range(50):
        one, two = cut_to(first, second, 20, draw)
        kept = (one.stop - one.start, two.stop - two.start)
        assert sum(kept) == min(20, first + second)
        assert min(kept) == min(first, second, 10)
        fronts.append(one.start + two.start)
    if first + second > 24:
        assert 0 < np.mean(fronts) < first + second - 20  # both ends lose tokens


def test_a_pair_is_one_documents_order_or_another_document(
    pairs: Open, text_of: Callable[[Sample], tuple[str, str]]
) -> None:
    """Sentences contain their document and number: the second part follows the first or is from elsewhere."""
    split = pairs()
    seen = {0: 0, 1: 0}
    for index in range(len(split)):
        sample = split.sample(index, 0)
        first, second = text_of(sample)
        marks = [re.findall(r"q(\d+)x(\d+)q", part) for part in (first, second)]
        if not all(marks):
            continue  # cut sentences may have lost theirs
        (document, last), (other, begin) = marks[0][-1], marks[1][0]
        seen[sample.random_next] += 1
        if sample.random_next:
            assert other != document
        else:
            assert other == document
            assert int(begin) >= int(last)
        for part in marks:
            assert len({d for d, _ in part}) == 1
            assert [int(n) for _, n in part] == sorted({int(n) for _, n in part})
    assert min(seen.values()) > 20


def test_half_of_the_second_sentences_come_from_elsewhere(pairs: Open) -> None:
    """4,000 draws: 50 % within four deviations of 0.8 %."""
    split = pairs()
    drawn = [split.sample(i % len(split), i // len(split)).random_next for i in range(4000)]
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.032)


def test_random_sentences_come_from_all_documents(pairs: Open, text_of: Callable[[Sample], tuple[str, str]]) -> None:
    split = pairs()
    found = set()
    for i in range(2000):
        sample = split.sample(i % len(split), i // len(split))
        if sample.random_next:
            found |= {document for document, _ in re.findall(r"q(\d+)x(\d+)q", text_of(sample)[1])}
    documents = read_index(split.directory).splits["train"].documents
    assert len(found) > 0.9 * documents  # also those of one sentence, which have no pair themselves


def test_a_sample_is_a_function_of_seed_epoch_and_index(pairs: Open) -> None:
    split, again, other = pairs(), pairs(), pairs(seed=8)
    order = np.random.default_rng(1).permutation(len(split))[:20]
    batch = split.batch(order, np.zeros(20)).arrays()
    backwards = again.batch(order[::-1], np.zeros(20)).arrays()
    assert all(np.array_equal(batch[name], backwards[name][::-1]) for name in batch)
    for changed in (split.batch(order, np.ones(20)), other.batch(order, np.zeros(20))):
        same = (changed.arrays()["input_ids"] == batch["input_ids"]).all(axis=1)
        assert same.sum() <= 1


def test_arrays_have_the_models_shapes_and_meaning(pairs: Open) -> None:
    split = pairs()
    vocabulary = read_vocabulary(split.directory / "tokenizer")
    batch = split.batch(np.arange(40), np.zeros(40))
    arrays = batch.arrays()
    assert {name: array.dtype for name, array in arrays.items()} == dict.fromkeys(arrays, np.dtype("int64"))
    ids, types, mask = arrays["input_ids"], arrays["token_type_ids"], arrays["attention_mask"]
    assert ids.shape == types.shape == mask.shape == (40, LENGTH)
    assert arrays["masked_positions"].shape == arrays["masked_labels"].shape == (40, 6)
    assert (ids[:, 0] == vocabulary.cls).all()
    assert ((ids == vocabulary.sep).sum(axis=1) == 2).all()
    assert ((ids == vocabulary.pad) == (mask == 0)).all()
    for row in range(40):
        length = mask[row].sum()
        assert (mask[row, :length] == 1).all()
        second = np.flatnonzero(ids[row] == vocabulary.sep)[0] + 1
        assert types[row].tolist() == [0] * second + [1] * (length - second) + [0] * (LENGTH - length)
        assert ids[row, length - 1] == vocabulary.sep
    assert mask.sum() < mask.size  # there is padding in this corpus
    assert batch.tokens() == mask.sum()
    assert batch.counts() == ((arrays["masked_labels"] != NO_LABEL).sum(), 40)


def test_a_padding_row_counts_nothing(pairs: Open) -> None:
    batch = pairs().batch(np.array([3, -1]), np.zeros(2))
    alone = pairs().batch(np.array([3]), np.zeros(1))
    assert batch.counts() == alone.counts()
    assert batch.tokens() == alone.tokens()
    arrays = batch.arrays()
    assert (arrays["masked_labels"][1] == NO_LABEL).all()
    assert arrays["next_sentence_label"].tolist()[1] == NO_LABEL
    assert arrays["attention_mask"][1].any()  # attention over nothing would not be a number


def test_preparing_twice_gives_the_same_bytes_and_verifies(corpus: Path, dataset: Path, tmp_path: Path) -> None:
    """Once in this process, once in two others."""
    lines: list[str] = []
    again = prepare_pairs(str(corpus), "text", 0.1, "train", VOCABULARY, LENGTH, tmp_path, lines.append, workers=2)
    assert again.name == dataset.name
    names = [p.relative_to(dataset) for p in sorted(dataset.rglob("*")) if p.is_file()]
    assert [(again / n).read_bytes() for n in names] == [(dataset / n).read_bytes() for n in names]
    index = verify(again)
    assert index.settings["sequence_length"] == LENGTH
    assert any("samples of 32" in line for line in lines)
    lines.clear()
    assert prepare_pairs(str(corpus), "text", 0.1, "train", VOCABULARY, LENGTH, tmp_path, lines.append) == again
    assert lines == []
    other = prepare_pairs(str(corpus), "text", 0.1, "train", VOCABULARY, 64, tmp_path, lines.append)
    assert other != again


def test_every_token_stays_in_its_order(corpus: Path, dataset: Path) -> None:
    """The stream of a document decodes to its sentences; long ones are cut so that any two fit."""
    split = SentencePairs(
        dataset,
        read_index(dataset),
        "train",
        LENGTH,
        Rules(0.15, 6, False),
        read_vocabulary(dataset / "tokenizer"),
        0,
    )
    starts = np.fromfile(dataset / "train-sentences.bin", "<u8")
    assert np.diff(starts.astype(int)).min() > 0
    assert np.diff(starts.astype(int)).max() <= (LENGTH - FRAME) // 2
    assert starts[-1] == split.tokens
    tokenizer = Tokenizer.from_file(str(dataset / "tokenizer/tokenizer.json"))
    stream = np.fromfile(dataset / "train-00000.bin", read_index(dataset).dtype)
    heldout = np.fromfile(dataset / "heldout-00000.bin", read_index(dataset).dtype)
    written = sum(
        len(tokenizer.encode(path.read_text(), add_special_tokens=False).ids) for path in corpus.glob("*.txt")
    )
    assert len(stream) + len(heldout) == written


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        (["Only one. Of it."] * 1, "at least two are needed"),
        (["One sentence alone", "Another one", "A third"], "pairs of sentences"),
    ],
)
def test_too_little_text_is_one_error(documents: list[str], said: str, tmp_path: Path) -> None:
    source = tmp_path / "few"
    source.mkdir()
    for number, text in enumerate(documents):
        (source / f"{number}.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        prepare_pairs(str(source), "text", 0.4, "train", 200, LENGTH, tmp_path / "data", lambda line: None)
    assert not list((tmp_path / "data").iterdir())
