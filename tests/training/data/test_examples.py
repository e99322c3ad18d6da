"""Examples: which tokens are learned, how examples are cut and packed, and what is refused."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.training.chats import CHATML, chat, chatml_tokenizer, say
from training.data import tokenizer
from training.data.errors import DataError
from training.data.examples import python_help
from training.data.examples.example_dataset import ExampleDataset
from training.data.examples.packing import pack
from training.data.examples.prepare_examples import ExampleSettings, prepare_examples
from training.data.examples.rows import open_rows
from training.data.index import read_index, verify
from training.data.run_tokenizer import end_ids, prompt_ids
from training.data.sources import SourceFile

# The same text, but the template itself marks the assistant's turns.
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}{{ '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)
# Like reasoning models' templates: thoughts of earlier turns are left out.
FORGETFUL = CHATML.replace(
    "{{ message['content'] }}",
    "{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}",
)
ASKS_OTHERWISE = CHATML.replace("assistant{{ '\\n' }}{% endif %}", "assistant{{ '\\n' }}<think>{% endif %}")

# As Phi's templates: a token behind the last turn ends the chat, beside each turn's own end.
CLOSED = CHATML.removesuffix("{% endif %}") + "{% else %}{{ eos_token }}{% endif %}"


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level tokenizer with ChatML's two special tokens and its template."""
    return chatml_tokenizer(tmp_path_factory.mktemp("tokenizer") / "chatml")


Prepared = Callable[..., Path]


@pytest.fixture
def prepared(chatml: Path, tmp_path: Path) -> Prepared:
    """Write rows as JSON lines and prepare them, with named settings changed."""

    def run(rows: list[Any] | Path | str, **changed: Any) -> Path:
        source = rows
        if isinstance(rows, list):
            source = tmp_path / "rows.jsonl"
            source.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        given: dict[str, Any] = {
            "source": str(source), "text_field": "text", "heldout_fraction": 0.2, "tokenizer": str(chatml),
            "chat_template": "auto", "vocab_size": 400, "sequence_length": 64, "packing": True,
            "overlong": "truncate", "bad_rows": "error",
        }  # fmt: skip
        root = changed.pop("root", tmp_path / "data")
        return prepare_examples(ExampleSettings(**{**given, **changed}), root, lambda line: None)

    return run


def examples(directory: Path, length: int = 64) -> Iterator[tuple[list[int], list[bool]]]:
    """All examples of both splits."""
    for split in ("train", "heldout"):
        dataset = ExampleDataset.open(directory, split, length)
        for sample in range(len(dataset)):
            for tokens, learned in dataset.examples(sample):
                yield tokens.tolist(), learned.tolist()


def texts(directory: Path, length: int = 64) -> set[tuple[str, str]]:
    """Each example as (its text, its learned text)."""
    own = Tokenizer.from_file(str(directory / "tokenizer" / "tokenizer.json"))

    def written(tokens: list[int]) -> str:
        return own.decode(tokens, skip_special_tokens=False)

    return {
        (written(tokens), written([token for token, is_its in zip(tokens, learned, strict=True) if is_its]))
        for tokens, learned in examples(directory, length)
    }


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_only_the_assistants_tokens_are_learned(template: str, prepared: Prepared, tmp_path: Path) -> None:
    """All its turns with their end-of-turn tokens, and nothing else; the ids are the tokenizer's."""
    (tmp_path / "template.jinja").write_text(template)
    rows = [chat("hi", " the cat ", "why\n", "a mat"), chat("dogs", "run")]
    rows[0]["messages"].insert(0, {"role": "system", "content": "the old stones"})
    directory = prepared(rows, chat_template=str(tmp_path / "template.jinja"), sequence_length=128)
    assert {learned for _, learned in texts(directory, 128)} == {
        " the cat <|im_end|>a mat<|im_end|>",
        "run<|im_end|>",
    }
    library = PreTrainedTokenizerFast.from_pretrained(directory / "tokenizer")
    assert library.chat_template == template
    for row in rows:
        expected = library.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=template == MARKED
        )
        found = [learned for tokens, learned in examples(directory, 128) if tokens == expected["input_ids"]]
        assert len(found) == 1
        if template == MARKED:
            assert found[0] == list(map(bool, expected["assistant_masks"]))


