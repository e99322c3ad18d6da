"""Formats of chats and instructions, recognised or named, from JSON and CSV; which reasoning is learned."""

from __future__ import annotations

import csv
import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.chats import CHATML, chat, chatml_tokenizer, say
from training.config import ConfigError, load_texts
from training.data.errors import DataError
from training.data.examples import tables
from training.data.examples.example import Example, example_of
from training.data.examples.formats import BadRow, Shape
from training.data.examples.prepare_examples import ExampleSettings, Plan, plan_of, prepare_examples
from training.data.index import read_index
from training.prepare.examples import _marked

# What DeepSeek-R1's and Qwen3's templates do with reasoning, in ChatML: R1 drops it in every turn and opens
# the next one; Qwen3 keeps it in the last turn and closes an empty one if there is none.
R1 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{{ '\\n' }}{{ m['content'].split('</think>')[-1] }}"
    "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n<think>\\n' }}{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{{ '\\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think>\\n' }}{% if '</think>' in m['content'] %}"
    "{{ m['content'].split('</think>')[0].replace('<think>', '').strip() }}{% endif %}"
    "{{ '\\n</think>\\n\\n' }}{% endif %}"
    "{{ m['content'].split('</think>')[-1].strip() }}<|im_end|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)
TOOLED = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m['role'] }}{{ '\\n' }}{{ m['content'] or '' }}{% for call in m['tool_calls'] or [] %}"
    "[{{ call.function.name + ARGUMENTS }}]{% endfor %}<|im_end|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)
ALPACA = [{"instruction": f"name {n}", "input": "" if n % 2 else say(2, n), "output": say(3, n)} for n in range(6)]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "cat"}'}}
SHAPE = Shape("text")


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatml_tokenizer(tmp_path_factory.mktemp("tokenizer") / "chatml")


Planned = Callable[..., Plan]


@pytest.fixture
def planned(chatml: Path, tmp_path: Path) -> Planned:
    """Plan the preparation of rows, or of a file, with a template and named settings."""

    def run(rows: list[Any] | Path, template: str = CHATML, **changed: Any) -> Plan:
        source, jinja = rows, tmp_path / "template.jinja"
        if isinstance(rows, list):
            source = tmp_path / "rows.jsonl"
            source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        jinja.write_text(template)
        settings = ExampleSettings(
            str(source), "text", 0.2, str(chatml), str(jinja), 400, 256, True, "truncate", "error", **changed
        )
        return plan_of(settings)

    return run


def shown(plan: Plan) -> list[str]:
    """Return each example's text, with what is learned in double brackets."""
    from collections import Counter

    encoded = plan.encoder.encode(list(plan.examples(Counter())))
    for one in encoded:
        if isinstance(one, BadRow):
            raise one
    return [_marked(one, plan).partition("\n")[2] for one in encoded if not isinstance(one, BadRow)]


def messages(example: Example) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in example.messages]


