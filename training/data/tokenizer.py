"""The dataset's tokenizer: trained on its documents, or a given one that fits the model's vocabulary."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training.checkpoint.header import OF_GIT_LFS, POINTER
from training.data import hub
from training.data.errors import DataError, reason
from training.data.hub import LARGEST
from training.data.sources import path_of
from training.data.word_cache import WordCache, parts_of, word_cache_of
from training.run.files import read_bounded

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
LEAST_VOCABULARY = 256 + 2
_TOKENIZER, CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE = "chat_template.jinja"
_OLDER = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")  # of SentencePiece, GPT-2, BERT
_CARRIED = (_TOKENIZER, CONFIG, SPECIAL, TEMPLATE)
# Characters of a run of white space, or of anything else: the time to train grows with the square of the longest run.
LONGEST_RUN = 1000
_LONG_RUN = re.compile(rf"(?<!\S)(?:\S{{{LONGEST_RUN + 1},}}|\s{{{LONGEST_RUN + 1},}})")
_USUAL_BOS = (BOS, "<s>", "[CLS]")
_USUAL_EOS = (EOS, "<|endoftext|>", "</s>", "[SEP]")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer ready to encode documents, and its files, which transformers can load.

    `bos` and `eos` are the ids around each document; `vocabulary` is the largest id plus one.
    """

    tokenizer: Tokenizer
    bos: int
    eos: int
    vocabulary: int
    files: dict[str, bytes]

    def encode(self, texts: Sequence[str], dtype: str) -> list[npt.NDArray[Any]]:
        """Return one array of token ids per text, framed by bos and eos.

        Raises DataError if plain text in a document becomes one of these two tokens.
        """
        frame_left, frame_right = np.array([self.bos], dtype), np.array([self.eos], dtype)
        bodies = self._bodies(texts, dtype)
        for text, body in zip(texts, bodies, strict=True):
            if np.any((body == self.bos) | (body == self.eos)):
                start = repr(text[:60])
                raise DataError(f"tokenizer: plain text becomes a special token in the document {start}...")
        return [np.concatenate([frame_left, body, frame_right]) for body in bodies]

    def _bodies(self, texts: Sequence[str], dtype: str) -> list[npt.NDArray[Any]]:
        words = self._words
        if words is None:
            encodings = self.plain.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(encoding.ids, dtype) for encoding in encodings]
        pieces = [parts_of(text) for text in texts]
        others = [piece for own in pieces for piece in own if not piece.isascii()]
        encoded = iter(self.plain.encode_batch_fast(others, add_special_tokens=False) if others else ())
        return [
            np.concatenate([
                words.encode(piece).astype(dtype) if piece.isascii() else np.array(next(encoded).ids, dtype)
                for piece in own
            ])
            for own in pieces
        ]  # fmt: skip

    @functools.cached_property
    def plain(self) -> Tokenizer:
        """The tokenizer for plain text: none of it becomes a special token."""
        return _without_names(self.tokenizer)

    @functools.cached_property
    def _words(self) -> WordCache | None:
        return word_cache_of(self.tokenizer)

    def write(self, directory: Path) -> None:
        """Write the tokenizer's files into a new directory."""
        directory.mkdir()
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


def document_encoder(
    files: dict[str, bytes], vocabulary: int, dtype: str
) -> Callable[[Sequence[str]], tuple[list[int], npt.NDArray[Any]]]:
    """Return a function that turns texts into the documents' lengths and all their tokens in one array."""
    tokenizer = load("of the dataset", files, vocabulary, padded=True)

    def encode(texts: Sequence[str]) -> tuple[list[int], npt.NDArray[Any]]:
        documents = tokenizer.encode(texts, dtype)
        return [len(document) for document in documents], np.concatenate(documents)

    return encode


