"""A tokenizer's chat template: turns messages into one text with the positions of the assistant's turns.

transformers' own code renders the templates, in its sandbox. If a template marks the assistant's turns
(`{% generation %}`), these marks are used. Otherwise an assistant's turn is the difference between the
rendering with it and the prompt that asks for it (`add_generation_prompt`). So a model learns to continue
exactly where it will be asked to.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from training.data.errors import DataError, reason
from training.data.examples.example import ASSISTANT, CALLS, Message, is_learned
from training.data.examples.formats import BadRow
from training.data.examples.limits import TooLong, Watchdog, memory
from training.data.sources import path_of
from training.data.tokenizer import CONFIG, SPECIAL, TEMPLATE, TextTokenizer, json_object
from training.run.files import read_bounded

# For tokenizers without a template. It needs only the tokenizer's end-of-text token.
PLAIN = (
    "{% for message in messages %}"
    "### {{ message['role'] }}{{ '\n' }}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}### assistant{{ '\n' }}{% endif %}"
)
# The date that Llama 3.1's template writes by default. With the current date the data would change every day.
DAY = datetime(2024, 7, 26)
DATE = DAY.strftime("%d %b %Y")
# transformers' function for the current time takes no other one's place, but a macro of the template does.
_NOW = "strftime_now"
_PARTS = [f"%{letter}" for letter in ("-d", "-m", "-H", "-I", "-M", "-S", "-j", *"aAbBcdHIjmMpSuwxXyY")]
_WRITTEN = "".join(f".replace({part!r}, {DAY.strftime(part)!r})" for part in _PARTS)
_MACRO = f"{{% macro {_NOW}(format) %}}{{{{ format{_WRITTEN} }}}}{{% endmacro %}}{{{{ '' }}}}"
LARGEST = 2**20  # bytes of a template's file
LONGEST, MOST_MEMORY = 30.0, 2**31  # seconds and bytes to render one conversation
_WATCHDOG = Watchdog()
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")

# Which tokens of a chat's last turn are learned, instead of all turns of the assistant: data.learn.
Learn = Literal["last", "reasoning", "answer"]
THINK, THOUGHT = "<think>", "</think>"
REASONING = ("reasoning_content", "reasoning")  # a message's own field for its reasoning
ANSWER = "answer-7f1c3b5e9d2a"  # stands for an answer while the template writes what surrounds it

Span = tuple[int, int]
Tools = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template and the special tokens that it may use (`bos_token`, `eos_token`, ...)."""

    text: str
    special: dict[str, str]

    @property
    def day(self) -> dict[str, str]:
        """For a dataset's settings: the `date` that the template writes in place of today's; empty if it asks for none.

        Llama's templates know a fixed date of their own, `date_string`.
        """
        asks = _NOW in self.text and "date_string" not in self.text
        return {"date": DAY.date().isoformat()} if asks else {}

    def digest(self) -> str:
        """Return a digest of the template and of the tokens that it may use."""
        content = "\0".join([self.text, *(f"{key}={self.special[key]}" for key in sorted(self.special))])
        return hashlib.sha256(content.encode()).hexdigest()

    def check(self, learn: Learn | None = None) -> None:
        """Raise DataError if the template is not valid, or knows no reasoning although `learn` needs it."""
        if learn in ("reasoning", "answer") and THOUGHT not in self.text and THINK not in self.text:
            raise DataError(
                f"data.learn is {learn}, but the chat template has no {THOUGHT}, so its model does not reason"
            )
        try:
            self.render([{"role": "user", "content": "a"}], add_generation_prompt=True)
        except BadRow as error:
            raise DataError(str(error)) from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False, tools: Tools = ()) -> str:
        """Return the messages as one text; BadRow if the template refuses them."""
        return self._rendered(messages, tools, add_generation_prompt=add_generation_prompt)[0]

    def render_learned(
        self,
        where: str,
        messages: Sequence[Message],
        learned_from: int,
        tools: Tools = (),
        learn: Learn | None = None,
    ) -> tuple[str, list[Span]]:
        """Return the text and the spans that are learned, in turns from message `learned_from` on.

        A turn's span includes its end-of-turn token, but no white space after it. With
        `learn`, only the last turn of the assistant is learned and what follows it is left out. Raises
        BadRow if the template refuses the messages, changes what the assistant says, or changes a turn when
        others follow: then it is not what the model would be asked to write.
        """
        try:
            if tools and "tools" not in self.text:
                raise BadRow("the chat template does not write tools; give another in data.chat_template")
            if learn is not None:
                last = max(n for n, message in enumerate(messages) if is_learned(message))
                messages, learned_from = messages[: last + 1], last
            if learn == "reasoning" or learn == "answer":
                return self._reasoned(messages, tools, learn)
            if _MARKED.search(self.text):
                return self._marked(messages, learned_from, tools)
            return self._by_prefixes(messages, learned_from, tools)
        except BadRow as error:
            raise BadRow(f"{where}: {error}") from None

    def _reasoned(self, messages: Sequence[Message], tools: Tools, learn: Learn) -> tuple[str, list[Span]]:
        """Write the last turn as a model writes it: after its generation prompt, reasoning and answer.

        The template writes the turns before, the generation prompt and what ends the turn. It never sees the
        reasoning, which many templates leave out. Without reasoning the model reads an empty one, as
        Qwen3's template writes it to turn reasoning off.
        """
        before, turn = messages[:-1], messages[-1]
        thought, answer = _reasoning_of(turn)
        if learn == "reasoning" and not thought:
            raise BadRow(f"message {len(before)} has no reasoning; data.learn: answer needs none")
        if not answer:
            raise BadRow(f"message {len(before)} has no answer after its reasoning")
        prompt = self.render(before, add_generation_prompt=True, tools=tools)
        plain = {key: part for key, part in turn.items() if key not in REASONING}
        written = self.render([*before, {**plain, "content": ANSWER}], tools=tools)
        if written.count(ANSWER) != 1:
            raise BadRow(f"the chat template changes message {len(before)}")
        end = written.partition(ANSWER)[2].rstrip()
        _check_calls(turn, end, len(before))
        opened = prompt.rstrip().endswith(THINK)
        opening = "" if opened and prompt.endswith("\n") else "\n" if opened else f"{THINK}\n"
        read = f"{prompt}{opening}{thought}\n{THOUGHT}\n\n"
        text = f"{read}{answer}{end}"
        return text, [(len(prompt) if learn == "reasoning" else len(read), len(text))]

    def _marked(self, messages: Sequence[Message], learned_from: int, tools: Tools) -> tuple[str, list[Span]]:
        text, spans = self._rendered(messages, tools, return_assistant_tokens_mask=True)
        turns = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
        if len(spans) != len(turns):
            raise BadRow(f"the chat template marks {len(spans)} turns of the assistant, the messages have {len(turns)}")
        pairs = zip(turns, spans, strict=True)
        return text, [span for turn, span in pairs if turn >= learned_from and is_learned(messages[turn])]

    def _by_prefixes(self, messages: Sequence[Message], learned_from: int, tools: Tools) -> tuple[str, list[Span]]:
        text = self.render(messages, tools=tools)
        spans = []
        for number, message in enumerate(messages):
            if number < learned_from or not is_learned(message):
                continue
            turn, closed = self._turn(messages, number, text, tools)
            prompt = self._opening(turn, tools) if number == 0 else ""
            prompt = prompt or self.render(messages[:number], add_generation_prompt=True, tools=tools)
            if not turn.startswith(prompt):
                raise BadRow(
                    f"the chat template is not prefix-stable: message {number} differs from its generation prompt; "
                    "give another in data.chat_template"
                )
            if not text.startswith(turn):
                raise BadRow(
                    f"the chat template is not prefix-stable: message {number} changes when others follow; "
                    "data.learn: last learns the last turn alone, or give another in data.chat_template"
                )
            said, content = turn[len(prompt) :], (message["content"] or "").strip()
            if content not in said:
                raise BadRow(f"the chat template changes message {number}")
            _check_calls(message, said, number)
            tail = self._tail(messages[: number + 1], said, content, tools).removesuffix(closed)
            if closed and not tail.strip():
                raise BadRow(f"the chat template is not prefix-stable: message {number} has no end when others follow")
            # White space after the end-of-turn token is not learned, because a model stops at that token.
            spans.append((len(prompt), len(prompt) + len(said.rstrip() if tail.strip() else said)))
        return text, spans

    def _opening(self, turn: str, tools: Tools) -> str:
        """Return what the template writes before the answer in a `turn` that begins a chat; empty if unknown.

        Many templates cannot render a chat without messages, or write its beginning with the first one. The header of
        an answer is what asking for one adds to a question.
        """
        asked = [{"role": "user", "content": "a"}]
        plain, prompt = self.render(asked, tools=tools), self.render(asked, add_generation_prompt=True, tools=tools)
        pairs = enumerate(zip(plain, prompt, strict=False))
        header = prompt[next((at for at, (one, other) in pairs if one != other), len(plain)) :]
        before, found, _ = turn.partition(header) if header else (turn, "", "")
        return f"{before}{header}" if found else ""

    def _turn(self, messages: Sequence[Message], number: int, text: str, tools: Tools) -> tuple[str, str]:
        """Return the text up to the end of a turn, and the token left out of it that ends the chat and not the turn.

        Phi's templates write one behind the last turn.
        """
        if number + 1 == len(messages):
            return text, ""
        turn, closing = self.render(messages[: number + 1], tools=tools), self.special.get("eos_token", "")
        if text.startswith(turn) or not turn.endswith(closing):
            return turn, ""
        return turn.removesuffix(closing), closing

    def _tail(self, messages: Sequence[Message], said: str, content: str, tools: Tools) -> str:
        """Return what the template writes after the content of the last message.

        If the reasoning or the end-of-turn token holds the content too, a stand-in for it shows where it ends.
        """
        if not content:
            return said
        if said.count(content) == 1:
            return said.partition(content)[2]
        stand_in = self.render([*messages[:-1], {**messages[-1], "content": ANSWER}], tools=tools)
        return stand_in.rpartition(ANSWER)[2]

    def _rendered(self, messages: Sequence[Message], tools: Tools, **how: bool) -> tuple[str, list[Span]]:
        """Render with the arguments of tool calls as objects, else as JSON text, as some templates need."""
        try:
            return self._render_once(messages, tools, **how)
        except BadRow:
            if not any(message.get(CALLS) for message in messages):
                raise
            return self._render_once([_with_json_arguments(message) for message in messages], tools, **how)

    def _render_once(self, messages: Sequence[Message], tools: Tools, **how: bool) -> tuple[str, list[Span]]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        tokens: dict[str, Any] = {**self.special, "date_string": DATE}
        try:
            with _WATCHDOG.limit(LONGEST), memory(MOST_MEMORY):
                texts, spans = render_jinja_template(
                    [list(messages)], list(tools) or None, chat_template=dated(self.text), **how, **tokens
                )
        except (TooLong, MemoryError, RecursionError):
            most = f"{LONGEST:.0f} s or {MOST_MEMORY >> 30} GiB"
            raise DataError(f"the chat template {self.text[:40]!r}... needs more than {most}") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            first = str(error).partition("\n")[0]
            raise BadRow(f"the chat template cannot render these messages: {first}") from None
        return texts[0], [(start, end) for start, end in spans[0]] if spans else []