@pytest.mark.parametrize(
    ("row", "shape", "name", "expected"),
    [
        ({"instruction": "add", "input": "2 3", "output": "5"}, SHAPE, "alpaca",
         [("user", "add\n\n2 3"), ("assistant", "5")]),
        ({"instruction": "hi", "input": None, "output": "ho", "system": "be kind", "history": [["a", "b"]]},
         SHAPE, "alpaca",
         [("system", "be kind"), ("user", "a"), ("assistant", "b"), ("user", "hi"), ("assistant", "ho")]),
        ({"instruction": "add", "context": "2", "response": "3", "category": "x"},
         Shape("text", None, {"input": "context", "output": "response"}), "alpaca",
         [("user", "add\n\n2"), ("assistant", "3")]),
        ({"instruction": "a", "output": "b", "text": "c"}, Shape("text", "alpaca"), "alpaca",
         [("user", "a"), ("assistant", "b")]),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, SHAPE,
         "sharegpt", [("user", "a"), ("assistant", "b")]),
        ({"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
          "system": "s"}, SHAPE, "sharegpt", [("system", "s"), ("user", "a"), ("assistant", "b")]),
        ({"dialogue": [{"who": "user", "says": "a"}, {"who": "assistant", "says": "b"}]},
         Shape("text", None, {"messages": "dialogue", "role": "who", "content": "says"}), "messages",
         [("user", "a"), ("assistant", "b")]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                       {"role": "assistant", "content": "b"}]}, SHAPE, "messages",
         [("user", "a"), ("assistant", "b")]),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": []}]},
         SHAPE, "messages", [("user", "a"), ("assistant", "b")]),
        ({"conversations": '[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]'}, SHAPE, "sharegpt",
         [("user", "a"), ("assistant", "b")]),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, Shape("text", None, {"completion": "chosen"}),
         "prompt-completion", []),
        ({"messages": None, "prompt": "a", "completion": "b"}, SHAPE, "prompt-completion", []),
        ({"prompt": "a", "completion": "b", "chosen": None, "rejected": None, "label": None}, SHAPE,
         "prompt-completion", []),
        ({"instruction": "a", "output": "b", "text": None, "messages": None}, SHAPE, "alpaca",
         [("user", "a"), ("assistant", "b")]),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "weight": 0},
                       {"role": "assistant", "content": "b"}]}, SHAPE, "messages",
         [("user", "a"), ("assistant", ""), ("assistant", "b")]),
        ({"conversations": None, "text": "t1"}, SHAPE, "text", []),
        ({"prompt": "a", "completion": None, "text": "t1"}, SHAPE, "text", []),
    ],
)  # fmt: skip
def test_a_row_is_read_in_the_format_that_its_fields_show(
    row: dict[str, Any], shape: Shape, name: str, expected: list[tuple[str, str]]
) -> None:
    example = example_of("f, line 1", row, shape)
    assert (example.format, messages(example)) == (name, expected)
    assert example.evidence.startswith("named" if shape.format else "recognised by the field")


@pytest.mark.parametrize(
    ("row", "shape", "why"),
    [
        ({"instruction": "a", "output": "b", "text": "c"}, SHAPE,
         "ambiguous, alpaca (fields instruction, output) or text (fields text); name one in data.format"),
        ({"messages": [], "conversations": []}, SHAPE, "messages (fields messages) or sharegpt"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, SHAPE, "is for DPO or a reward model"),
        ({"chosen": [], "rejected": []}, SHAPE, "data.columns: {messages: chosen}"),
        ({"conversations": [], "chosen": {"from": "gpt"}, "rejected": {}}, SHAPE, "fine-tuning learns one answer"),
        ({"prompt": "a", "completion": "b", "label": False}, SHAPE, "is for KTO"),
        ({"prompt": "a", "completion": "b", "label": "False"}, SHAPE, "is for KTO"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, SHAPE, "is for DPO or a reward model"),
    ],
)  # fmt: skip
def test_rows_that_would_teach_something_else_end_the_preparation(row: dict[str, Any], shape: Shape, why: str) -> None:
    """data.bad_rows cannot skip them, because every row of such a file is one."""
    with pytest.raises(DataError) as error:
        example_of("f, line 1", row, shape)
    assert not isinstance(error.value, BadRow)
    assert str(error.value).startswith("f, line 1: ")
    assert why in str(error.value)


