"""Trackers: what is sent, what a resumed run sends again, and that no tracker stops or slows a run.

The package `trackio` is a stand-in here, which a real process imports; tests/track has the real ones.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.inprocess import StopAfter, Texts, losses, records, run
from training.config import ConfigError, apply_override, load_texts
from training.run.directory import RunDir, write_json
from training.run.secret_files import DIRECTORY, secret
from training.trackers import processes
from training.trackers.rows import Sent, sources

STAND_IN = """
import json, os, time
MODE, OUT = os.environ["STAND_IN"], os.environ["STAND_IN_FILE"]
def tell(**line):
    with open(OUT, "a") as file:
        file.write(json.dumps(line) + chr(10))
def init(**given):
    tell(init=given)
    print("the library's own words")
    if MODE == "refuse":
        raise RuntimeError("no access for you")
    if MODE == "die":
        os._exit(3)
    if MODE == "hang":
        time.sleep(600)
    return Run()
class Run:
    def log(self, values, step):
        tell(step=step, **values)
    def finish(self):
        tell(finish=True)
"""
SHORT = ("train.steps=8", "train.warmup_steps=2", "checkpoint.every=4")
TRACKED = (*SHORT, "track.trackio.project=tiny", "track.tags={team: a}")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of what the stand-in was told; it is importable here and in child processes."""
    package, out = tmp_path / "package", tmp_path / "told.jsonl"
    package.mkdir()
    (package / "trackio.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setenv("PYTHONPATH", str(package))
    monkeypatch.setenv("STAND_IN_FILE", str(out))
    monkeypatch.setenv("STAND_IN", "good")
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_tracker_gets_all_of_a_run_once_also_when_the_run_continues(
    texts: Texts, data_root: Path, tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FAILED_SECONDS", 60.0)
    monkeypatch.setattr(processes, "END_SECONDS", 60)
    run(texts, TRACKED, tmp_path / "runs/mine", data_root, StopAfter(6))
    done = run(texts, TRACKED, tmp_path / "runs/mine", data_root)
    found = lines(told)
    begun = [line["init"] for line in found if "init" in line]
    assert {(one["name"], one["project"], one["resume"]) for one in begun} == {("mine", "tiny", "allow")}
    assert len(begun) == 2
    config = begun[0]["config"]
    assert (config["train.steps"], config["team"], config["trainyard.run"]) == ("8", "a", "mine")
    assert config["trainyard.data"] == json.loads(done.run.read_text())["dataset"]
    steps = [line for line in found if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 9))
    assert [line["loss"] for line in steps] == losses(done)
    assert {"lr", "grad_norm", "tokens_per_s", "mfu"} <= set(steps[0])
    assert [line["heldout_loss"] for line in found if "heldout_loss" in line]
    assert [line["checkpoint"] for line in found if "checkpoint" in line] == [4.0, 6.0, 8.0]
    assert sum("finish" in line for line in found) == 2
    assert "the library's own words" in (done.logs / "track-trackio.log").read_text()


@pytest.mark.parametrize("mode", ["refuse", "die", "hang"])
def test_no_tracker_stops_a_run(
    mode: str, texts: Texts, data_root: Path, tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("STAND_IN", mode)
    monkeypatch.setattr(processes, "END_SECONDS", 1 if mode == "hang" else 60)
    monkeypatch.setattr(processes, "KILL_SECONDS", 60)
    done = run(texts, TRACKED, tmp_path / "runs/mine", data_root)
    assert len(records(done)) == 8
    assert done.report.exists()
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tracker trackio: ")]
    assert len(said) == {"refuse": 2, "die": 0, "hang": 2}[mode], said
    if mode == "refuse":
        assert "RuntimeError: no access for you" in said[0]
    if mode != "die":
        assert f"11 rows were not sent; python -m training.track --run {done.path.resolve()} sends them" in said[-1]
    monkeypatch.setenv("STAND_IN", "good")
    told.unlink()
    assert by_hand(done) == (0, "")
    assert [line["step"] for line in lines(told) if "loss" in line] == list(range(1, 9))
    assert by_hand(done) == (0, ""), "nothing is left"
    assert len([line for line in lines(told) if "loss" in line]) == 8


def by_hand(done: RunDir) -> tuple[int, str]:
    words = [sys.executable, "-m", "training.track", "--run", str(done.path)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
    return found.returncode, found.stderr


def test_a_missing_package_is_one_error_before_the_first_step(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    assert importlib.util.find_spec("trackio") is None
    with pytest.raises(ConfigError) as caught:
        run(texts, TRACKED, tmp_path / "mine", data_root)
    assert "track.trackio needs the package trackio, which is not installed: run `make setup-track`" in str(
        caught.value
    )
    assert not (tmp_path / "mine/metrics.jsonl").exists()
    mlflow = apply_override(texts, "track.mlflow.uri=arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/a")
    with pytest.raises(ConfigError, match=r"track\.mlflow"):
        processes.check_packages(load_texts(mlflow).track)


def test_by_hand_a_run_without_trackers_is_one_sentence(tmp_path: Path) -> None:
    code, said = by_hand(RunDir(tmp_path))
    assert (code, said.count("\n")) == (2, 1)
    write_json(RunDir(tmp_path).track / "settings.json", {"run": "a", "trackio": None})
    code, said = by_hand(RunDir(tmp_path))
    assert (code, "not in the run's section `track`" in said) == (2, True)


def row(step: int, time: float, **more: Any) -> str:
    return json.dumps({"step": step, "time": time, "loss": 9.0 - step, **more}) + "\n"


def test_steps_that_are_done_again_after_a_rollback_are_sent_again(tmp_path: Path) -> None:
    done = RunDir(tmp_path)
    done.metrics.write_text("".join(row(step, step) for step in range(1, 6)) + '{"step": 6, "ti')
    log = sources(done, {})["steps"]
    assert [one.step for one in log.rows()] == [1, 2, 3, 4, 5]
    log.accept(log.rows()[2])
    assert [one.step for one in log.rows()] == [4, 5], "what was not accepted comes again"
    log.accept(log.rows()[-1])
    assert log.rows() == []
    (tmp_path / "new").write_text("".join(row(step, step) for step in (1, 2, 3)) + row(4, 7.0) + row(5, 8.0))
    os.replace(tmp_path / "new", done.metrics)
    assert [(one.step, one.time) for one in log.rows()] == [(4, 7.0), (5, 8.0)]
    fresh = sources(done, {"steps": 4})["steps"]
    assert [one.step for one in fresh.rows()] == [5], "another start continues behind what was sent"


@pytest.mark.parametrize(
    "line",
    ["[1]", '{"step": true, "time": 1}', '{"step": 1}', '{"step": 1, "time": 1e999}', "[" * 50_000, "x" * 3_000_000],
    ids=range(6),
)
def test_foreign_lines_are_left_out(line: str, tmp_path: Path) -> None:
    done = RunDir(tmp_path)
    odd = row(1, 1.0, mfu=None, lr=float("nan"), grad_norm=10**400, rank_step_s=[1.0], text="a", mlm_loss=2.0)
    done.metrics.write_text(f"{line}\n{odd}")
    log = sources(done, {})["steps"]
    (found,) = log.rows()
    assert dict(found.values) == {"loss": 8.0, "mlm_loss": 2.0}


@pytest.mark.parametrize("text", ["[]", '{"id": 1}', '{"steps": []}', "{", '{"id": "a", "url": null}'])
def test_a_damaged_record_of_what_was_sent_starts_again(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    assert Sent.read(tmp_path / "a.json", "mine") == Sent("mine")


def test_a_copy_of_a_run_is_another_run_of_the_tracker(tmp_path: Path) -> None:
    Sent("mine", "7", described=True, steps={"steps": 5}).write(tmp_path / "a.json")
    assert Sent.read(tmp_path / "a.json", "mine") == Sent("mine", "7", described=True, steps={"steps": 5})
    assert Sent.read(tmp_path / "a.json", "copy") == Sent("copy")
    (tmp_path / "a.json").write_text('{"id": "7"}')
    assert Sent.read(tmp_path / "a.json", "mine") == Sent("mine", "7"), "of a release that wrote no name"


def test_a_secret_comes_from_its_file_or_else_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert secret("wandb-api-key") is None
    monkeypatch.setenv("WANDB_API_KEY", "from-a-variable")
    assert secret("wandb-api-key") == "from-a-variable"
    (tmp_path / "wandb-api-key").write_text("from-a-file\n")
    assert secret("wandb-api-key") == "from-a-file"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("track={}", "cell.yaml.*track: names no tracker: add mlflow, wandb or trackio"),
        ("track.mlflow.uri=mlflow.example.com", "is not the address of a server"),
        ("track.mlflow.uri=https://me:s3cret@mlflow.example.com", "into the Secret `trackers`"),
        ("track.mlflow.uri=https://mlflow.example.com/?token=abc", "into the Secret `trackers`"),
        ("track.mlflow.uri=http://[", "is not the address of a server"),
        ("track.mlflow.uri=http://a:99999", "is not the address of a server"),
        ("track.wandb.key=abc", "unknown key track.wandb.key"),
        ("track.wandb.mode=off", "did you mean offline"),
        ("track.wanbd.project=a", "did you mean track.wandb"),
        ("track.trackio.space=mine", "track.trackio.space"),
        ("track.wandb.project=", "track.wandb.project"),
        (f"track.trackio.project={'a' * 65}", "track.trackio.project.*at most 64 characters"),
        (f"track.trackio.space=a/{'b' * 97}", "track.trackio.space"),
    ],
)
def test_wrong_settings_are_one_line(setting: str, message: str, texts: Texts) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_texts(apply_override(texts, setting))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "https://mlflow.example.com/path", "http://mlflow.tracking:5000",
        "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team",
        "arn:aws-us-gov:sagemaker:us-gov-west-1:123456789012:mlflow-app/app-ABC",
    ],
)  # fmt: skip
def test_servers_of_mlflow(uri: str, texts: Texts) -> None:
    track = load_texts(apply_override(texts, f"track.mlflow.uri={uri}")).track
    assert track is not None
    assert track.mlflow is not None
    assert (list(track.trackers), track.mlflow.sagemaker) == (["mlflow"], uri.startswith("arn:"))