def dated(text: str) -> str:
    """Return a template that writes DAY where it would write today's date."""
    return f"{_MACRO}{text}" if _NOW in text else text


def _reasoning_of(message: Message) -> tuple[str, str]:
    """Return a message's reasoning, its own field or what is before `</think>`, and its answer, stripped."""
    content = message["content"] or ""
    own = next((message[key] for key in REASONING if isinstance(message.get(key), str)), "")
    before, mark, after = content.partition(THOUGHT)
    if not mark:
        return own.strip(), content.strip()
    return (own or before.strip().removeprefix(THINK)).strip(), after.strip()


def _check_calls(message: Message, said: str, number: int) -> None:
    """Raise BadRow if the template leaves out a tool call: the model would learn to end its turn instead."""
    for call in message.get(CALLS) or ():
        if call["function"]["name"] not in said:
            raise BadRow(f"the chat template leaves out a tool call of message {number}")


def _with_json_arguments(message: Message) -> Message:
    def written(call: dict[str, Any]) -> dict[str, Any]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    return {**message, CALLS: [written(call) for call in message[CALLS]]} if message.get(CALLS) else message


def template_of(name: str, tokenizer: TextTokenizer, chosen: str) -> ChatTemplate:
    """Return the template in the file `chosen`; for "auto" the tokenizer's own, or PLAIN without one.

    `name` is the tokenizer's. Raises DataError if the file or the tokenizer's configuration is damaged.
    """
    files, special = tokenizer.files, {"eos_token": str(tokenizer.tokenizer.id_to_token(tokenizer.eos))}
    if tokenizer.bos != tokenizer.eos:
        special["bos_token"] = str(tokenizer.tokenizer.id_to_token(tokenizer.bos))
    settings = json_object(name, CONFIG, files.get(CONFIG, b"{}"))
    for key, value in {**json_object(name, SPECIAL, files.get(SPECIAL, b"{}")), **settings}.items():
        token = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(token, str):
            special[key] = token
    if chosen != "auto":
        return ChatTemplate(_template_file(chosen), special)
    if TEMPLATE in files:
        return ChatTemplate(_text_of(f"tokenizer {name}: {TEMPLATE}", files[TEMPLATE]), special)
    own = settings.get("chat_template")
    if isinstance(own, list):  # several, by name
        named = [item for item in own if isinstance(item, dict)]
        own = {str(item.get("name")): item.get("template") for item in named}.get("default")
    return ChatTemplate(own if isinstance(own, str) else PLAIN, special)


def _template_file(name: str) -> str:
    try:
        return _text_of(f"data.chat_template {name}", read_bounded(path_of(name), LARGEST, follow=True))
    except OSError as error:
        raise DataError(f"data.chat_template {name}: {reason(error)}") from None


def _text_of(where: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8 text") from None
