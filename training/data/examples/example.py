"""One example: what is read from a row, which parts are learned, and which rows are bad."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from training.data.errors import DataError
from training.data.readers import kind_of, no_field

MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
ROLES = ("system", "developer", "user", "assistant", "tool")
ASSISTANT = "assistant"

Message = dict[str, Any]


class BadRow(DataError):
    """A row that is not a usable example; `data.bad_rows` says whether that ends the preparation."""


@dataclass(frozen=True)
class Example:
    """Either messages, whose assistant turns from number `learned_from` on are learned, or pieces of text.

    `pieces` are (text, learned) in order. `where` names the row in error messages.
    """

    where: str
    kind: str
    messages: tuple[Message, ...] = ()
    learned_from: int = 0
    pieces: tuple[tuple[str, bool], ...] = ()

    def digest(self) -> bytes:
        """Return the digest of the row's content; equal rows are in the same split."""
        content = [self.messages, self.learned_from, self.pieces]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()


def example_of(where: str, row: dict[str, Any], text_field: str) -> Example:
    """Read a row: `messages`, else `prompt` and `completion` (two strings or two lists), else `text_field`.

    Raises BadRow with the row's place and the reason.
    """
    if MESSAGES in row:
        return _chat(where, _messages(where, MESSAGES, row[MESSAGES]), 0)
    if PROMPT in row and COMPLETION in row:
        return _pair(where, row[PROMPT], row[COMPLETION])
    if text_field in row:
        return Example(where, "text", pieces=((_text(where, text_field, row[text_field]), True),))
    for field, other in ((PROMPT, COMPLETION), (COMPLETION, PROMPT)):
        if field in row:
            raise BadRow(f"{where}: has a {field}, but {no_field(other, list(row))}")
    raise BadRow(
        f"{where}: neither {MESSAGES}, nor {PROMPT} and {COMPLETION}; {no_field(text_field, list(row))}"
    )


def _pair(where: str, prompt: object, completion: object) -> Example:
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = _messages(where, PROMPT, prompt), _messages(where, COMPLETION, completion)
        return _chat(where, before + after, len(before))
    pieces = (_text(where, PROMPT, prompt), False), (_text(where, COMPLETION, completion), True)
    return Example(where, "pair", pieces=pieces)


def _chat(where: str, messages: tuple[Message, ...], learned_from: int) -> Example:
    if not any(message["role"] == ASSISTANT for message in messages[learned_from:]):
        raise BadRow(f"{where}: no message from the assistant, so there is nothing to learn")
    return Example(where, "chat", messages=messages, learned_from=learned_from)


def _messages(where: str, field: str, value: object) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise BadRow(f"{where}: field '{field}' is {kind_of(value)}, not a list of messages")
    if not value:
        raise BadRow(f"{where}: field '{field}' is an empty list")
    return tuple(_message(f"{where}: {field}[{number}]", message) for number, message in enumerate(value))


def _message(where: str, value: object) -> Message:
    """Check one message; leave out null keys, which Parquet adds when another row has them."""
    if not isinstance(value, dict):
        raise BadRow(f"{where} is {kind_of(value)}, not an object with role and content")
    for key in ("role", "content"):
        if key not in value:
            raise BadRow(f"{where}: {no_field(key, list(value))}")
    role = value["role"]
    if role not in ROLES:
        raise BadRow(f"{where}: the role is {role!r}, not one of {', '.join(ROLES)}")
    _text(where, "content", value["content"], empty=role != ASSISTANT)
    return {key: part for key, part in value.items() if part is not None}


def _text(where: str, field: str, value: object, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise BadRow(f"{where}: field '{field}' is {kind_of(value)}, not a string")
    if not empty and not value.strip():
        raise BadRow(f"{where}: field '{field}' is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{where}: field '{field}' holds half a surrogate pair, not text") from None
    return value
