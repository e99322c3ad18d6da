"""BERT's tokenizer: WordPiece, trained on the documents or given, and the ids that masking needs."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training.data.errors import DataError
from training.data.tokenizer import TextTokenizer, cut_runs, given_files, parsed

PAD, UNKNOWN, CLASS, SEPARATOR, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_IDS = 2**24  # tables of this length are made
INSIDE = "##"  # prefix of a piece that continues a word
# Rarer characters than these become [UNK]: a word piece for each would fill a small vocabulary.
CHARACTER_COVERAGE = 0.9995


@dataclass(frozen=True)
class Vocabulary:
    """Ids of the special tokens, and properties of the others.

    `inside` says whether an id continues a word, `ordinary` whether it may be masked (special tokens may
    not); both [vocabulary]. `words` lists the ids that may replace a masked token.
    """

    pad: int
    cls: int
    sep: int
    mask: int
    inside: npt.NDArray[np.bool_]
    ordinary: npt.NDArray[np.bool_]
    words: npt.NDArray[np.int64]


def vocabulary_of(name: str, tokenizer: Tokenizer) -> Vocabulary:
    """Read a tokenizer's vocabulary; DataError if one of BERT's special tokens is missing."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if max(ids.values(), default=0) >= MOST_IDS:
        raise DataError(f"tokenizer {name} has a token with an id of {max(ids.values())}")
    missing = [token for token in (PAD, CLASS, SEPARATOR, MASK) if token not in ids]
    if missing:
        raise DataError(f"tokenizer {name} lacks {', '.join(missing)}: BERT's tokenizer has {', '.join(SPECIAL)}")
    special = {ids[token] for token in SPECIAL if token in ids}
    inside = np.zeros(max(ids.values()) + 1, dtype=bool)
    inside[[number for token, number in ids.items() if token.startswith(INSIDE)]] = True
    ordinary = np.ones(len(inside), dtype=bool)
    ordinary[[ids[token] for token in (PAD, CLASS, SEPARATOR, MASK)]] = False
    words = np.array(sorted(set(ids.values()) - special), dtype=np.int64)
    return Vocabulary(ids[PAD], ids[CLASS], ids[SEPARATOR], ids[MASK], inside, ordinary, words)


def read_vocabulary(directory: Path) -> Vocabulary:
    """Read the vocabulary of a prepared dataset's tokenizer directory."""
    name = str(directory)
    return vocabulary_of(name, parsed(name, given_files(name)))


def train(texts: Callable[[], Iterator[str]], vocab_size: int) -> TextTokenizer:
    """Train an uncased WordPiece tokenizer of at most `vocab_size` tokens; it depends on the texts only.

    `texts` is read twice. The tokenizers library numbers the pieces of its alphabet in the order of a hash
    table, which differs between processes; passing them as special tokens fixes their numbers.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    alphabet = _alphabet(texts(), normalizer)
    inner = [f"{INSIDE}{c}" for c in alphabet if not _stands_alone(c)]
    least = len(SPECIAL) + len(alphabet) + len(inner)
    if vocab_size < least:
        raise DataError(
            f"vocab_size {vocab_size} is too small for a WordPiece tokenizer of this text (at least {least}: "
            f"{len(SPECIAL)} special tokens and {len(alphabet)} characters, at the start of and inside words)"
        )
    learner = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    learner.normalizer, learner.pre_tokenizer = normalizer, splitter
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(cut_runs(texts()), trainer)
    return _finished(learner.get_vocab(with_added_tokens=True))


def _alphabet(texts: Iterator[str], normalizer: normalizers.Normalizer) -> list[str]:
    """The most frequent characters that together cover CHARACTER_COVERAGE of the text, sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted(
        ((count, c) for c, count in counts.items() if not c.isspace()), key=lambda pair: (-pair[0], pair[1])
    )
    wanted = CHARACTER_COVERAGE * sum(count for count, _ in frequent)
    covered = np.cumsum([0] + [count for count, _ in frequent])
    return sorted(c for (_, c), before in zip(frequent, covered.tolist(), strict=False) if before < wanted)


def _stands_alone(character: str) -> bool:
    """Whether BERT's pre-tokenizer makes a word of this character alone, so that it is never inside one."""
    if character.isascii():
        return not character.isalnum()
    wide = "CJK UNIFIED" in unicodedata.name(character, "") or "CJK COMPAT" in unicodedata.name(character, "")
    return wide or unicodedata.category(character).startswith("P")


def _finished(ids: dict[str, int]) -> TextTokenizer:
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=INSIDE)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLASS} $A {SEPARATOR}",
        pair=f"{CLASS} $A {SEPARATOR} $B:1 {SEPARATOR}:1",
        special_tokens=[(CLASS, ids[CLASS]), (SEPARATOR, ids[SEPARATOR])],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "unk_token": UNKNOWN,
        "cls_token": CLASS, "sep_token": SEPARATOR, "mask_token": MASK,
    }  # fmt: skip
    files = {
        "tokenizer.json": (tokenizer.to_str(pretty=True) + "\n").encode(),
        "tokenizer_config.json": (json.dumps(names, indent=2, sort_keys=True) + "\n").encode(),
    }
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True  # reads their names in a text as plain text
    return TextTokenizer(plain, ids[CLASS], ids[SEPARATOR], max(ids.values()) + 1, files)