DEEP: Any = []
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("row", "shape", "why"),
    [
        ({"instruction": "a", "response": "b"}, SHAPE, "has an instruction, but no field 'output'"),
        ({"instruction": "a", "output": "b", "history": ["c"]}, SHAPE, "not a list of pairs"),
        ({"conversations": "a"}, SHAPE, "field 'conversations' is a string, not a list"),
        ({"messages": "[{'role': 'user'}]"}, SHAPE, "field 'messages' is not JSON"),
        ({"messages": None, "conversations": None}, SHAPE, "field 'messages' is null, not a list"),
        ({"prompt": "a", "completion": None, "text": None}, SHAPE, "field 'completion' is null, not a string"),
        ({"prompt": None, "instruction": "a"}, SHAPE, "has an instruction, but no field 'output'"),
        ({"conversations": [{"from": "bot", "value": "a"}]}, SHAPE, "conversations[0]: the speaker is 'bot'"),
        ({"conversations": [{"from": "gpt", "values": "a"}]}, SHAPE, "did you mean 'values'?"),
        ({"conversations": [{"from": "function_call", "value": "{"}]}, SHAPE, "field 'value' is not JSON"),
        ({"text": "a"}, Shape("text", "alpaca"), "data.format is alpaca, but no field 'instruction'"),
        ({"instruction": "a", "reply": "b"}, Shape("text", None, {"output": "repply"}),
         "data.columns.output: no field 'repply'"),
        ({**chat("a", "b"), "tools": "[1]"}, SHAPE, "field 'tools' is not a list of objects"),
        ({**chat("a", "b"), "tools": [{"a": DEEP}]}, SHAPE, "field 'tools' has more than 64 levels"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, SHAPE,
         "tool_calls[0] is not a call of a function"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, SHAPE,
         "a part that is not text"),
        ({"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f"}}]}, SHAPE,
         "messages[0]: function calls in OpenAI's older form; write tool_calls"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}, SHAPE, "weight is 0.5, not 0 or 1"),
        ({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}, SHAPE, "there is nothing to learn"),
    ],
)  # fmt: skip
def test_a_bad_row_of_a_format_is_one_error(row: dict[str, Any], shape: Shape, why: str) -> None:
    with pytest.raises(BadRow) as error:
        example_of("f, line 1", row, shape)
    assert str(error.value).startswith("f, line 1")
    assert why in str(error.value)


