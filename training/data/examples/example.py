"""One example: what is read from a row, which parts are learned, and which rows are bad."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from training.data.examples.formats import (
    ALPACA,
    COMPLETION,
    CONVERSATIONS,
    HISTORY,
    INPUT,
    INSTRUCTION,
    MESSAGES,
    OUTPUT,
    PAIR,
    PROMPT,
    SHAREGPT,
    SYSTEM,
    TOOLS,
    BadRow,
    Shape,
)
from training.data.readers import kind_of, no_field

ROLES = ("system", "developer", "user", "assistant", "tool")
ASSISTANT = "assistant"
CALLS = "tool_calls"
MOST_DEPTH = 64  # levels of lists and objects in messages and tools
# What says of a turn that it is not learned, in the formats of OpenAI, axolotl and ms-swift.
UNLEARNED = {"weight": 0, "train": False, "loss": False}
# The speakers of ShareGPT's turns as roles.
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "chatgpt": ASSISTANT,
    "system": "system",
    "function_call": ASSISTANT,
    "observation": "tool",
    "function_response": "tool",
    "tool": "tool",
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """Either messages, whose assistant turns from number `learned_from` on are learned, or pieces of text.

    `pieces` are (text, learned) in order. `tools` are the tools that the model may call in the messages.
    `where` names the row in error messages, `format` and `evidence` say how it was read.
    """

    where: str
    kind: str
    messages: tuple[Message, ...] = ()
    learned_from: int = 0
    pieces: tuple[tuple[str, bool], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    format: str = ""
    evidence: str = ""

    def digest(self) -> bytes:
        """Return the digest of the row's content; equal rows are in the same split.

        Messages of Parquet may have times and other values that JSON lacks; their type counts.
        """
        content: list[object] = [self.messages, self.learned_from, self.pieces]
        if self.tools:
            content.append(self.tools)
        text = json.dumps(content, sort_keys=True, default=lambda value: type(value).__name__)
        return hashlib.sha256(text.encode()).digest()


def example_of(where: str, fields: dict[str, Any], shape: Shape) -> Example:
    """Read a row in the format that `shape` names, or in the one that its fields show.

    Raises BadRow with the row's place and the reason; DataError if the format cannot be used.
    """
    row = shape.renamed(where, fields)
    name, evidence = shape.recognise(where, row)
    if name == MESSAGES:
        example = _chat(where, _messages(where, MESSAGES, row[MESSAGES], shape), 0)
    elif name == PAIR:
        example = _pair(where, row[PROMPT], row[COMPLETION], shape)
    elif name == ALPACA:
        example = _chat(where, _alpaca(where, row), 0)
    elif name == SHAREGPT:
        example = _chat(where, _sharegpt(where, row, shape), 0)
    else:
        text = _text(where, shape.text_field, row[shape.text_field])
        example = Example(where, "text", pieces=((text, True),))
    tools = _tools(where, row.get(TOOLS)) if example.messages else ()
    return replace(example, tools=tools, format=name, evidence=evidence)


def _pair(where: str, prompt: object, completion: object, shape: Shape) -> Example:
    if isinstance(prompt, list) and isinstance(completion, list):
        before = _messages(where, PROMPT, prompt, shape)
        return _chat(where, before + _messages(where, COMPLETION, completion, shape), len(before))
    pieces = (_text(where, PROMPT, prompt), False), (_text(where, COMPLETION, completion), True)
    return Example(where, "pair", pieces=pieces)


def is_learned(message: Message) -> bool:
    """Return whether a message is the assistant's, and none of its keys says that it is not learned."""
    return message["role"] == ASSISTANT and all(message.get(key) != value for key, value in UNLEARNED.items())


def _chat(where: str, messages: tuple[Message, ...], learned_from: int) -> Example:
    if not any(map(is_learned, messages[learned_from:])):
        raise BadRow(f"{where}: no message from the assistant, so there is nothing to learn")
    return Example(where, "chat", messages=messages, learned_from=learned_from)


def _alpaca(where: str, row: dict[str, Any]) -> tuple[Message, ...]:
    """Return the messages of an instruction, with its input after a blank line, and the turns before it."""
    question = _text(where, INSTRUCTION, row[INSTRUCTION])
    given = "" if row.get(INPUT) is None else _text(where, INPUT, row[INPUT], empty=True)
    if given.strip():
        question = f"{question}\n\n{given}"
    turns = _history(where, row.get(HISTORY) or [])
    turns += [("user", question), (ASSISTANT, _text(where, OUTPUT, row[OUTPUT]))]
    return _system(where, row) + tuple({"role": role, "content": text} for role, text in turns)


def _history(where: str, value: object) -> list[tuple[str, str]]:
    if not isinstance(value, list) or not all(isinstance(part, list) and len(part) == 2 for part in value):
        raise BadRow(f"{where}: field '{HISTORY}' is not a list of pairs of instruction and answer")
    roles = ("user", ASSISTANT)
    return [(role, _text(where, HISTORY, text)) for pair in value for role, text in zip(roles, pair, strict=True)]


def _system(where: str, row: dict[str, Any]) -> tuple[Message, ...]:
    if not row.get(SYSTEM):
        return ()
    return ({"role": "system", "content": _text(where, SYSTEM, row[SYSTEM])},)


