"""`yard data`: prepare, inspect, verify; one error for bad input, exit codes, JSON."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import bench_data
from tests.house import printed
from tests.training.data.stream.conftest import serve, shard_bytes
from tools import cli
from training.config import apply_override, load_texts
from training.data.bert.prepare_pairs import prepare_pairs
from training.data.examples.example_dataset import ExampleDataset
from training.data.examples.prepare_examples import ExampleSettings, prepare_examples
from training.data.index import read_index

__all__ = ["serve", "shard_bytes"]
ROOT = Path(__file__).resolve().parents[2]
Yard = Callable[..., tuple[int, str, str]]


@pytest.fixture
def yard(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Yard:
    """Run `yard data` in this process, with local/ in the test's directory."""
    monkeypatch.setattr("tools.core.repo.local", lambda: tmp_path / "local")

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.invoke(["data", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Sixty documents of known lengths: 10, 20, ... bytes."""
    path = tmp_path / "rows.jsonl"
    texts = ["".join(chr(97 + (n * i) % 26) for i in range(10 * n)) for n in range(1, 61)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def dataset(yard: Yard, rows: Path) -> Path:
    code, out, _ = yard("prepare", rows, "--vocab-size", 300, "--heldout-fraction", 0.2, "--json")
    assert code == 0
    return Path(json.loads(out)["directory"])


def test_prepare_says_what_it_made_and_finds_it_again(yard: Yard, rows: Path, tmp_path: Path) -> None:
    code, out, err = yard("prepare", rows, "--vocab-size", 300)
    assert (code, "60 documents" in err) == (0, True)
    (directory,) = (tmp_path / "local" / "data").iterdir()
    index = read_index(directory)
    assert out.splitlines()[0].startswith(f"{directory}: 60 documents, ")
    assert out.splitlines()[1] == f"  digest {index.digest}"
    assert yard("prepare", rows, "--vocab-size", 300) == (0, out, "")


def test_several_sources_are_one_dataset(yard: Yard, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"text": "one more"}\n')
    code, out, _ = yard("prepare", rows, tmp_path / "more.jsonl", "--vocab-size", 300, "--json")
    assert (code, json.loads(out)["documents"]) == (0, 61)


def test_inspect_counts(yard: Yard, dataset: Path) -> None:
    code, out, _ = yard("inspect", dataset, "--sequence-length", 64, "--json")
    assert code == 0
    (found,) = json.loads(out)
    index = read_index(dataset)
    for name, split in found["splits"].items():
        starts = np.load(dataset / index.splits[name].starts).astype(int)
        lengths = np.diff([*starts, index.splits[name].tokens])
        assert split["documents"] == len(lengths)
        assert split["tokens"] == lengths.sum()
        assert (split["shortest"], split["longest"]) == (lengths.min(), lengths.max())
        assert split["median"] == np.median(lengths)
        for upper, count in split["histogram"]:
            assert count == np.sum((lengths > upper // 2) & (lengths <= upper))
        assert sum(count for _, count in split["histogram"]) == len(lengths)
        samples = (lengths.sum() - 1) // 64
        assert split["samples"] == samples
        assert split["waste"] == pytest.approx(1 - samples * 64 / lengths.sum())
        assert split["padded"] == pytest.approx(1 - lengths.sum() / (np.ceil(lengths / 64).sum() * 64))


def test_inspect_prints_all_datasets(yard: Yard, dataset: Path) -> None:
    code, out, _ = yard("inspect")
    assert code == 0
    assert out.startswith(f"{dataset}\n")
    assert "packing waste" in out
    assert "documents" in out
    assert any(line.strip().startswith("<= ") and line.endswith("#") for line in out.splitlines())


def test_verify_finds_damage(yard: Yard, dataset: Path) -> None:
    code, out, _ = yard("verify")
    assert (code, out.startswith(f"PASS: {dataset} is whole")) == (0, True)
    shard = dataset / "train-00000.bin"
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.write_bytes(data)
    code, out, _ = yard("verify", dataset.name)
    assert (code, out.startswith(f"FAIL: {dataset} is damaged")) == (1, True)
    assert "train-00000.bin is damaged: sha256 does not match" in out
    code, out, _ = yard("verify", dataset, "--json")
    (verdict,) = json.loads(out)
    assert (code, verdict["verdict"], verdict["directory"]) == (1, "FAIL", str(dataset))


def test_what_cannot_be_read_is_not_called_damaged(yard: Yard, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        if path.name == "train-00000.bin":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)
    code, out, _ = yard("verify", dataset)
    assert (code, out.startswith(f"CANNOT TELL: {dataset} cannot be read here")) == (3, True)
    assert "train-00000.bin: Permission denied" in out
    assert "remove" not in out


def test_examples_of_fine_tuning_are_counted_and_verified(yard: Yard, dataset: Path, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    pairs = [{"prompt": "q" * n, "completion": "a" * (2 * n)} for n in range(1, 41)]
    chats.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    settings = ExampleSettings(
        str(chats), "text", 0.2, str(dataset / "tokenizer"), "auto", 300, 64, True, "truncate", "error"
    )
    made = prepare_examples(settings, dataset.parent, lambda line: None)
    code, out, _ = yard("inspect", made, "--json")
    (found,) = json.loads(out)
    assert (code, found["sequence_length"]) == (0, 64)
    splits = found["splits"]
    assert splits["train"]["documents"] + splits["heldout"]["documents"] == 40
    for name, split in splits.items():
        samples = ExampleDataset.open(made, name, 64)
        held = sum(int(samples.batch([index], [0]).arrays()["document_ids"].size) for index in range(len(samples)))
        assert (split["samples"], held) == (len(samples), len(samples) * 64)
        assert split["waste"] == pytest.approx(1 - split["tokens"] / held)
    assert "40 pair" in yard("inspect", made)[1]
    assert_damage_is_found(yard, made, "train-samples.npy")
    assert yard("inspect", made, "--sequence-length", 32)[0] == 2


def test_sentence_pairs_are_counted_and_verified(yard: Yard, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(12):
        lines = [f"sentence {i} of document {number} " + "word " * (i % 7) for i in range(number + 1)]
        (text / f"{number}.txt").write_text("\n".join(lines))
    root = tmp_path / "local" / "data"
    made = prepare_pairs(str(text), "text", 0.2, "train", 120, 32, root, lambda line: None)
    code, out, _ = yard("inspect", "--json")
    (found,) = json.loads(out)
    assert (code, found["settings"]["kind"]) == (0, "sentence pairs")
    for name, split in found["splits"].items():
        sentences = np.fromfile(made / f"{name}-sentences.bin", "<u8").astype(int)
        runs = np.fromfile(made / f"{name}-runs.bin", "<u8").reshape(-1, 2).astype(int)
        filled = [min(sentences[stop] - sentences[first], 29) + 3 for first, stop in runs]
        assert split["samples"] == len(runs) > 0
        assert split["waste"] == pytest.approx(1 - sum(filled) / (32 * len(runs)))
    assert "packing waste" in yard("inspect")[1]
    assert_damage_is_found(yard, made, "train-runs.bin")


def assert_damage_is_found(yard: Yard, dataset: Path, file: str) -> None:
    """A whole dataset is reported as whole. With one flipped bit the file is named."""
    code, out, _ = yard("verify", dataset)
    assert (code, out.startswith(f"PASS: {dataset} is whole")) == (0, True)
    data = bytearray((dataset / file).read_bytes())
    data[-1] ^= 1
    (dataset / file).write_bytes(data)
    code, out, _ = yard("verify", dataset)
    assert (code, f"{file} is damaged: sha256 does not match" in out) == (1, True)
    data[-1] ^= 1
    (dataset / file).write_bytes(data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare"], "error: Missing argument 'SOURCE...'"),
        (["prepare", "nowhere.jsonl"], "error: data source nowhere.jsonl does not exist"),
        (["prepare", "{rows}", "--vocab-size", "9"], "error: vocab_size 9 is too small"),
        (
            ["prepare", "{rows}", "--heldout-fraction", "1"],
            "error: held-out fraction 1.0 is not between 0 and 1",
        ),
        (
            ["prepare", "{rows}", "--text-field", "txt"],
            "error: {rows}, line 1: no field 'txt' (fields: text)",
        ),
        (["prepare", "{rows}", "--tokenizer", "/nowhere"], "error: tokenizer /nowhere: "),
        (["prepare", "https://h/*.jsonl"], "error: data source https://h/*.jsonl: a web server cannot list"),
        (["prepare", "hf://datasets/allenai/c4/en/x.json.gz"], "error: data source hf://datasets/allenai/c4"),
        (["prepare", "{packed}"], "error: data source {packed}: this compression is not read; unpack it, or use"),
        (["inspect", "no-such"], "error: no such dataset: no-such"),
        (["verify", "{directory}"], "error: {directory} is not a dataset: it has no index.json"),
        (["verify"], "error: no dataset under"),
        (["inspects"], "error: no such command: inspects"),
    ],
)
def test_bad_input_is_one_error(yard: Yard, rows: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    known = {"rows": rows, "directory": tmp_path, "packed": tmp_path / "a.jsonl.zst"}
    known["packed"].write_bytes(b"\x28\xb5\x2f\xfd")
    code, out, err = yard(*(text.format(**known) if "{" in text else text for text in arguments))
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert (code, out, len(lines)) == (2, "", 1)
    assert lines[0].startswith(message.format(**known))
    left = tmp_path / "local" / "data"
    assert not left.exists() or list(left.iterdir()) == [], "nothing half-written"


def test_an_inspected_dataset_of_another_length(yard: Yard, dataset: Path) -> None:
    index = json.loads((dataset / "index.json").read_text())
    index["settings"]["sequence_length"] = 32
    (dataset / "index.json").write_text(json.dumps(index))  # settings are not part of the digest
    assert json.loads(yard("inspect", dataset, "--json")[1])[0]["sequence_length"] == 32
    code, _, err = yard("inspect", dataset, "--sequence-length", 64)
    assert (code, "was made for a sequence length of 32 only" in err) == (2, True)


@pytest.mark.long
def test_the_benchmark_compares_equal_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a few documents, both ways give the same tokens. `make bench-data` measures speed."""
    monkeypatch.setattr(bench_data, "processors", lambda: 1)
    table = dict(bench_data.measure(tmp_path, documents=24))
    assert table["documents"] == "24"
    assert float(table["ratio"]) > 0


def test_yard_data_needs_no_torch() -> None:
    code = (
        "import sys; from tools.cli.data import inspect, prepare, verify;"
        "print(sorted({'torch', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_commands_of_the_page_run(
    yard: Yard, rows: Path, tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of docs/data.md, on files of a test; the run itself is tested with the trainer."""
    *commands, run = printed.run_by("tests/cli/test_data.py")
    monkeypatch.chdir(tmp_path)
    server = serve()
    tmp_path.joinpath("corpus").mkdir()
    for name, data in server.files.items():
        tmp_path.joinpath("corpus", name.strip("/")).write_bytes(data)
    trained = yard("prepare", "corpus/*.jsonl.gz", "--vocab-size", 300, "--root", tmp_path / "root", "--json")
    tokenizer = Path(json.loads(trained[1])["directory"]) / "tokenizer" / "tokenizer.json"
    tmp_path.joinpath("corpus", "tokenizer.json").write_bytes(tokenizer.read_bytes())
    for number in range(8):
        server.files[f"/part-{number:02d}.jsonl.gz"] = server.files[f"/shard-{number:02d}.jsonl.gz"]
    for command in commands:
        program, group, *words = shlex.split(command.replace("https://host", server.url))
        assert (program, group) == (".venv/bin/yard", "data")
        code, out, err = yard(*words)
        assert (code, bool(out)) == (0, True), err
    program, verb, cell, *options = shlex.split(run)
    assert (program, verb) == (".venv/bin/yard", "run")
    texts = {
        layer: (str(path), path.read_text())
        for layer, path in {
            "model": ROOT / "overlays/model/llama-tiny/model.yaml",
            "hardware": ROOT / "overlays/hardware/cpu/hardware.yaml",
            "cell": ROOT / "overlays" / cell / "cell.yaml",
        }.items()
    }
    for key in options[1::2]:
        texts = apply_override(texts, key)
    assert load_texts(texts).data.stream is not None
