"""`yard checkpoint` on real checkpoints: its output is right, and errors are one line."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.weights.bases import LORA, adapted, configuration, pretrained, publish
from tools import cli
from tools.cli.checkpoint import _trainer
from tools.core.errors import UserError
from training.run.directory import RunDir


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the trainer's modules in this process, where torch is already imported."""

    def answer(module: list[str]) -> dict[str, Any]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                importlib.import_module(module[0]).main(module[1:])
            except SystemExit as left:
                raise UserError(err.getvalue().removeprefix("error: ").strip(), code=int(left.code or 0)) from None
        found: dict[str, Any] = json.loads(out.getvalue())
        return found

    monkeypatch.setattr(_trainer, "answer", answer)


@pytest.fixture
def run(tmp_path: Path, dataset: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "mine")
    for step, seed in ((20, 7), (40, 8)):
        pretrained(run, dataset, step, seed)
    return run


@pytest.mark.usefixtures("here")
def test_list_and_verify_report_the_damaged_step(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["checkpoint", "verify", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS: 2 checkpoints: every byte is as it was written\n  step 20: ")

    path = run.checkpoints / "step-00000040" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert cli.invoke(["checkpoint", "verify", str(run.path), "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    problems = [each["problem"] for each in verdict["checkpoints"]]
    assert problems == [None, "step-00000040/rank-00000.safetensors: its content does not match its digest"]
    assert verdict["summary"] == "1 checkpoint of 2 would be refused"
    assert cli.invoke(["checkpoint", "verify", str(run.path), "--step", "20"]) == 0

    path.write_bytes(b"short")
    capsys.readouterr()
    assert cli.invoke(["checkpoint", "list", str(run.path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    size = sum(p.stat().st_size for p in (run.checkpoints / "step-00000020").glob("rank-*"))
    assert first.split() == ["step", "20", f"{size / 1e6:,.1f}", "MB", "in", "2", "files", "by", "1", "rank"]
    assert second.startswith("  step 40  step-00000040/rank-00000.safetensors: has 5 bytes, the manifest says")


def test_show_prints_the_newest_checkpoint(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """With the trainer's module in its own process, as for users."""
    assert cli.invoke(["checkpoint", "show", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 40
    assert found["tensors"]["model.model.norm.weight"] == {"dtype": "F32", "shape": [64]}
    assert found["meta"]["config"]["model"]["hidden_size"] == 64
    assert cli.invoke(["checkpoint", "show", str(run.path), "--step", "30"]) == 2
    assert "has no step 30; steps: 20, 40" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_export_prints_the_result_and_how_to_load_it(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path / "base")
    run = RunDir(tmp_path / "runs" / "tuned")
    adapted(run, configuration(str(tmp_path / "base"), LORA), dataset)
    out = tmp_path / "out"
    assert cli.invoke(["checkpoint", "export", str(run.path), "--to", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{out}: adapter of step 20, 12 tensors, ")
    assert lines[2] == f'  load it with PeftModel.from_pretrained(base, "{out}")'
    assert lines[3] == "  merged with its base: yard checkpoint export tuned --merge --to DIR"
    assert (out / "adapter_model.safetensors").exists()


def test_an_error_of_the_trainer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.invoke(["checkpoint", "show", str(tmp_path / "empty")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"error: {tmp_path}/empty/checkpoints: no committed checkpoint yet\n"
