"""`yard checkpoint` on real checkpoints: its output is right, what deletes asks, and errors are one line."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from tests.training.weights.bases import LORA, adapted, configuration, pretrained, publish
from tools import cli
from tools.cli.checkpoint import diff, export
from tools.core import repo
from tools.core.errors import UserError
from training.checkpoint import disk
from training.checkpoint.attempt import Attempt
from training.checkpoint.keep import Rules
from training.checkpoint.layout import committed_steps
from training.checkpoint.read import open_checkpoint
from training.checkpoint.store import Store
from training.checkpoint.write import Snapshot
from training.run import files
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

    for command in (diff, export):
        monkeypatch.setattr(command, "answer", answer)


@pytest.fixture
def run(tmp_path: Path, dataset: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "mine")
    for step, seed in ((20, 7), (40, 8)):
        pretrained(run, dataset, step, seed)
    return run


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
    assert first.split() == ["step", "20", f"{size / 2**10:,.1f}", "KiB", "in", "2", "files", "by", "1", "rank"]
    assert second.startswith("  step 40  step-00000040/rank-00000.safetensors: has 5 bytes, the manifest says")


def test_show_prints_the_newest_checkpoint(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["checkpoint", "show", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 40
    assert found["tensors"]["model.model.norm.weight"] == {"dtype": "F32", "shape": [64]}
    assert found["meta"]["config"]["model"]["hidden_size"] == 64
    assert cli.invoke(["checkpoint", "show", str(run.path), "--step", "30"]) == 2
    assert "has no step 30; steps: 20, 40" in capsys.readouterr().err
    (run.checkpoints / "step-00000040" / "MANIFEST.json").write_bytes(b"{}")
    assert cli.invoke(["checkpoint", "show", str(run.path)]) == 1, "it is damaged"


def test_prune_shows_what_goes_and_asks(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (60, 80):
        shutil.copytree(run.checkpoints / "step-00000020", run.checkpoints / f"step-{step:08d}")
    words = ["checkpoint", "prune", str(run.path), "--keep-every", "40"]
    assert cli.invoke(words) == 0, "three of the four are incomplete or kept"
    assert "nothing to delete; kept steps: 20, 40, 60, 80" in capsys.readouterr().out, "copies are not complete"
    for step in (60, 80):
        shutil.rmtree(run.checkpoints / f"step-{step:08d}")
        Store(run.checkpoints, keep=Rules(9)).save(Snapshot(step, {}))
    assert cli.invoke(words) == 2
    told = capsys.readouterr()
    assert "  step-00000020\n" in told.err
    assert "without a terminal nothing was changed" in told.err
    assert committed_steps(run.checkpoints) == [20, 40, 60, 80]
    assert cli.invoke([*words, "--yes"]) == 0
    assert capsys.readouterr().out == f"{run.path}: deleted 1; kept steps: 40, 60, 80\n"
    assert committed_steps(run.checkpoints) == [40, 60, 80]
    assert cli.invoke(["checkpoint", "prune", str(run.path), "--keep", "1"]) == 2


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        ({"keep": 2.5}, "keep is 2.5; a whole number of at least 2 is needed"),
        ({"keep_best": True}, "keep_best is True; a whole number of at least 0 is needed"),
        ({"keep_every": "x"}, "keep_every is 'x'; a whole number"),
        ({"keep_bad_days": math.nan}, "keep_bad_days is nan; a number of at least 0 is needed"),
    ],
)
def test_prune_deletes_nothing_by_rules_that_are_not_rules(
    recorded: dict[str, Any], told: str, run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    run.run.write_text(json.dumps({"config": {"checkpoint": recorded}}))
    assert cli.invoke(["checkpoint", "prune", str(run.path), "--yes"]) == 1
    assert told in capsys.readouterr().err
    assert committed_steps(run.checkpoints) == [20, 40]


def test_quarantine_moves_a_step_aside(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["checkpoint", "quarantine", str(run.path), "--step"]
    assert cli.invoke([*words, "40"]) == 2
    assert "aside (the newest one is then step 20): without a terminal" in capsys.readouterr().err
    assert cli.invoke([*words, "40", "--yes"]) == 0
    assert capsys.readouterr().out == "step 40 is kept as step-00000040.bad; the newest one is then step 20\n"
    assert (run.checkpoints / "LATEST").read_text() == "step-00000020\n"
    assert cli.invoke([*words, "20", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["newest"] is None
    assert cli.invoke(["checkpoint", "prune", str(run.path), "--keep-bad-days", "0", "--yes"]) == 0
    assert list(run.checkpoints.iterdir()) == []


def test_a_directory_of_runs_and_one_of_checkpoints(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["checkpoint", "list", str(run.path.parent)]) == 2
    assert f"has no checkpoint itself, but runs; add one of {run.path.name}" in capsys.readouterr().err
    assert cli.invoke(["checkpoint", "list", str(run.checkpoints)]) == 0
    assert "step 40" in capsys.readouterr().out


def test_the_newest_step_after_a_quarantine_is_a_good_one(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (run.checkpoints / "step-00000020" / "MANIFEST.json").unlink()
    assert cli.invoke(["checkpoint", "quarantine", str(run.path), "--step", "40", "--yes"]) == 0
    assert "no checkpoint is left, so training would start from scratch" in capsys.readouterr().out
    assert not (run.checkpoints / "LATEST").exists()


def test_what_is_not_a_step_is_named(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """A dead writer's attempt, a live one's, a link, a refused step with escape bytes in its name."""
    step, told = run.checkpoints / "step-00000040", {}
    (run.checkpoints / "step-00000060.ab.tmp").mkdir()
    step.rename(run.path / "elsewhere")
    step.symlink_to(run.path / "elsewhere")
    (run.checkpoints / "step-00000010.\x1b[2J\n.bad").mkdir()
    live = Attempt.begin(run.checkpoints, 80)
    assert cli.invoke(["checkpoint", "list", str(run.path)]) == 0
    out = capsys.readouterr().out
    told = {name: why for name, _, why in (line.strip().partition(": ") for line in out.splitlines()[1:])}
    assert {name.split(".")[0]: why for name, why in told.items()} == {
        "step-00000010": "failed verification or was set aside, kept as evidence",
        "step-00000040": "a link or a file, which is not read; move the directory itself here",
        "step-00000060": "not finished, because its writer died; the next start or copy removes it",
        "step-00000080": "being written",
    }
    assert "\x1b" not in out
    live.close()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["list", "LINK"], 2, "link/checkpoints: a link to nothing"),
        (["list", "FILE"], 2, "file/checkpoints: Not a directory"),
        (["list", "FILE/checkpoints"], 2, "is a file, not the directory of a run"),
        (["list", "RUN/checkpoints/step-00000020"], 2, "is one step of a run; name the run, with --step"),
        (["list", "TWICE"], 2, "has weights of another trainer"),
        (["list", "HF"], 2, "weights of another trainer in checkpoint-500, checkpoint-900; `yard checkpoint show` and"),
        (["show", "TWICE"], 1, "b.safetensors has x, which another file has too"),
        (["show", "PICKLE"], 1, "model.bin is a pickle, which is not read"),
        (["show", "HUGE"], 1, "damaged safetensors header: it has 1,152,921,504,606,846,976 bytes, and may have 2"),
        (["copy", "RUN", "--to", ""], 2, "--to is empty"),
        (["copy", "RUN", "--to", "RUN/checkpoints/step-00000020"], 2, "is one step of a run"),
        (["copy", "RUN", "--to", "FILE/checkpoints/x"], 2, "Not a directory"),
        (["copy", "RUN", "--to", "/proc/x/y"], 1, "error: /proc/x/y/checkpoints: No such file or directory"),
        (["diff", "RUN", "PICKLE"], 2, "model.bin is a pickle"),
        (["diff", "RUN@9", "RUN"], 2, "has no step 9; steps: 20, 40"),
        (["diff", "RUN", "s3://x"], 2, "'s3://x' is not a prefix in a bucket"),
        (["diff", "LINK", "RUN"], 2, "a link to nothing"),
    ],
)
def test_a_wrong_place_is_one_error_without_torch(
    words: list[str], code: int, told: str, run: RunDir, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(diff, "answer", pytest.fail)
    places = {name: run.path.parent / name.lower() for name in ("LINK", "FILE", "TWICE", "PICKLE", "HUGE", "HF")}
    for place in places.values():
        place.mkdir()
    (places["LINK"] / "checkpoints").symlink_to("nothing")
    (places["FILE"] / "checkpoints").write_text("")
    (places["PICKLE"] / "model.bin").write_bytes(b"")
    (places["HUGE"] / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    for name in ("checkpoint-900/model.safetensors", "checkpoint-500/pytorch_model.bin"):  # as HF's Trainer writes them
        (places["HF"] / name).parent.mkdir()
        (places["HF"] / name).touch()
    for name in "ab":
        save_file({"x": torch.ones(1)}, places["TWICE"] / f"{name}.safetensors")
    given = [re.sub("^[A-Z]{2,6}", lambda found: str({**places, "RUN": run.path}[found[0]]), word) for word in words]
    assert cli.invoke(["checkpoint", *given]) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("indexed", [True, False])
def test_copies_beside_published_weights_do_not_count(
    indexed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mistral's repositories also have a consolidated.safetensors. Only what the trainer would read counts."""
    main = "model-00001-of-00001.safetensors" if indexed else "model.safetensors"
    save_file({"a.weight": torch.ones(3)}, tmp_path / main)
    save_file({"a": torch.ones(3), "a.weight": torch.ones(3)}, tmp_path / "consolidated.safetensors")
    if indexed:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": main}}))
    assert cli.invoke(["checkpoint", "show", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}: safetensors, 1 tensors, 3 numbers\n")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert cli.invoke(["checkpoint", "show", str(tmp_path)]) == 1
    assert "model.safetensors.index.json: has no weight_map" in capsys.readouterr().err


def test_a_step_that_cannot_be_read_here_is_not_called_damaged(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **given: Any) -> Any:
        if path.parent.name == "step-00000040":
            raise PermissionError(errno.EACCES, "no", str(path))
        return files.open_regular(path, **given)

    monkeypatch.setattr(disk, "open_regular", refuse)
    assert cli.invoke(["checkpoint", "verify", str(run.path)]) == 3
    assert "CANNOT TELL: 1 checkpoint of 2 cannot be read here" in capsys.readouterr().out
    monkeypatch.undo()
    for step in (20, 40):
        (run.checkpoints / f"step-{step:08d}" / "MANIFEST.json").write_bytes(b"")
    assert cli.invoke(["checkpoint", "verify", str(run.path)]) == 1
    assert "fix: none of them loads" in capsys.readouterr().out


def test_a_copy_after_one_that_was_killed_leaves_nothing_of_it(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "kept"
    (target / "checkpoints").mkdir(parents=True)
    killed = (
        "import os, pathlib, sys; from training.checkpoint.attempt import Attempt; "
        "kept = Attempt.begin(pathlib.Path(sys.argv[1]), 40); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(target / "checkpoints")], cwd=repo.root(), check=False)
    assert cli.invoke(["checkpoint", "list", str(target)]) == 0
    assert ".tmp: not finished, because its writer died" in capsys.readouterr().out
    live = Attempt.begin(target / "checkpoints", 40)
    assert cli.invoke(["checkpoint", "copy", str(run.path), "--to", str(target)]) == 0
    assert {path.name for path in (target / "checkpoints").iterdir()} == {"step-00000040", live.path.name}
    live.close()


@pytest.mark.usefixtures("here")
def test_a_copy_that_fails_leaves_nothing(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Directories that were there before it stay."""
    damaged = run.checkpoints / "step-00000040" / "rank-00000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    (tmp_path / "kept").mkdir()
    for target in ("kept", "new/run"):
        assert cli.invoke(["checkpoint", "copy", str(run.path), "--to", str(tmp_path / target)]) == 1
        assert "its content does not match its digest" in capsys.readouterr().err
    assert list((tmp_path / "kept").iterdir()) == []
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("here")
def test_diff_names_tensors_configuration_and_position(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = run.checkpoints / "step-00000020"
    assert cli.invoke(["checkpoint", "diff", f"{run.path}@20", str(step)]) == 0
    assert cli.invoke(["checkpoint", "diff", f"{run.path}@20", str(run.path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert found["recorded"]["step"] == [20, 40]
    assert found["recorded"]["config.train.seed"] == [7, 8]
    a, b = (open_checkpoint(run.checkpoints / f"step-{step:08d}") for step in (20, 40))
    name = "model.model.layers.0.mlp.up_proj.weight"
    largest = (a.full(name).double() - b.full(name).double()).abs().max().item()
    row = next(row for row in found["different"] if row["name"] == name)
    assert row["largest"] == largest
    assert row["a"] == row["b"] == ["F32", list(a.full(name).shape)]
    of_model = [row for row in found["different"] if row["name"].startswith("model.")]
    assert cli.invoke(["checkpoint", "diff", f"{run.path}@20", str(run.path), "--most", "1"]) == 1
    out = capsys.readouterr().out
    assert f"\n  {max(of_model, key=lambda row: row['largest'])['name']} " in out
    assert "optimizer." not in out

    weights = {name.removeprefix("model."): b.full(name) for name in b.names() if name.startswith("model.")}
    (tmp_path / "published").mkdir()
    save_file(weights, tmp_path / "published" / "model.safetensors")
    dcp.save(dict(weights), checkpoint_id=tmp_path / "dcp", no_dist=True)  # type: ignore[attr-defined]
    for other in ("published", "dcp"):
        assert cli.invoke(["checkpoint", "diff", str(run.path), str(tmp_path / other)]) == 0, other
    capsys.readouterr()
    assert cli.invoke(["checkpoint", "show", str(tmp_path / "dcp"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"]["model.norm.weight"] == {"dtype": "F32", "shape": [64]}
    weights["model.norm.weight"][3] = float("nan")
    weights["model.layers.0.mlp.up_proj.weight"].mul_(3)
    weights["model.layers.0.mlp.down_proj.weight"] = torch.zeros(2, 2)
    save_file(weights, tmp_path / "published" / "model.safetensors")
    assert cli.invoke(["checkpoint", "diff", str(run.path), str(tmp_path / "published"), "--most", "2"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "B has shape [2, 2] model.norm.weight F32 [64] 1 value changed, by at most 0, 1 not finite" in out
    assert "up_proj" not in out


@pytest.mark.usefixtures("here")
def test_export_prints_the_result_and_how_to_load_it(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base@v1"  # of a directory the name has no revision
    publish(base)
    run = RunDir(tmp_path / "runs" / "tuned")
    adapted(run, configuration(str(base), LORA), dataset)
    out = tmp_path / "out"
    assert cli.invoke(["checkpoint", "export", str(run.path), "--to", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{out}: adapter of step 20, 12 tensors, ")
    assert lines[2] == f'  load it with PeftModel.from_pretrained(base, "{out}")'
    assert lines[3] == "  merged with its base: yard checkpoint export tuned --merge --to DIR"
    assert (out / "adapter_model.safetensors").exists()
    settings = json.loads((out / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == (str(base), None)
    assert str(base) in (out / "README.md").read_text()


def test_an_export_to_an_impossible_place_is_refused_before_the_trainer_starts(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(export, "answer")
    (run.path / "loop").symlink_to("loop")
    place = "is not a directory"
    for to, told in (("checkpoints", "is not empty"), ("run.json", place), ("run.json/a/b", "cannot write"),
                     ("loop", place), ("loop/a", "cannot write")):  # fmt: skip
        assert cli.invoke(["checkpoint", "export", str(run.path), "--to", str(run.path / to)]) == 2
        assert told in capsys.readouterr().err, to


def test_an_error_of_the_trainer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.invoke(["checkpoint", "show", str(tmp_path / "empty")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"error: {tmp_path}/empty: no committed checkpoint yet\n"