def test_prompts_with_completions_and_texts(prepared: Prepared) -> None:
    """A completion is learned with the end of text; of two lists only the second one is learned."""
    before = [*chat("hi", "the cat")["messages"], {"role": "user", "content": "why"}]
    rows = [
        {"prompt": "dogs may", "completion": " run far", "text": "not this"},
        {"prompt": before, "completion": [{"role": "assistant", "content": "a mat"}]},
        {"text": "rain falls <|im_end|>", "id": 3},
    ]
    learned = dict(texts(prepared(rows)))
    begin, end = tokenizer.BOS, tokenizer.EOS
    assert learned[f"{begin}dogs may run far{end}"] == f" run far{end}"
    assert learned[f"{begin}rain falls <|im_end|>{end}"] == f"rain falls <|im_end|>{end}"
    assert [value for key, value in learned.items() if "the cat" in key] == ["a mat<|im_end|>"]


def test_a_prompt_is_encoded_without_what_follows(prepared: Prepared, chatml: Path) -> None:
    """As at inference, although both together would have other tokens."""
    own = Tokenizer.from_file(str(chatml / "tokenizer.json"))
    apart = own.encode("th", add_special_tokens=False).ids + own.encode("e cat", add_special_tokens=False).ids
    assert apart != own.encode("the cat", add_special_tokens=False).ids  # the two encodings differ
    rows = [{"prompt": "th", "completion": "e cat"}, {"prompt": "rain", "completion": "falls"}]
    assert any(tokens[1:-1] == apart for tokens, _ in examples(prepared(rows)))


def test_a_tokenizer_without_template_gets_the_plain_one(prepared: Prepared, tmp_path: Path) -> None:
    """It is kept beside the tokenizer; data without chats gets none."""
    plain = tokenizer.train(iter([say(60)]), 400)
    plain.write(tmp_path / "plain")
    directory = prepared([chat("hi", "the cat"), chat("dogs", "run")], tokenizer=str(tmp_path / "plain"))
    end = tokenizer.EOS
    assert (f"### user\nhi\n\n### assistant\nthe cat{end}\n\n", f"the cat{end}") in texts(directory)
    library = PreTrainedTokenizerFast.from_pretrained(directory / "tokenizer")
    asked = library.apply_chat_template(chat("hi")["messages"], tokenize=False, add_generation_prompt=True)
    assert asked == "### user\nhi\n\n### assistant\n"
    without = prepared([{"text": "a"}, {"text": "mat"}], tokenizer=str(tmp_path / "plain"))
    assert not (without / "tokenizer" / "chat_template.jinja").exists()