@pytest.mark.parametrize("name", ["rows.json", "lines.json", "rows.csv", "rows.tsv"])
def test_arrays_and_tables_make_the_dataset_of_their_lines(
    name: str, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array is read piece by piece: here 7 characters at a time, so values are cut everywhere."""
    rows = [{**row, "input": f'{row["input"]}\n"é, {{['} for row in ALPACA]
    lines = planned(rows)
    path = tmp_path / name
    if name == "rows.json":
        path.write_text("\ufeff " + json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    elif name == "lines.json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:  # with the index of pandas, which has no name
            writer = csv.DictWriter(file, ["", *rows[0]], delimiter="\t" if name == "rows.tsv" else ",")
            writer.writeheader()
            writer.writerows({"": number, **row} for number, row in enumerate(rows))
    monkeypatch.setattr(tables, "_CHUNK", 7)
    other = planned(path)
    assert shown(other) == shown(lines)
    if name == "rows.json":
        wheres = [row.where for row in other.rows.read() if isinstance(row, tables.Row)]
        assert wheres[:2] == [f"{path}, line 2, row 1", f"{path}, line 7, row 2"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "a.json",
            '[{"text": "a"},\n{"text": tru}]',
            "a.json, line 2, row 2: not JSON (Expecting value in line 2)",
        ),
        (
            "a.json",
            '[{"text": "a"}\n {"text": "b"}]',
            "a.json, line 2: not JSON (',' or ']' expected after row 1, not '{')",
        ),
        ("a.json", '[{"text": "a"},', "a.json, line 1, row 2: not JSON"),
        ("a.json", '[{"text": "a"}] x', "line 1: not JSON ('x' after the array's end)"),
        ("a.json", '[{"text": "a"}, 12]', "a.json, line 1, row 2: a row must be an object with messages"),
        ("a.json", "[" * 200_000, "nested too deeply"),
        ("a.json", f'[{{"text": {"1" * 5000}}}]', "a.json, line 1, row 1: not JSON (Exceeds the limit"),
        ("a.json", '{"text": "a"}\n{"text"', "a.json, line 2: not JSON"),
        ("a.csv", "text,b\na,1\nc\n", "a.csv, line 3: 1 cells, the header has 2"),
        ("a.csv", "text,text\na,1\n", "a.csv, line 1: the first line must name each column once"),
        ("a.csv", "text,\na,1\n", "a.csv, line 1: the first line must name each column once"),
        ("a.csv", "text;b\na;1\n", ".csv needs commas"),
        ("a.csv", 'text\n"a', "not CSV"),
    ],
)
def test_a_malformed_table_names_file_and_line(
    name: str, text: str, why: str, planned: Planned, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        shown(planned(tmp_path / name))
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '[{"text": "' + "a" * 400_000), ("a.csv", 'text\n"' + "a\n" * 200_000)],
)
def test_a_row_that_does_not_end_is_refused_at_its_limit(
    name: str, text: str, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read to the end of the file."""
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(tables, "MOST_ROW", 2**17)
    with pytest.raises(DataError, match="more than 0 MiB"):
        shown(planned(tmp_path / name))


THOUGHT = chat("hi", "<think>\nold stones\n</think>\n\nthe cat", "why", "<think>\nrain falls\n</think>\n\na mat")
ASKED = "<|im_start|>user\nhi<|im_end|>"


@pytest.mark.parametrize("template", [R1, QWEN3])
@pytest.mark.parametrize("field", [False, True])
def test_learn_says_whether_reasoning_is_learned(template: str, field: bool, planned: Planned) -> None:
    """Only in the last turn, as the model writes it; the template drops the reasoning of earlier turns."""
    row: dict[str, Any] = json.loads(json.dumps(THOUGHT))
    if field:
        row["messages"][3] |= {"content": "a mat", "reasoning_content": "rain falls"}
    reasoning, answer = (shown(planned([row], template, learn=learn))[0] for learn in ("reasoning", "answer"))
    assert "old stones" not in reasoning
    assert reasoning.replace("[[", "").replace("]]", "") == answer.replace("[[", "").replace("]]", "")
    assert answer.endswith("<think>\nrain falls\n</think>\n\n[[a mat<|im_end|>]]")
    opened = "<think>\n[[" if template == R1 else "[[<think>\n"
    assert reasoning.endswith(f"<|im_start|>assistant\n{opened}rain falls\n</think>\n\na mat<|im_end|>]]")


def test_an_answer_without_reasoning_follows_an_empty_one(planned: Planned) -> None:
    """So Alpaca's answers can be learned with the template of DeepSeek-R1, which refuses them otherwise."""
    rows = [{"instruction": "hi", "output": "the cat"}]
    expected = f"{ASKED}<|im_start|>assistant\n<think>\n\n</think>\n\n[[the cat<|im_end|>]]"
    assert shown(planned(rows, R1, learn="answer")) == [expected]
    with pytest.raises(BadRow, match="message 1 has no reasoning"):
        shown(planned(rows, R1, learn="reasoning"))
    with pytest.raises(BadRow, match="not prefix-stable"):
        shown(planned(rows, R1))
    with pytest.raises(DataError, match=r"data\.learn is answer, but the chat template has no </think>"):
        planned(rows, learn="answer")


THINKS = "{% if m['role'] == 'assistant' %}<think>{{ m['reasoning_content'] }}</think>{% endif %}"


@pytest.mark.parametrize("answer", [">", "|", "im_end", "\n>\n", "a > b > c"])
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(("end", "learned_end"), [("<|im_end|>\n", "<|im_end|>]]\n"), ("\n", "\n]]")])
def test_what_is_learned_after_an_answer_does_not_depend_on_it(
    answer: str, thinks: bool, end: str, learned_end: str, planned: Planned
) -> None:
    """The end-of-turn token and the reasoning may hold the answer; without such a token a turn's line end is one."""
    template = (
        "{% for m in messages %}# {{ m['role'] }}{{ '\n' }}THINKS{{ m['content'].strip() }}END{% endfor %}"
        "{% if add_generation_prompt %}# assistant{{ '\n' }}{% endif %}"
    ).replace("THINKS", THINKS if thinks else "").replace("END", end.replace("\n", "{{ '\\n' }}"))  # fmt: skip
    row = chat("hi", answer)
    row["messages"][1]["reasoning_content"] = f"so {answer.strip()}"
    (text,) = shown(planned([row], template))
    assert text.endswith(f"{answer.strip()}{learned_end}"), text


def test_learn_last_leaves_earlier_turns_unlearned(planned: Planned) -> None:
    row = chat("hi", "the cat", "why", "a mat", "dogs")
    (text,) = shown(planned([row], learn="last"))
    assert text.endswith(
        "the cat<|im_end|>\n<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n[[a mat<|im_end|>]]\n"
    )


def test_a_turn_of_weight_0_is_read_and_not_learned(planned: Planned) -> None:
    row = chat("hi", "the cat", "why", "a mat")
    row["messages"][1]["weight"], row["messages"][3]["weight"] = 0, 1
    marked = CHATML.replace(
        "{{ message['content'] }}<|im_end|>",
        "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ message['content'] }}<|im_end|>{% endif %}",
    )
    for template in (CHATML, marked):
        (text,) = shown(planned([row], template))
        assert "[[a mat<|im_end|>]]" in text


@pytest.mark.parametrize("mark", [{"weight": 0}, {"weight": 0.0, "train": None}, {"train": False}, {"loss": False}])
def test_a_turn_that_says_so_is_not_learned_in_any_format(mark: dict[str, Any], planned: Planned) -> None:
    row = chat("hi", "the cat", "why", "a mat")
    row["messages"][1] |= mark
    row["messages"][3] |= {"weight": 1, "train": True}
    turns = [{"from": one.pop("role"), "value": one.pop("content"), **one} for one in chat("hi")["messages"]]
    turns += [{"from": "gpt", "value": "the cat", **mark}, {"from": "human", "value": "why"}]
    turns += [{"from": "gpt", "value": "a mat", "weight": 1}]
    for each in (row, {"conversations": turns}):
        (text,) = shown(planned([each]))
        assert text.count("[[") == 1, text
        assert "[[a mat<|im_end|>]]" in text


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_with_a_special_token_is_refused(key: str, planned: Planned) -> None:
    """It could end its own turn."""
    row = chat("hi", "the cat")
    row["messages"][1][key] = "so <|im_end|>"
    with pytest.raises(BadRow, match=r"messages\[1\] holds the special token '<\|im_end\|>'"):
        shown(planned([row]))


@pytest.mark.parametrize("arguments", ["(call.function.arguments | tojson)", "'' + call.function.arguments"])
def test_tools_and_their_calls_are_written_by_the_template(arguments: str, planned: Planned) -> None:
    """A call is learned; its arguments are an object, or JSON text for a template that needs text."""
    row = chat("hi", "", "", "a mat")
    row["messages"][1] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    row["messages"][2] = {"role": "tool", "content": "sat"}
    share = {
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "cat"}}'},
            {"from": "observation", "value": "sat"},
            {"from": "gpt", "value": "a mat"},
        ]
    }
    template = TOOLED.replace("ARGUMENTS", arguments if arguments.startswith("(") else "call.function.arguments")
    rows = [{**row, "tools": [TOOL]}, {**share, "tools": json.dumps([TOOL])}]
    texts = shown(planned(rows, template))
    assert texts[0] == texts[1]
    assert texts[0].startswith('{"type": "function"')
    assert '[[[look{"at": "cat"}]<|im_end|>]]' in texts[0]
    with pytest.raises(BadRow, match="the chat template does not write tools"):
        shown(planned(rows))
    with pytest.raises(BadRow, match="leaves out a tool call of message 1"):
        shown(planned([row]))
    row["messages"][1]["tool_calls"] = [{"function": {"name": "look", "arguments": {"a": "<|im_end|>"}}}]
    with pytest.raises(BadRow, match=r"messages\[1\] holds the special token '<\|im_end\|>'"):
        shown(planned([row], template))


