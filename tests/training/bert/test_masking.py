"""Masks: 80/10/10 by count, whole words by example and by count, at most `most`, the same for a seed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from training.data.bert.masking import Rules, mask
from training.data.bert.wordpiece import Vocabulary

# [PAD] [UNK] [CLS] [SEP] [MASK], words 5..104, pieces that continue a word 105..204.
INSIDE = np.arange(205) >= 105
ORDINARY = ~np.isin(np.arange(205), [0, 2, 3, 4])
WORDS = Vocabulary(0, 2, 3, 4, INSIDE, ORDINARY, np.arange(5, 205))
Ids = npt.NDArray[np.int64]


def sample(length: int = 64, seed: int = 0) -> Ids:
    """[CLS] first [SEP] second [SEP] of random words and pieces; a sentence begins with a word."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(5, 205, length)
    middle = length // 2
    tokens[[1, middle + 1]] = 5
    tokens[[0, middle, length - 1]] = [2, 3, 3]
    return tokens


def masked(tokens: Ids, rules: Rules, seed: int) -> tuple[Ids, Ids, Ids]:
    """The changed copy, the positions and the original tokens there."""
    changed = tokens.copy()
    positions, labels = mask(changed, rules, WORDS, np.random.default_rng(seed))
    return changed, positions, labels


@pytest.mark.parametrize("whole_words", [False, True])
def test_chosen_tokens_are_labelled_and_nothing_else_changes(whole_words: bool) -> None:
    tokens = sample()
    for seed in range(50):
        changed, positions, labels = masked(tokens, Rules(0.15, 20, whole_words), seed)
        assert np.array_equal(labels, tokens[positions])
        rest = np.setdiff1d(np.arange(len(tokens)), positions)
        assert np.array_equal(changed[rest], tokens[rest])
        assert (np.diff(positions) > 0).all()
        assert not np.isin(labels, [0, 2, 3, 4]).any()


def test_of_the_chosen_80_become_mask_10_a_random_word_10_stay() -> None:
    """About 40,000 tokens: each share within four deviations. A random piece is the old one 1 time in 200."""
    tokens = sample(128)
    outcome = {"mask": 0, "same": 0, "other": 0}
    others = []
    for seed in range(2100):
        changed, positions, labels = masked(tokens, Rules(0.15, 20, False), seed)
        now = changed[positions]
        outcome["mask"] += int((now == WORDS.mask).sum())
        outcome["same"] += int((now == labels).sum())
        others += now[(now != WORDS.mask) & (now != labels)].tolist()
    total = outcome["mask"] + outcome["same"] + len(others)
    assert total == 2100 * 19  # 15 % of 128, rounded
    assert outcome["mask"] / total == pytest.approx(0.8, abs=0.008)
    assert outcome["same"] / total == pytest.approx(0.1 + 0.1 / 200, abs=0.006)
    assert len(others) / total == pytest.approx(0.1 - 0.1 / 200, abs=0.006)
    assert set(others) == set(range(5, 205))  # every ordinary token, no special one


def test_every_position_is_chosen_equally_often() -> None:
    tokens = sample(64)
    chosen = np.zeros(64)
    for seed in range(3000):
        chosen[masked(tokens, Rules(0.15, 20, False), seed)[1]] += 1
    able = chosen[chosen > 0]
    assert len(able) == 61  # all but [CLS] and twice [SEP]
    share = 10 / 61
    assert np.abs(able / 3000 - share).max() < 4.5 * np.sqrt(share * (1 - share) / 3000)


@pytest.mark.parametrize(
    ("length", "fraction", "most", "expected"), [(128, 0.15, 20, 19), (128, 0.5, 20, 20), (8, 0.01, 20, 1)]
)
def test_the_share_is_of_the_whole_sample_and_has_a_ceiling(
    length: int, fraction: float, most: int, expected: int
) -> None:
    assert len(masked(sample(length), Rules(fraction, most, False), 1)[1]) == expected


def words_of(tokens: Ids) -> list[list[int]]:
    """Positions of each word with its pieces."""
    words: list[list[int]] = []
    for position, token in enumerate(tokens.tolist()):
        if token in (2, 3):
            continue
        if INSIDE[token] and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def test_whole_words_are_chosen_whole() -> None:
    """All pieces of a word are chosen or none; without whole_words they are not (control)."""
    tokens = sample(128, seed=3)
    words = words_of(tokens)
    assert sum(len(word) > 1 for word in words) > 20
    split_words = 0
    for seed in range(300):
        chosen = set(masked(tokens, Rules(0.15, 20, True), seed)[1].tolist())
        assert all(chosen >= set(word) or not chosen & set(word) for word in words)
        assert 1 <= len(chosen) <= 19
        single = set(masked(tokens, Rules(0.15, 20, False), seed)[1].tolist())
        split_words += sum(0 < len(single & set(word)) < len(word) for word in words)
    assert split_words > 1000


def test_whole_words_by_example() -> None:
    """[CLS] a ##b ##c d [SEP] e [SEP]: half of 8 is 4; a, ##b, ##c go together, whatever the order."""
    tokens = np.array([2, 5, 105, 106, 6, 3, 7, 3])
    seen = {tuple(masked(tokens, Rules(0.5, 20, True), seed)[1].tolist()) for seed in range(60)}
    assert seen == {(1, 2, 3, 4), (1, 2, 3, 6), (4, 6)}


def test_a_sample_of_one_long_word_is_not_left_without_a_mask() -> None:
    tokens = np.array([2, 5, 105, 106, 107, 108, 3])
    positions = masked(tokens, Rules(0.15, 3, True), 0)[1]
    assert positions.tolist() == [1, 2, 3]


def test_whole_words_mask_as_many_tokens() -> None:
    tokens = sample(128, seed=3)
    counts = [len(masked(tokens, Rules(0.15, 20, True), seed)[1]) for seed in range(500)]
    assert np.mean(counts) > 18.5


def test_masks_depend_on_the_generator_only() -> None:
    first, again, other = (masked(sample(), Rules(0.15, 20, True), seed)[0] for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
