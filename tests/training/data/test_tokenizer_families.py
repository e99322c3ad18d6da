"""What is encoded is the text, whatever the tokenizer's family: of SentencePiece, byte-level, words."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.training.chats import say
from training.data.examples.encode import Encoded, Encoder
from training.data.examples.example import Example
from training.data.examples.template import PLAIN, ChatTemplate
from training.data.tokenizer import TextTokenizer, load

LEARNED_FROM = [say(60, start) for start in range(15)]


SPACES = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])


def bpe(
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    decoder: decoders.Decoder,
) -> Tokenizer:
    """A BPE tokenizer with the special tokens of SentencePiece. None of its tokens is more than one word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    byte_level = isinstance(pre_tokenizer, pre_tokenizers.ByteLevel)
    tokenizer.pre_tokenizer = pre_tokenizer if byte_level else pre_tokenizers.Metaspace()
    alphabet = sorted({*"".join(LEARNED_FROM), *pre_tokenizers.ByteLevel.alphabet(), "▁", "\n"})
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LEARNED_FROM, trainer)
    settings = json.loads(tokenizer.to_str())
    settings |= {"normalizer": None, "pre_tokenizer": None}
    made = Tokenizer.from_str(json.dumps(settings))
    made.decoder = decoder
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    return made


def llama_2() -> Tokenizer:
    return bpe(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None, SPACES)


def mistral() -> Tokenizer:
    return bpe(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), SPACES)


def gemma() -> Tokenizer:
    return bpe(normalizers.Replace(" ", "▁"), None, SPACES)


def roberta() -> Tokenizer:
    return bpe(None, pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel())


def loaded(tokenizer: Tokenizer) -> TextTokenizer:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    files = {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}
    return load("of the test", files, 600)


@pytest.mark.parametrize("family", [llama_2, mistral, gemma, roberta])
@pytest.mark.parametrize("pair", [("the cat (", "sat, on"), ("the cat\n", "sat"), ("the cat", " sat")])
def test_no_space_comes_between_a_prompt_and_its_completion(family: object, pair: tuple[str, str]) -> None:
    tokenizer = loaded(family())  # type: ignore[operator]
    encoder = Encoder(tokenizer, ChatTemplate(PLAIN, {}), "uint16")
    example = Example("row 1", "pair", pieces=((pair[0], False), (pair[1], True)))
    (encoded,) = encoder.encode([example])
    assert isinstance(encoded, Encoded)
    whole, learned = encoded.tokens.tolist(), encoded.learned.tolist()
    assert tokenizer.tokenizer.decode(whole).lstrip(" ") == "".join(pair)
    marked = [token for token, is_its in zip(whole, learned, strict=True) if is_its]
    assert tokenizer.tokenizer.decode(marked).strip(" ") == pair[1].strip(" ")
    assert (whole[0], learned[0]) == (tokenizer.bos, False)
    assert (whole[-1], learned[-1]) == (tokenizer.eos, True)