def test_a_token_that_ends_a_chat_is_learned_behind_its_last_turn(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(CLOSED)
    rows = [chat("hi", "the cat", "why", "a mat"), chat("dogs", "run")]
    directory = prepared(rows, chat_template=str(tmp_path / "template.jinja"))
    assert {learned for _, learned in texts(directory)} == {
        "the cat<|im_end|>a mat<|im_end|>\n<|end_of_text|>",
        "run<|im_end|>\n<|end_of_text|>",
    }


@pytest.mark.parametrize(
    ("template", "turns", "why"),
    [
        (FORGETFUL, ("hi", "<think>the</think>cat", "why", "mat"),
         "not prefix-stable: message 1 changes when others follow; data.learn: last learns the last turn alone, or"),
        (ASKS_OTHERWISE, ("hi", "cat"), "not prefix-stable: message 1 differs from its generation prompt; give"),
        (CLOSED.replace("<|im_end|>", ""), ("hi", "cat", "why", "mat"), "message 1 has no end when others follow"),
        (CHATML.replace("message['content']", "message['content'] | upper"), ("hi", "cat"), "changes mess"),
        (CHATML + "{{ raise_exception('no systems here') }}", ("hi", "cat"), "no systems here"),
        (MARKED.replace("{% if message['role'] == 'assistant' %}", "{% if loop.last %}"),
         ("hi", "cat", "why", "mat"), "marks 1 turns of the assistant, the messages have 2"),
        ("{% for", ("hi", "cat"), "the chat template"),
        ("{{ '{}'.format() }}", ("hi", "cat"), "cannot render these messages: (tuple|Replacement) index"),
    ],
)  # fmt: skip
def test_a_template_that_would_teach_something_else_is_refused(
    template: str, turns: tuple[str, ...], why: str, prepared: Prepared, tmp_path: Path
) -> None:
    """Otherwise the model would learn tokens that it is never asked for there."""
    (tmp_path / "template.jinja").write_text(template)
    with pytest.raises(DataError, match=why):
        prepared([chat(*turns), chat("dogs", "run")], chat_template=str(tmp_path / "template.jinja"))


def test_a_template_that_asks_for_today_gets_one_date(prepared: Prepared, tmp_path: Path) -> None:
    """Otherwise the data would be others tomorrow. The settings name the date, and a prompt has the same one."""
    (tmp_path / "template.jinja").write_text("{% set day = strftime_now('%Y-%m-%d') %}{{ day }} " + CHATML)
    directory = prepared(GOOD, chat_template=str(tmp_path / "template.jinja"))
    assert all(text.startswith("2024-07-26 <|im_start|>user") for text, _ in texts(directory))
    assert read_index(directory).settings["date"] == "2024-07-26"
    own = PreTrainedTokenizerFast.from_pretrained(directory / "tokenizer")
    assert own.decode(prompt_ids(directory, own, "hi")).startswith("2024-07-26 <|im_start|>user")
    assert "date" not in read_index(prepared(GOOD, root=tmp_path / "other")).settings


def test_a_text_ends_where_the_template_ends_a_turn(prepared: Prepared, tmp_path: Path) -> None:
    """The tokenizer's end of text is another token: without it a sample would go on with the user's next turn."""
    chats, plain = prepared(GOOD), prepared([{"text": "a cat"}, {"text": "a mat"}], root=tmp_path / "plain")
    own = PreTrainedTokenizerFast.from_pretrained(chats / "tokenizer")
    assert own.convert_ids_to_tokens(end_ids(chats, own)) == [tokenizer.EOS, "<|im_end|>"]
    assert end_ids(plain, own) == [own.eos_token_id]


def test_special_tokens_beyond_the_models_vocabulary(prepared: Prepared, chatml: Path, tmp_path: Path) -> None:
    """Gemma 3's tokenizer has one more than the model, for images. A template that writes one is refused."""
    own = PreTrainedTokenizerFast.from_pretrained(chatml)
    size = len(own)
    own.add_special_tokens({"pad_token": "<image>"})
    own.save_pretrained(tmp_path / "own")
    directory = prepared(GOOD, tokenizer=str(tmp_path / "own"), vocab_size=size)
    assert read_index(directory).vocabulary == size
    assert texts(directory) == texts(prepared(GOOD, vocab_size=size, root=tmp_path / "without"))
    (tmp_path / "template.jinja").write_text("<image>" + CHATML)
    with pytest.raises(DataError, match="line 1: the chat template writes '<image>', which is beyond the model's voc"):
        prepared(GOOD, tokenizer=str(tmp_path / "own"), vocab_size=size, chat_template=str(tmp_path / "template.jinja"))
    with pytest.raises(DataError, match=f"more than the model's vocab_size of {size - 9}"):
        prepared([{"text": "a"}], tokenizer=str(tmp_path / "own"), vocab_size=size - 9)


def test_a_tokenizers_template_that_is_no_text_is_one_error(chatml: Path, prepared: Prepared, tmp_path: Path) -> None:
    shutil.copytree(chatml, tmp_path / "own")
    (tmp_path / "own" / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"tokenizer .*own: chat_template\.jinja: not UTF-8 text"):
        prepared(GOOD, tokenizer=str(tmp_path / "own"))


GOOD = [chat("hi", say(3, start)) for start in range(4)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"messages": [', "not JSON"),
        ("[1]", "a row must be an object with messages, or prompt and completion, or text, not a list"),
        ({"mesages": []}, "no field 'text' (fields: mesages)"),
        ({"prompt": "a"}, "has a prompt, but no field 'completion'"),
        ({"messages": "hi"}, "field 'messages' is a string, not a list of messages"),
        ({"messages": []}, "field 'messages' is an empty list"),
        ({"messages": ["hi"]}, "messages[0] is a string, not an object with role and content"),
        ({"messages": [{"role": "user", "contents": "hi"}]}, "did you mean 'contents'?"),
        ({"messages": [{"role": "bot", "content": "hi"}]}, "the role is 'bot', not one of system,"),
        ({"messages": [{"role": "user", "content": None}]}, "field 'content' is null, not a string"),
        (chat("hi"), "no message from the assistant"),
        (chat("hi", " "), "field 'content' is empty"),
        (chat("hi", "a <|im_end|> b"), "messages[1] holds the special token '<|im_end|>'"),
        ({"prompt": [], "completion": "a"}, "field 'prompt' is a list, not a string"),
        ({"text": 3}, "field 'text' is a number, not a string"),
        ({"text": ""}, "field 'text' is empty"),
        ({"text": "half \ud83d"}, "half a surrogate pair"),
    ],
)
def test_a_bad_row_is_one_error_or_left_out_and_counted(row: Any, why: str, prepared: Prepared, tmp_path: Path) -> None:
    """The error has file, row and reason, and no dataset is left."""
    rows = [*GOOD[:2], row, *GOOD[2:]]
    with pytest.raises(DataError) as error:
        prepared(rows)
    assert f"{tmp_path}/rows.jsonl, line 3: " in str(error.value)
    assert why in str(error.value)
    assert str(error.value).endswith("(data.bad_rows: skip leaves such rows out)")
    assert list((tmp_path / "data").iterdir()) == []
    index = read_index(prepared(rows, bad_rows="skip"))
    assert index.source["bad_rows"] == 1
    assert sum(split.documents for split in index.splits.values()) == len(GOOD)


@pytest.mark.parametrize(
    ("rows", "changed", "why"),
    [
        ([GOOD[0]], {}, "only one example, or copies of one; at least two are needed"),
        ([GOOD[0], GOOD[0]], {}, "only one example, or copies of one"),
        (["x"], {"bad_rows": "skip"}, "no example (1 bad rows left out)"),
        (
            [chat(say(99), "a"), chat(say(98), "b")],
            {},
            "no train example is left (2 chats, 2 too long and truncated",
        ),
        (
            [chat(say(80, 3), "a"), *GOOD[:3]],
            {"overlong": "drop", "sequence_length": 40},
            "no heldout example is left (4 chats, 1 too long and left out; more rows, or a larger data.heldout",
        ),
        (GOOD, {"sequence_length": 1}, "sequence_length 1 is too short for a token and its label"),
        (GOOD, {"vocab_size": 300}, "more than the model's vocab_size of 300"),
        (GOOD, {"chat_template": "/nowhere.jinja"}, "data.chat_template /nowhere.jinja: No such file"),
        (
            "nobody/chats@main",
            {},
            "'main' is a branch or a tag, which can move; name a commit of nobody/chats",
        ),
        ("python-hel", {}, "data source python-hel does not exist"),
    ],
)
def test_data_that_cannot_be_used(rows: Any, changed: dict[str, Any], why: str, prepared: Prepared) -> None:
    with pytest.raises(DataError) as error:
        prepared(rows, **changed)
    assert why in str(error.value)


def test_what_happens_to_examples_that_are_too_long(prepared: Prepared, tmp_path: Path) -> None:
    """Truncated, left out, or split so that each token is predicted once, and counted; or an error."""
    rows = [{"text": say(100)}, *({"text": say(4, start)} for start in range(6))]
    whole = max((tokens for tokens, _ in examples(prepared(rows, sequence_length=400), 400)), key=len)
    assert len(whole) > 90
    made = {how: prepared(rows, sequence_length=40, overlong=how) for how in ("truncate", "drop", "split")}
    for how, directory in made.items():
        assert read_index(directory).source[f"overlong_{how}"] == 1
    found = {how: [tokens for tokens, _ in examples(path, 40)] for how, path in made.items()}
    assert whole[:40] in found["truncate"]
    assert len(found["drop"]) == 6
    assert max(map(len, found["drop"])) < 40
    pieces = [piece for piece in found["split"] if piece not in found["drop"]]
    guessed = [token for start in range(0, len(whole) - 1, 39) for token in whole[start + 1 : start + 40]]
    assert sum(len(piece) - 1 for piece in pieces) == len(guessed) == len(whole) - 1
    assert sorted(token for piece in pieces for token in piece[1:]) == sorted(guessed)
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: \d+ tokens, sequence_length is 40"):
        prepared(rows, sequence_length=40, overlong="error")


def test_a_batch_says_where_each_example_begins(prepared: Prepared) -> None:
    """Labels are the next learned token of the same example; positions and documents start again."""
    rows = [chat("hi", say(count, count)) for count in range(2, 14)]
    directory = prepared(rows)
    dataset = ExampleDataset.open(directory, "train", 64)
    batch = dataset.batch([*range(len(dataset)), -1])
    assert batch.tokens() == dataset.tokens
    assert batch.counts() == (read_index(directory).source["train_learned_tokens"],)
    assert (batch.labels[-1] == -100).all()
    assert max(map(len, (dataset.examples(sample) for sample in range(len(dataset))))) > 1
    for row in range(len(dataset)):
        at = 0
        for number, (tokens, learned) in enumerate(dataset.examples(row)):
            part = slice(at, at + len(tokens))
            expected = [*np.where(learned[1:], tokens[1:], -100).tolist(), -100]
            assert batch.input_ids[row, part].tolist() == tokens.tolist()
            assert batch.labels[row, part].tolist() == expected
            assert batch.position_ids[row, part].tolist() == list(range(len(tokens)))
            assert (batch.document_ids[row, part] == number).all()
            at = part.stop
        assert (batch.labels[row, at:] == -100).all()
        assert (batch.document_ids[row, at:] == number + 1).all()


def test_a_batch_says_which_positions_have_a_label(prepared: Prepared) -> None:
    """In sixteenths of the batch, in order; where nearly every position has one, it says nothing."""
    asked = ExampleDataset.open(prepared([chat(say(30, 5), say(4, count)) for count in range(12)]), "train", 64)
    for sample in range(-1, len(asked)):
        batch = asked.batch([sample, -1])
        places = batch.arrays()["labelled"]
        assert set(np.flatnonzero(batch.labels != -100)) <= set(places)
        assert places.tolist() == sorted(set(places)), "no position occurs twice"
        assert len(places) % 8 == 0
        assert 8 <= len(places) <= max(8, batch.counts()[0] + 7) < 2 * 64
    told = ExampleDataset.open(prepared([{"text": say(63, count)} for count in range(12)]), "train", 64)
    assert told.batch([0]).counts()[0] > 60
    assert "labelled" not in told.batch([0]).arrays()


def test_without_packing_each_example_is_a_sample(prepared: Prepared) -> None:
    rows = [chat("hi", say(count, count)) for count in range(2, 14)]
    packed, padded = prepared(rows), prepared(rows, packing=False)
    assert read_index(packed).source["train_samples"] < read_index(padded).source["train_samples"]
    assert read_index(padded).source["train_samples"] == read_index(padded).splits["train"].documents
    assert sorted(examples(packed)) == sorted(examples(padded))


def test_packing_fills_samples_and_keeps_every_example() -> None:
    """Best fit, longest first: no sample is too long, each example occurs once, few samples are needed."""
    generator = np.random.default_rng(5)
    for length in (7, 64, 2048):
        lengths = np.minimum(generator.geometric(3 / length, size=700) + 1, length)
        samples = pack(lengths, length)
        assert sorted(example for sample in samples for example in sample) == list(range(700))
        filled = [int(lengths[sample].sum()) for sample in samples]
        assert max(filled) <= length
        assert len(samples) <= 11 / 9 * np.ceil(lengths.sum() / length) + 1
        assert pack(lengths, length) == samples
    assert pack([4, 4, 3, 3, 1, 1], 8) == [[0, 1], [2, 3, 4, 5]]


def test_the_same_rows_make_the_same_dataset(prepared: Prepared, tmp_path: Path) -> None:
    """From JSON lines, Parquet or a directory of both, byte for byte; other rows make another dataset."""
    rows = [chat("hi", say(count, count)) for count in range(2, 8)]
    lines = prepared(rows)
    table = pa.Table.from_pylist(rows)
    (tmp_path / "both").mkdir()
    pq.write_table(table, tmp_path / "rows.parquet")
    pq.write_table(table.slice(0, 3), tmp_path / "both" / "a.parquet")
    rest = "".join(json.dumps(row) + "\n" for row in rows[3:])
    (tmp_path / "both" / "b.jsonl").write_text(rest)
    digests = {
        read_index(path).digest for path in (lines, prepared(tmp_path / "rows.parquet"), prepared(tmp_path / "both"))
    }
    assert len(digests) == 1
    verify(lines)
    assert read_index(prepared([*rows, chat("why", "mat")], root=tmp_path / "other")).digest not in digests


def test_a_directory_of_texts(prepared: Prepared, tmp_path: Path) -> None:
    """Each file is an example; one that is not text is a bad row."""
    (tmp_path / "files").mkdir()
    for start in range(5):
        (tmp_path / "files" / f"{start}.txt").write_text(say(5, start))
    assert len(list(examples(prepared(tmp_path / "files")))) == 5
    (tmp_path / "files" / "9.bin").write_bytes(b"\xff\0")
    with pytest.raises(DataError, match=r"9\.bin: not UTF-8 text"):
        prepared(tmp_path / "files")
    (tmp_path / "files" / "9.bin").rename(tmp_path / "files" / "9.csv.gz")
    with pytest.raises(DataError, match=r"9\.csv\.gz: this compression is not read; unpack it, or use \.jsonl\.gz"):
        prepared(tmp_path / "files")
    skipped = prepared(tmp_path / "files", bad_rows="skip")
    assert read_index(skipped).source["bad_rows"] == 1


def test_files_beside_rows_are_not_examples(prepared: Prepared, tmp_path: Path) -> None:
    """A page about the data is left out; a table in another format is refused instead of learned as text."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "README.md").write_text(say(30))
    (tmp_path / "set" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GOOD))
    assert len(list(examples(prepared(tmp_path / "set")))) == len(GOOD)
    (tmp_path / "set" / "z.csv").write_text("prompt,completion\na,b\n")
    assert open_rows(str(tmp_path / "set"), "text").about.endswith(
        "set: 1 file, 0.0 MiB; left out: z.csv, README.md (beside "
        ".jsonl, .ndjson, .jsonl.gz, .ndjson.gz, .json.gz and .parquet no other file is read)"
    )
    for name in ("a.txt", "b.txt"):
        (tmp_path / "set" / name).touch()
    assert "left out: z.csv, README.md, a.txt and 1 more (" in open_rows(str(tmp_path / "set"), "text").about
    for name in ("a.txt", "b.txt", "z.csv"):
        (tmp_path / "set" / name).unlink()
    (tmp_path / "set" / "rows.jsonl").rename(tmp_path / "set" / "rows.arrow")
    for name in ("dataset_info.json", "state.json"):  # as `Dataset.save_to_disk` writes them
        (tmp_path / "set" / name).write_text("{\n}")
    with pytest.raises(DataError, match=r"rows\.arrow: Arrow files are not read; write Parquet: datasets\.load_from"):
        prepared(tmp_path / "set")
    (tmp_path / "set" / "notes.txt").touch()
    with pytest.raises(
        DataError,
        match=r"rows\.arrow: cannot be read as rows; convert it to \.jsonl, \.json, \.csv or \.parquet",
    ):
        prepared(tmp_path / "set")


def test_ndjson_is_json_lines_and_rows_of_another_name_are_refused(prepared: Prepared, tmp_path: Path) -> None:
    """As text, the braces and the user's turns would be learned too."""
    lines = "".join(json.dumps(row) + "\n" for row in GOOD)
    expected = texts(prepared(GOOD))
    (tmp_path / "chats.ndjson").write_text(lines)
    (tmp_path / "chats.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("chats.ndjson", "chats.ndjson.gz"):
        assert texts(prepared(tmp_path / name)) == expected
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "chats.txt").write_text(f"\n {lines}")
    for source in (tmp_path / "set", tmp_path / "set" / "chats.txt"):
        with pytest.raises(DataError, match=r"chats\.txt: looks like rows of JSON; name it \.jsonl"):
            prepared(source)
    (tmp_path / "set" / "chats.txt").write_text("{ a brace }\n\n" + "\n\n".join(say(400, n) for n in range(4)))
    assert texts(prepared(tmp_path / "set" / "chats.txt", overlong="split"))


def test_equal_rows_are_in_the_same_split(prepared: Prepared) -> None:
    """The content decides about the split, so no held-out example is trained on."""
    rows = [chat("hi", say(2, start % 15)) for start in range(60)]
    directory = prepared(rows)
    sides = [
        {tuple(tokens.tolist()) for sample in range(len(dataset)) for tokens, _ in dataset.examples(sample)}
        for dataset in (ExampleDataset.open(directory, split, 64) for split in ("train", "heldout"))
    ]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]


def test_python_help_gives_questions_and_answers(tmp_path: Path) -> None:
    """Topics of the reference, and functions by signature and the first paragraph of their docstring."""
    topics = dict(python_help._topics())
    question, answer = topics["topic assert"]
    assert question["content"] == "Explain assert."
    assert answer["content"].startswith('The "assert" statement\n***')
    path = tmp_path / "shop.py"
    path.write_text(
        "class Till:\n    def pay(self, sum: int = 3, *, tip=None) -> None:\n"
        '        """Take the money.\n        Much of it.\n\n        And more."""\n'
    )
    found = list(python_help._module(SourceFile(path, "shop.py", 1, 1)))
    question, answer = found[0][1]
    assert question["content"] == "What does shop.Till.pay(self, sum: int=3, *, tip=None) do?"
    assert answer["content"] == "Take the money.\nMuch of it."
