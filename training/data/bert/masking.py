"""Masks the tokens of a sample that BERT has to predict (Devlin et al. 2018, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.data.bert.wordpiece import Vocabulary

_Ids = npt.NDArray[np.int64]
MASKED, REPLACED = 0.8, 0.1  # the rest of the chosen tokens is unchanged


@dataclass(frozen=True)
class Rules:
    """How many tokens are chosen: `fraction` of a sample, from 1 to `most`; as whole words or not."""

    fraction: float
    most: int
    whole_words: bool


def mask(tokens: _Ids, rules: Rules, vocabulary: Vocabulary, draw: np.random.Generator) -> tuple[_Ids, _Ids]:
    """Mask a sample of any length in place; return the chosen positions, ascending, and their tokens.

    Of the chosen tokens 80 % become [MASK], 10 % a random word piece, 10 % stay. Special tokens are never
    chosen. The fraction is of the whole sample, special tokens included, as in the paper's code.
    """
    wanted = min(rules.most, max(1, round(len(tokens) * rules.fraction)))
    able = np.flatnonzero(vocabulary.ordinary[tokens])
    chosen = _whole_words(tokens, able, wanted, rules.most, vocabulary, draw) if rules.whole_words else (
        draw.permutation(able)[:wanted]
    )  # fmt: skip
    positions = np.sort(chosen)
    original = tokens[positions]
    fate = draw.random(len(positions))
    random = vocabulary.words[draw.integers(0, len(vocabulary.words), len(positions))]
    kept_or_random = np.where(fate < MASKED + REPLACED, random, original)
    tokens[positions] = np.where(fate < MASKED, vocabulary.mask, kept_or_random)
    return positions, original


def _whole_words(
    tokens: _Ids, able: _Ids, wanted: int, most: int, vocabulary: Vocabulary, draw: np.random.Generator
) -> _Ids:
    """Choose words in random order, each with all its pieces, and skip a word that would exceed `wanted`.

    If all words are longer, the first one is chosen, up to `most` pieces.
    """
    follows = np.zeros(len(able), dtype=bool)
    follows[1:] = vocabulary.inside[tokens[able[1:]]] & (np.diff(able) == 1)
    words = np.split(able, np.flatnonzero(~follows)[1:])
    order = draw.permutation(len(words))
    taken: list[_Ids] = []
    left = wanted
    for word in (words[number] for number in order.tolist()):
        if len(word) <= left:
            taken.append(word)
            left -= len(word)
        if not left:
            break
    return np.concatenate(taken) if taken else words[int(order[0])][:most]