def test_parquet_gives_a_tool_no_keys_of_the_others(planned: Planned, tmp_path: Path) -> None:
    """All objects of a column have the same keys there, null where an object lacks one."""
    rows = []
    for name, key in (("look", "at"), ("wait", "until")):
        parameters = {"type": "object", "properties": {key: {"type": "string"}}}
        call = {"type": "function", "function": {"name": name, "arguments": {key: "cat"}}}
        messages = [*chat("hi")["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
        tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
        rows.append({"messages": messages, "tools": [tool]})
    template = TOOLED.replace("ARGUMENTS", "(call.function.arguments | tojson)")
    expected = shown(planned(rows, template))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert shown(planned(tmp_path / "rows.parquet", template)) == expected


def test_messages_may_have_times(planned: Planned, tmp_path: Path) -> None:
    """Published chats have when a turn was written, which no template reads."""
    rows = [chat("hi", say(3, start)) for start in range(3)]
    expected = shown(planned(rows))
    for message in (message for row in rows for message in row["messages"]):
        message["timestamp"] = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    plan = planned(tmp_path / "rows.parquet")
    assert shown(plan) == expected
    assert prepare_examples(plan.settings, tmp_path / "data", lambda line: None).is_dir()


def test_datasets_of_the_first_three_formats_are_what_they_were(chatml: Path, tmp_path: Path) -> None:
    """Name and content of a dataset that was prepared before there were other formats."""
    rows: list[Any] = [chat("hi", say(count, count)) for count in range(2, 8)]
    rows += [{"prompt": "dogs may", "completion": " run " + say(count)} for count in range(3)]
    rows += [{"text": say(6, start)} for start in range(3)]
    rows += [{"prompt": chat("why")["messages"], "completion": [{"role": "assistant", "content": say(4, 3)}]}]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(source, (1, 1))
    said: list[str] = []
    settings = ExampleSettings(str(source), "text", 0.2, str(chatml), "auto", 400, 64, True, "truncate", "error")
    made = prepare_examples(settings, tmp_path / "data", said.append)
    assert made.name == "rows-jsonl-examples-86c69f2ed127"
    assert read_index(made).digest == "67541edc122d2e38e235e734a84c6588d714aea91a23e1ba7b2a9a05bb75a9f1"
    assert f"format text, recognised by the field text ({source}, line 10)" in said


def test_wrong_names_of_formats_and_columns_are_errors() -> None:
    model = (
        "model: {architecture: llama, weights: /w, vocab_size: 512, hidden_size: 64, intermediate_size: 64, "
        "num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1}\nsequence_length: 64\n"
        "data: {source: /s, tokenizer: base, DATA}\ntrain: {seed: 7, steps: 2, global_batch_size: 1, "
        "learning_rate: 1.0e-2, eval_every: 1, eval_sequences: 1}\n"
    )
    cell = "parallel: {micro_batch_size: 1}\ncheckpoint: {every: 5}"

    def load(data: str) -> Any:
        texts = {"model": model.replace("DATA", data), "hardware": "device: {type: cpu}", "cell": cell}
        return load_texts({name: (f"{name}.yaml", text) for name, text in texts.items()}).data

    good = load("format: alpaca, columns: {input: context}, learn: last")
    assert (good.format, good.columns, good.learn) == ("alpaca", {"input": "context"}, "last")
    for data, key in (("format: alpacca", "data.format"), ("columns: {inputs: a}", "data.columns")):
        with pytest.raises(ConfigError, match=key):
            load(data)
