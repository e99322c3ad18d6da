"""A tokenizer's chat template: turns messages into one text with the positions of the assistant's turns.

transformers' own code renders the templates, in its sandbox. If a template marks the assistant's turns
(`{% generation %}`), these marks are used. Otherwise an assistant's turn is the difference between the
rendering with it and the prompt that asks for it (`add_generation_prompt`). So a model learns to continue
exactly where it will be asked to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.data.errors import DataError, reason
from training.data.examples.example import ASSISTANT, BadRow, Message
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
DATE = "26 Jul 2024"
LARGEST = 2**20  # bytes of a template's file
LONGEST, MOST_MEMORY = 30.0, 2**31  # seconds and bytes to render one conversation
_WATCHDOG = Watchdog()
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template and the special tokens that it may use (`bos_token`, `eos_token`, ...)."""

    text: str
    special: dict[str, str]

    def digest(self) -> str:
        """Return a digest of the template and of the tokens that it may use."""
        content = "\0".join([self.text, *(f"{key}={self.special[key]}" for key in sorted(self.special))])
        return hashlib.sha256(content.encode()).hexdigest()

    def check(self) -> None:
        """Raise DataError if the template is not valid or its text depends on the current date."""
        if "strftime_now" in self.text and "date_string" not in self.text:
            raise DataError("the chat template writes today's date; give another in data.chat_template")
        try:
            self.render([{"role": "user", "content": "a"}], add_generation_prompt=True)
        except BadRow as error:
            raise DataError(str(error)) from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """Return the messages as one text; BadRow if the template refuses them."""
        return self._rendered(messages, add_generation_prompt=add_generation_prompt)[0]

    def render_learned(
        self, where: str, messages: Sequence[Message], learned_from: int
    ) -> tuple[str, list[Span]]:
        """Return the text and the spans of the assistant's turns from message `learned_from` on.

        A turn's span includes its end-of-turn token, but no white space after it. Raises BadRow if the
        template refuses the messages, changes what the assistant says, or changes a turn when others follow:
        then it is not what the model would be asked to write.
        """
        try:
            if _MARKED.search(self.text):
                return self._marked(messages, learned_from)
            return self._by_prefixes(messages, learned_from)
        except BadRow as error:
            raise BadRow(f"{where}: {error}") from None

    def _marked(self, messages: Sequence[Message], learned_from: int) -> tuple[str, list[Span]]:
        text, spans = self._rendered(messages, return_assistant_tokens_mask=True)
        turns = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
        if len(spans) != len(turns):
            raise BadRow(
                f"the chat template marks {len(spans)} turns of the assistant, the messages have {len(turns)}"
            )
        return text, [span for turn, span in zip(turns, spans, strict=True) if turn >= learned_from]

    def _by_prefixes(self, messages: Sequence[Message], learned_from: int) -> tuple[str, list[Span]]:
        text = self.render(messages)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT or number < learned_from:
                continue
            prompt = self.render(messages[:number], add_generation_prompt=True)
            turn = self.render(messages[: number + 1]) if number + 1 < len(messages) else text
            if not turn.startswith(prompt) or not text.startswith(turn):
                raise BadRow(
                    f"the chat template is not prefix-stable: message {number} differs from its generation "
                    "prompt, or changes when others follow; give another in data.chat_template"
                )
            said = turn[len(prompt) :]
            if message["content"].strip() not in said:
                raise BadRow(f"the chat template changes message {number}")
            spans.append((len(prompt), len(prompt) + len(self._without_tail(said, message["content"]))))
        return text, spans

    def _without_tail(self, said: str, content: str) -> str:
        """Cut white space after the end-of-turn token, because a model stops at that token."""
        tail = said[said.rindex(content.strip()) + len(content.strip()) :]
        return said.rstrip() if tail.strip() else said

    def _rendered(self, messages: Sequence[Message], **how: bool) -> tuple[str, list[Span]]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        tokens: dict[str, Any] = {**self.special, "date_string": DATE}
        try:
            with _WATCHDOG.limit(LONGEST), memory(MOST_MEMORY):
                texts, spans = render_jinja_template(
                    [list(messages)], chat_template=self.text, **how, **tokens
                )
        except (TooLong, MemoryError, RecursionError):
            most = f"{LONGEST:.0f} s or {MOST_MEMORY >> 30} GiB"
            raise DataError(f"the chat template {self.text[:40]!r}... needs more than {most}") from None
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            first = str(error).partition("\n")[0]
            raise BadRow(f"the chat template cannot render these messages: {first}") from None
        return texts[0], [(start, end) for start, end in spans[0]] if spans else []


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
        return ChatTemplate(files[TEMPLATE].decode("utf-8"), special)
    own = settings.get("chat_template")
    if isinstance(own, list):  # several, by name
        own = {item.get("name"): item.get("template") for item in own}.get("default")
    return ChatTemplate(own if isinstance(own, str) else PLAIN, special)


def _template_file(name: str) -> str:
    try:
        return read_bounded(path_of(name), LARGEST, follow=True).decode()
    except OSError as error:
        raise DataError(f"data.chat_template {name}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise DataError(f"data.chat_template {name}: not UTF-8 text") from None