def train(texts: Iterator[str], vocab_size: int) -> TextTokenizer:
    """Train a byte-level BPE tokenizer of at most `vocab_size` tokens, 256 bytes and 2 special ones included.

    The result depends on the texts only. A short text may give fewer tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(cut_runs(texts), trainer)
    bos, eos = _id(tokenizer, BOS), _id(tokenizer, EOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, bos)]
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    files = {
        _TOKENIZER: (tokenizer.to_str(pretty=True) + "\n").encode(),
        CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode(),
    }
    return TextTokenizer(_for_encoding(tokenizer), bos, eos, _vocabulary(tokenizer), files)


def cut_runs(texts: Iterator[str]) -> Iterator[str]:
    """Yield the texts, those with a run of more than LONGEST_RUN characters in pieces that cut the run."""
    for text in texts:
        start = 0
        for run in _LONG_RUN.finditer(text):
            for cut in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
                yield text[start:cut]
                start = cut
        yield text[start:]


def given_files(tokenizer: str) -> dict[str, bytes]:
    """Read the files of a tokenizer: a directory, a tokenizer.json, or `<organisation>/<name>@<commit>`.

    Raises DataError if it does not exist.
    """
    if hub.is_pinned(tokenizer):
        return hub.fetch(tokenizer, _CARRIED, _TOKENIZER)
    path = path_of(tokenizer)
    main = path / _TOKENIZER if path.is_dir() else path
    names = _CARRIED if path.is_dir() else (_TOKENIZER,)
    try:
        files = {_TOKENIZER: read_bounded(main, LARGEST, follow=True)}
        others = [name for name in names if (path / name).is_file()]
        files |= {name: read_bounded(path / name, LARGEST, follow=True) for name in others}
    except FileNotFoundError:
        older = next((name for name in _OLDER if (path / name).exists()), None)
        hint = (
            f"{older} has an older format: AutoTokenizer of transformers writes a tokenizer.json beside it "
            "(from_pretrained, save_pretrained)"
            if older
            else "use 'train', a directory with a tokenizer.json, such a file, or <organisation>/<name>@<commit> of "
            "the hub"
        )
        raise DataError(f"tokenizer {tokenizer}: {main} does not exist; {hint}") from None
    except OSError as error:
        raise DataError(f"tokenizer {tokenizer}: cannot read {error.filename or path}: {reason(error)}") from error
    return files


def fingerprint(files: dict[str, bytes]) -> str:
    """Return a digest of a tokenizer's files."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def parsed(name: str, files: dict[str, bytes]) -> Tokenizer:
    """Return the tokenizer in tokenizer.json; DataError if it is damaged."""
    try:
        return Tokenizer.from_str(files[_TOKENIZER].decode("utf-8"))
    except Exception as error:  # tokenizers raises no narrower type
        why = OF_GIT_LFS if files[_TOKENIZER].startswith(POINTER) else _first_line(error)
        raise DataError(f"tokenizer {name}: cannot load {_TOKENIZER} ({why})") from error


def load(name: str, files: dict[str, bytes], vocab_size: int, *, padded: bool = False) -> TextTokenizer:
    """Load a given tokenizer; DataError if it is damaged, too large, or has no end-of-text token.

    A tokenizer without a bos token (GPT-2, Qwen) uses its eos token instead. With `padded` it may have special tokens
    beyond `vocab_size`, as Gemma 3's for images: no text becomes one of them.
    """
    tokenizer = parsed(name, files)
    vocabulary = _vocabulary(tokenizer)
    if padded and vocabulary > vocab_size and _beyond(tokenizer, vocab_size) <= _specials(tokenizer):
        vocabulary = vocab_size
    if vocabulary > vocab_size:
        raise DataError(
            f"tokenizer {name} has {vocabulary:,} tokens, more than the model's vocab_size of {vocab_size:,}"
        )
    eos = _special(name, files, tokenizer, "eos_token", _USUAL_EOS)
    bos = _special(name, files, tokenizer, "bos_token", _USUAL_BOS) or eos
    if {eos, bos} & _beyond(tokenizer, vocabulary):
        raise DataError(f"tokenizer {name}: {bos} or {eos} is beyond the model's vocab_size of {vocab_size:,}")
    if eos is None or bos is None:
        usual = ", ".join(_USUAL_EOS)
        raise DataError(f"tokenizer {name} has neither an eos_token in {CONFIG} nor one of {usual}")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
    files = {CONFIG: (json.dumps(names, indent=2, sort_keys=True) + "\n").encode(), **files}
    return TextTokenizer(_for_encoding(tokenizer), _id(tokenizer, bos), _id(tokenizer, eos), vocabulary, files)


def _special(name: str, files: dict[str, bytes], tokenizer: Tokenizer, key: str, usual: tuple[str, ...]) -> str | None:
    """Return the token that the tokenizer's files give for `key`, else the first of the usual ones it has."""
    for file in (CONFIG, SPECIAL):
        token = json_object(name, file, files.get(file, b"{}")).get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if token is None:
            continue
        if not isinstance(token, str) or tokenizer.token_to_id(token) is None:
            raise DataError(f"tokenizer {name}: {file} names {key} {token!r}, which is not in {_TOKENIZER}")
        return token
    return next((token for token in usual if tokenizer.token_to_id(token) is not None), None)


def json_object(name: str, file: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a tokenizer's file; DataError if there is none."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"tokenizer {name}: {file} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"tokenizer {name}: {file} is not a JSON object")
    return content


def _id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise DataError(f"tokenizer has no token {token!r}")
    return number


def _vocabulary(tokenizer: Tokenizer) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _beyond(tokenizer: Tokenizer, vocab_size: int) -> set[str]:
    return {token for token, number in tokenizer.get_vocab(with_added_tokens=True).items() if number >= vocab_size}


def _specials(tokenizer: Tokenizer) -> set[str]:
    return {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}


def _for_encoding(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy without truncation and padding that reads the names of special tokens as plain text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _without_names(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that finds no special token in a text. A Unigram model lists them among its pieces.

    There they get names that no text holds. Their ids stay.
    """
    settings = json.loads(tokenizer.to_str())
    if settings["model"]["type"] != "Unigram":
        return tokenizer
    hidden = {name: f"\0special\0{name}" for name in _specials(tokenizer)}
    for piece in settings["model"]["vocab"]:
        piece[0] = hidden.get(piece[0], piece[0])
    for token in settings["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    return _for_encoding(Tokenizer.from_str(json.dumps(settings)))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
