"""`yard doctor` on programs that answer in known ways, and what the shell completes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tools.cli import invoke, yard
from tools.core import programs, repo

ANSWERS = {
    "kubectl": '{"clientVersion": {"gitVersion": "v1.30.2-eks-1"}}', "git": "git version 2.39.5 (Apple Git-154)",
    "docker": "Docker version 28.2.2, build e6534b4", "aws": "aws-cli/2.31.1 Python/3.13.7 Linux/6.1",
    "eksctl": "0.229.0-dev+f1.2026", "flux": "flux version 2.9.0", "kind": "kind v0.31.0 go1.25", "minikube": "what?",
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with these programs only."""
    for name, answer in ANSWERS.items():
        (tmp_path / name).write_text(f"#!{sys.executable} -IS\nprint({answer!r})\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_each_program_is_old_new_missing_or_unclear(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path / "flux").unlink()
    (path / "kind").write_text("not a program")
    assert invoke(["doctor", "--json"]) == 1
    found = {one["program"]: one for one in json.loads(capsys.readouterr().out)["programs"]}
    assert {name: one["verdict"] for name, one in found.items()} == {
        "kubectl": "FAIL", "git": "PASS", "docker": "PASS", "aws": "PASS", "eksctl": "FAIL", "flux": "WARN",
        "kind": "CANNOT TELL", "minikube": "CANNOT TELL",
    }  # fmt: skip
    assert found["kubectl"]["summary"] == "kubectl 1.30.2 is older than 1.31"
    assert found["flux"]["remedy"] == programs.how_to_install("flux")
    assert "what?" in found["minikube"]["evidence"]


@pytest.mark.parametrize(("words", "code"), [(("git", "docker"), 0), (("minikube",), 3), (("gti",), 2)])
def test_only_the_named_programs_decide(
    path: Path, words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["doctor", *words]) == code
    said = capsys.readouterr()
    assert ("did you mean git?" in said.err) == (code == 2)
    assert "eksctl" not in said.out


@pytest.mark.parametrize(
    ("typed", "wanted", "unwanted"),
    [
        ("rep", "plain,report", "plain,run"),
        ("run cpu/llama-t", "plain,cpu/llama-tiny", "plain,g5"),
        ("run overlays/p5/mi", "plain,overlays/p5/mistral-7b", "plain,overlays/p5/llama"),
        ("job goodput one", "plain,one-run", "plain,other"),
        ("checkpoint show o", "plain,other", "plain,cpu"),
        ("report ./x", "file,./x", "plain"),
        ("job status zzz", "file,zzz", "plain"),
    ],
)
def test_the_shell_completes_commands_cells_and_runs(
    typed: str, wanted: str, unwanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one-run", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.setattr(repo, "local", lambda: tmp_path)
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    *words, last = typed.split()
    found = ShellComplete(yard, {}, "yard", "_YARD_COMPLETE").get_completions(words, last)
    shown = [f"{one.type},{one.value}" for one in found]
    assert wanted in shown
    assert not [one for one in shown if one.startswith(unwanted)]
