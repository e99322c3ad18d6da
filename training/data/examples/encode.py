"""Examples as token ids, and the tokens among them that are learned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from training.data.examples.example import CALLS, Example
from training.data.examples.formats import BadRow
from training.data.examples.template import REASONING, ChatTemplate, Learn, Span
from training.data.tokenizer import TextTokenizer

_SPACES = ("▁", "Ġ")  # how tokens write a space: SentencePiece's and byte-level ones


@dataclass(frozen=True)
class Encoded:
    """One example: token ids and, for each, whether it is learned; both [tokens].

    `size` is its text in UTF-8 bytes. `border` counts the tokens that only partly belong to the assistant.
    """

    tokens: npt.NDArray[Any]
    learned: npt.NDArray[np.bool_]
    size: int
    border: int = 0


class Encoder:
    """Encodes examples with one tokenizer and, for chats, one template.

    In chats the template's special tokens are tokens, and a message with the name of one is refused, because
    it could end its own turn. In text and in prompts such names are plain text, and the example is framed by
    the tokenizer's begin-of-text token, if it has one, and its end-of-text token.

    `joins` says that a prompt and its completion are encoded as one text. Else each is encoded alone, because at
    inference a prompt comes without its completion. But a tokenizer that writes a space before each text, as
    Llama 2's and Mistral's do, would also write one between the two.
    """

    def __init__(
        self, tokenizer: TextTokenizer, template: ChatTemplate, dtype: str, learn: Learn | None = None
    ) -> None:
        self._text, self.template, self._dtype, self._learn = tokenizer, template, dtype, learn
        self._chat = _with_exact_offsets(tokenizer.tokenizer)
        self.joins = "".join(tokenizer.plain.encode("a", add_special_tokens=False).tokens)[:1] in _SPACES
        self._plain = _with_exact_offsets(tokenizer.plain, names=False) if self.joins else tokenizer.plain
        added = self._chat.get_added_tokens_decoder().values()
        self._special = sorted(token.content for token in added if token.special)

    def encode(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Return each example encoded, or the reason why it cannot be encoded, in order."""
        chats = iter(self._chats([example for example in examples if example.messages]))
        framed = iter(self._framed([example for example in examples if not example.messages]))
        return [next(chats if example.messages else framed) for example in examples]

    def _chats(self, examples: Sequence[Example]) -> Iterator[Encoded | BadRow]:
        written = [self._written(example) for example in examples]
        texts = [item[0] for item in written if not isinstance(item, BadRow)]
        encodings = iter(self._chat.encode_batch(texts, add_special_tokens=False))
        for item in written:
            if isinstance(item, BadRow):
                yield item
                continue
            (text, spans, where), encoding = item, next(encodings)
            if (most := max(encoding.ids, default=0)) >= self._text.vocabulary:
                token = self._chat.id_to_token(most)
                yield BadRow(f"{where}: the chat template writes {token!r}, which is beyond the model's vocab_size")
                continue
            learned, border = _learned(encoding, spans)
            yield Encoded(np.array(encoding.ids, self._dtype), learned, len(text.encode()), border)

    def _written(self, example: Example) -> tuple[str, list[Span], str] | BadRow:
        for number, message in enumerate(example.messages):
            held = self._held([message.get(key) for key in ("content", *REASONING, "thinking", "name", CALLS)])
            if held is not None:
                return BadRow(f"{example.where}: messages[{number}] holds the special token {held!r}")
        if held := self._held(list(example.tools)):
            return BadRow(f"{example.where}: tools hold the special token {held!r}")
        try:
            text, spans = self.template.render_learned(
                example.where, example.messages, example.learned_from, example.tools, self._learn
            )
            text.encode()
        except BadRow as error:
            return error
        except UnicodeEncodeError:
            return BadRow(f"{example.where}: half a surrogate pair in a tool or a call, not text")
        return text, spans, example.where

    def names_special(self, example: Example) -> bool:
        """Return whether a text or a prompt holds the name of a special token, which is read as its letters."""
        return self._held([text for text, _ in example.pieces]) is not None

    def _held(self, value: object) -> str | None:
        """Return a special token that a text in `value` holds, at any depth."""
        if isinstance(value, str):
            return next((token for token in self._special if token in value), None)
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        if not isinstance(parts, list):
            return None
        return next((held for held in map(self._held, parts) if held is not None), None)

    def _framed(self, examples: Sequence[Example]) -> Iterator[Encoded | BadRow]:
        groups = [[example.pieces] if self.joins else [[piece] for piece in example.pieces] for example in examples]
        texts = ["".join(text for text, _ in pieces) for group in groups for pieces in group]
        encode = self._plain.encode_batch if self.joins else self._plain.encode_batch_fast  # without offsets
        encodings = iter(encode(texts, add_special_tokens=False))
        for example, group in zip(examples, groups, strict=True):
            yield self._in_frame(example, [(pieces, next(encodings)) for pieces in group])

    def _in_frame(self, example: Example, group: list[tuple[Sequence[tuple[str, bool]], Encoding]]) -> Encoded | BadRow:
        bos, eos = self._text.bos, self._text.eos
        ids, learned, borders = ([bos], [False], 0) if bos != eos else ([], [], 0)
        for pieces, encoding in group:
            if bos in encoding.ids or eos in encoding.ids:
                return BadRow(f"{example.where}: plain text becomes a special token in {pieces[0][0][:60]!r}...")
            marks, border = _marked(pieces, encoding)
            ids += encoding.ids
            learned += marks
            borders += border
        size = sum(len(text.encode()) for text, _ in example.pieces)
        return Encoded(np.array([*ids, eos], self._dtype), np.array([*learned, True]), size, borders)


def _marked(pieces: Sequence[tuple[str, bool]], encoding: Encoding) -> tuple[list[bool], int]:
    """Return for each token of the pieces' text whether it is learned, and how many are so only in part."""
    if len(pieces) == 1:
        return [pieces[0][1]] * len(encoding.ids), 0
    ends = list(accumulate(len(text) for text, _ in pieces))
    spans = [(end - len(text), end) for (text, is_learned), end in zip(pieces, ends, strict=True) if is_learned]
    learned, border = _learned(encoding, spans)
    return learned.tolist(), border


def _learned(encoding: Encoding, spans: list[Span]) -> tuple[npt.NDArray[np.bool_], int]:
    """Mark the tokens that share a character with a span; count those that are only partly in it."""
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    learned, border = np.zeros(len(offsets), dtype=bool), 0
    for start, end in spans:
        touching = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        border += int((touching & ((offsets[:, 0] < start) | (offsets[:, 1] > end))).sum())
        learned |= touching
    return learned, border


def _with_exact_offsets(tokenizer: Tokenizer, names: bool = True) -> Tokenizer:
    """Return a copy that includes a token's leading space in its offsets, and with `names` finds special tokens."""
    copy = Tokenizer.from_str(json.dumps(_untrimmed(json.loads(tokenizer.to_str()))))
    copy.encode_special_tokens = not names
    return copy


def _untrimmed(node: Any) -> Any:
    if isinstance(node, list):
        return [_untrimmed(item) for item in node]
    if isinstance(node, dict):
        return {key: False if key == "trim_offsets" else _untrimmed(value) for key, value in node.items()}
    return node
