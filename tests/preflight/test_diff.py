"""`yard diff` with a fake kubectl. The cluster suite uses a real API server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.cells import kustomize, locate
from tools.cli import invoke
from tools.kube.manifests import parse

Answer = Callable[..., Path]
RENDERED = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return a function that puts a kubectl on PATH. It records its input in the returned directory."""

    def put(code: int, out: str = "", err: str = "") -> Path:
        for name, text in (("out", out), ("err", err)):
            (tmp_path / name).write_text(text, encoding="utf-8")
        program = tmp_path / "kubectl"
        program.write_text(
            f'#!/bin/sh\ncd {tmp_path}\necho "$@" > asked\ncat > given\n'
            f'echo "$KUBECTL_EXTERNAL_DIFF" > differ\ncat out\ncat err >&2\nexit {code}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path

    renderer = kustomize.Renderer(("true",), "5.8.1", "of this test")
    monkeypatch.setattr(kustomize.Renderer, "build", lambda self, path: RENDERED)
    monkeypatch.setattr(kustomize, "ensure", lambda root, progress: renderer)
    return put


def test_no_difference(answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    noted = answer(0)
    assert invoke(["diff", "cpu/llama-tiny"]) == 0
    assert capsys.readouterr().out == "overlays/cpu/llama-tiny: no difference\n"
    asked = (noted / "asked").read_text(encoding="utf-8")
    assert asked == "diff --server-side --field-manager=kubectl --filename=-\n"
    assert json.loads((noted / "given").read_text(encoding="utf-8"))["items"] == parse(RENDERED, "a").objects


def test_differences_are_shown(answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    answer(1, "-  replicas: 2\n+  replicas: 4\n", "Warning: something is deprecated\n")
    assert invoke(["diff", "overlays/cpu/llama-tiny"]) == 1
    said = capsys.readouterr()
    assert said.out == "-  replicas: 2\n+  replicas: 4\noverlays/cpu/llama-tiny: differs from the cluster\n"
    assert said.err == "Warning: something is deprecated\n"


def test_the_users_diff_program_is_not_used(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pager or a coloured diff has other exit codes."""
    monkeypatch.setenv("KUBECTL_EXTERNAL_DIFF", "meld")
    noted = answer(0)
    assert invoke(["diff", "cpu/llama-tiny"]) == 0
    assert (noted / "differ").read_text(encoding="utf-8") == "diff -u -N\n"


def test_options_are_passed_to_kubectl(answer: Answer) -> None:
    """With another field manager than Flux's, Flux's fields are conflicts instead of differences."""
    noted = answer(0)
    options = ("-n", "team-a", "--context", "staging", "--field-manager", "kustomize-controller")
    assert invoke(["diff", "cpu/llama-tiny", *options]) == 0
    asked = set((noted / "asked").read_text(encoding="utf-8").split())
    assert {"--namespace=team-a", "--context=staging", "--field-manager=kustomize-controller"} <= asked


def test_json(answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    answer(1, "+ a\n")
    assert invoke(["diff", "cpu/llama-tiny", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said == {"cell": "overlays/cpu/llama-tiny", "differs": True, "diff": "+ a\n"}


@pytest.mark.parametrize(
    ("code", "err", "message", "hint"),
    [
        (2, "The connection to the server was refused\nconnection refused\n", "refused", "cluster is up"),
        (2, 'error: context "x" does not exist\n', 'context "x" does not exist', "get-contexts"),
        (2, "Error: context was not found for specified context: x\n", "context: x", "get-contexts"),
        (
            2,
            'resource mapping not found: no matches for kind "PyTorchJob"\n',
            "PyTorchJob",
            "training operator",
        ),
        (2, 'error: pytorchjobs is forbidden: User "a" cannot patch\n', "forbidden", "auth can-i"),
        (3, 'Error (NotFound): namespaces "b" not found\n', '"b" not found', "create the namespace"),
        (2, 'error: Apply failed with 1 conflict: conflict with "x"\n', "Apply failed", "--field-manager"),
        (1, "error: something else\n", "something else", ""),
        (9, "", "without a message", ""),
    ],
)
def test_an_error_is_not_a_difference(
    code: int, err: str, message: str, hint: str, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(code, "", err)
    unseen = any(part in err for part in ("refused", "forbidden"))
    assert invoke(["diff", "cpu/llama-tiny"]) == (3 if unseen else 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: kubectl diff: ")
    assert message in said.err
    assert hint in said.err
    assert ("hint" in said.err) == bool(hint)


def test_no_kubectl(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert invoke(["diff", "cpu/llama-tiny"]) == 2
    assert "error: no kubectl on PATH" in capsys.readouterr().err


def test_an_unknown_cell_is_reported_before_kubectl_runs(answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    noted = answer(0)
    assert invoke(["diff", "cpu/llama-tin"]) == 2
    assert "did you mean overlays/cpu/llama-tiny?" in capsys.readouterr().err
    assert not (noted / "asked").exists()
    assert locate.cells()
