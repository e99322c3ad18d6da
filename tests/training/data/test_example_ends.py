"""The preparation says which chats do not teach a model to stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.chats import CHATML, chat, chatml_tokenizer
from training.data.examples.prepare_examples import ExampleSettings, prepare_examples
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