def _sharegpt(where: str, row: dict[str, Any], shape: Shape) -> tuple[Message, ...]:
    turns = _listed(where, CONVERSATIONS, row[CONVERSATIONS])
    said = (
        _turn(f"{where}: {CONVERSATIONS}[{number}]", turn, shape)
        for number, turn in enumerate(turns)
    )  # fmt: skip
    return _system(where, row) + tuple(said)


def _turn(where: str, value: object, shape: Shape) -> Message:
    """Read a turn of `from` and `value`; one of `role` and `content` is a message already."""
    if not isinstance(value, dict):
        raise BadRow(f"{where} is {kind_of(value)}, not an object with from and value")
    turn = shape.turn(where, value)
    if "from" not in turn and "role" in turn:
        return _message(where, turn)
    for key in ("from", "value"):
        if key not in turn:
            raise BadRow(f"{where}: {no_field(key, list(turn))}")
    speaker, marks = turn["from"], {key: turn[key] for key in UNLEARNED if key in turn}
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise BadRow(f"{where}: the speaker is {speaker!r}, not one of {', '.join(_SPEAKERS)}")
    if speaker == "function_call":
        call = _parsed(where, "value", _text(where, "value", turn["value"]))
        calls = call if isinstance(call, list) else [call]
        return _message(where, {"role": ASSISTANT, "content": "", CALLS: calls, **marks})
    return _message(where, {"role": _SPEAKERS[speaker], "content": turn["value"], **marks})


def _listed(where: str, field: str, value: object) -> list[Any]:
    """Return a list of messages, which tables without lists hold as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parsed(where, field, value)
    if not isinstance(value, list):
        raise BadRow(f"{where}: field '{field}' is {kind_of(value)}, not a list of messages")
    if not value:
        raise BadRow(f"{where}: field '{field}' is an empty list")
    _check_depth(where, field, value)
    return value


def _messages(where: str, field: str, value: object, shape: Shape) -> tuple[Message, ...]:
    read = []
    for number, message in enumerate(_listed(where, field, value)):
        place = f"{where}: {field}[{number}]"
        named = shape.turn(place, message) if isinstance(message, dict) else message
        read.append(_message(place, named))
    return tuple(read)


def _message(where: str, value: object) -> Message:
    """Check one message; leave out null keys, which Parquet adds when another row has them, and an empty list of calls,
    which templates take for a call."""
    if not isinstance(value, dict):
        raise BadRow(f"{where} is {kind_of(value)}, not an object with role and content")
    message = {key: part for key, part in value.items() if part is not None and (part or key != CALLS)}
    if "function_call" in message or message.get("role") == "function":
        raise BadRow(f"{where}: function calls in OpenAI's older form; write {CALLS}, and the role tool")
    if message.get("weight", 1) not in (0, 1):
        raise BadRow(f"{where}: the weight is {message['weight']!r}, not 0 or 1")
    calls = value.get("role") == ASSISTANT and message.get(CALLS)
    if calls:
        message = {**message, "content": value.get("content"), CALLS: _calls(where, calls)}
    for key in ("role", "content"):
        if key not in value and key not in message:
            raise BadRow(f"{where}: {no_field(key, list(value))}")
    role = value["role"]
    if role not in ROLES:
        raise BadRow(f"{where}: the role is {role!r}, not one of {', '.join(ROLES)}")
    if calls and message["content"] is None:
        return message
    content = value.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined(where, content)
    _text(where, "content", content, empty=bool(calls) or not is_learned(message))
    return message


def _joined(where: str, parts: list[Any]) -> str:
    """Return the text of a content that is a list of parts; BadRow if a part is not text."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRow(f"{where}: field 'content' is a list with a part that is not text")
    return "".join(part["text"] for part in parts)


def _calls(where: str, value: object) -> list[dict[str, Any]]:
    """Return the tool calls as templates expect them: the arguments as an object, not as JSON text."""
    if not isinstance(value, list):
        raise BadRow(f"{where}: field '{CALLS}' is {kind_of(value)}, not a list")
    return [_call(f"{where}: {CALLS}[{number}]", call) for number, call in enumerate(value)]


def _call(where: str, value: object) -> dict[str, Any]:
    call = value if isinstance(value, dict) else {}
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRow(f"{where} is not a call of a function with a name")
    given = function.get("arguments") or {}
    given = _parsed(where, "arguments", given) if isinstance(given, str) else given
    if not isinstance(given, dict):
        raise BadRow(f"{where}: field 'arguments' is {kind_of(given)}, not an object")
    rest = {key: part for key, part in call.items() if key in ("id",) and part is not None}
    return {**rest, "type": "function", "function": {"name": function["name"], "arguments": given}}


def _tools(where: str, value: object) -> tuple[dict[str, Any], ...]:
    """Return the tools of a row: a list of objects, or the same as JSON text, as tables hold it."""
    tools = _parsed(where, TOOLS, value) if isinstance(value, str) and value.strip() else value
    if not tools:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow(f"{where}: field '{TOOLS}' is not a list of objects")
    _check_depth(where, TOOLS, tools)
    return tuple(tools)


def _parsed(where: str, field: str, text: str) -> Any:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow(f"{where}: field '{field}' is not JSON") from None
    _check_depth(where, field, parsed)
    return parsed


def _check_depth(where: str, field: str, value: object) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise BadRow(f"{where}: field '{field}' has more than {MOST_DEPTH} levels")
        inner: list[object] = []
        for part in level:
            inner += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        level = [part for part in inner if isinstance(part, dict | list)]


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
