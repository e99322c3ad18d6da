"""Where an answer begins and ends: the first turn of a chat, and chats that do not teach a model to stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.chats import CHATML, chat, chatml_tokenizer
from training.data.examples.formats import BadRow
from training.data.examples.prepare_examples import ExampleSettings, prepare_examples
from training.data.examples.template import ChatTemplate
from training.data.index import read_index

BARE = CHATML.replace("<|im_end|>", "").replace("<|im_start|>", "### ")
MARKED_WITHOUT_END = CHATML.replace(
    "{{ message['content'] }}",
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}",
)
WHY = "2 chats whose answer ends without a special token, so that the model does not learn to stop"


@pytest.mark.parametrize(("template", "said"), [(CHATML, False), (BARE, True), (MARKED_WITHOUT_END, True)])
def test_answers_without_an_end_are_counted(template: str, said: bool, tmp_path: Path) -> None:
    """A template's own marks may leave the end out too. The count is not a part of the dataset."""
    (tmp_path / "template.jinja").write_text(template)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(chat("hi", text)) + "\n" for text in ("the cat", "a mat")))
    tokenizer, lines = chatml_tokenizer(tmp_path / "tokenizer"), list[str]()
    settings = ExampleSettings(
        str(tmp_path / "rows.jsonl"), "text", 0.2, str(tokenizer), str(tmp_path / "template.jinja"), 402, 64, True,
        "truncate", "error",
    )  # fmt: skip
    made = prepare_examples(settings, tmp_path / "data", lines.append)
    assert (WHY in lines[-1]) is said
    assert not any("end" in key for key in read_index(made).source)


def test_chats_that_are_already_text_are_named(tmp_path: Path) -> None:
    """As in guanaco-llama2: a special token in a text is not one, so that no turn ends."""
    rows = [{"text": f"<|im_start|>user\n{text}<|im_end|>\n"} for text in ("the cat", "a mat")]
    rows += [{"prompt": "why<|im_end|>", "completion": "so"}, {"text": "dogs may run"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer, lines = chatml_tokenizer(tmp_path / "tokenizer"), list[str]()
    settings = ExampleSettings(
        str(tmp_path / "rows.jsonl"), "text", 0.2, str(tokenizer), "auto", 402, 64, True, "truncate", "error"
    )
    prepare_examples(settings, tmp_path / "data", lines.append)
    assert "3 texts that hold the name of a special token, which is read as letters" in lines[-1]


# As Llama 3's (the text begins with the first message), Zephyr's (the header stands in the loop), Qwen2.5's (a system
# message is added) and Phi 3's (a token ends the chat).
FIRST = CHATML.replace("<|im_start|>{{", "{{ '<bos>' if loop.first }}<|im_start|>{{", 1)
LOOPED = CHATML.replace("{% endfor %}{% if add_generation_prompt %}", "{% if loop.last and add_generation_prompt %}")
LOOPED = LOOPED + "{% endfor %}"
WITH_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}" + CHATML
CLOSED = CHATML.removesuffix("{% endif %}") + "{% else %}<eos>{% endif %}"


@pytest.mark.parametrize("template", [CHATML, FIRST, LOOPED, WITH_SYSTEM, CLOSED])
def test_the_header_of_a_chats_first_answer_is_not_learned(template: str) -> None:
    """Chats of companions and of ShareGPT may begin with the assistant."""
    messages = [{"role": "assistant", "content": "the cat"}, *chat("why", "a mat")["messages"]]
    text, spans = ChatTemplate(template, {"eos_token": "<eos>"}).render_learned("row 1", messages, 0)
    assert [text[start:end].removesuffix("<eos>").strip() for start, end in spans] == [
        "the cat<|im_end|>",
        "a mat<|im_end|>",
    ]


def test_a_template_that_refuses_an_answer_first_is_one_bad_row() -> None:
    refusing = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}" + CHATML
    messages = [{"role": "assistant", "content": "the cat"}]
    with pytest.raises(BadRow, match="user first"):
        ChatTemplate(refusing, {}).render_learned("row 1", messages, 0)
