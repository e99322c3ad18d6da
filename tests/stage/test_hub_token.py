"""The hub's token is checked where the hub answers, and is never shown."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from tests.parts.webserver import TOKEN, WebServer
from tools.cli import invoke
from tools.core.errors import UserError
from tools.stage import hub_token

STORED = {"metadata": {"uid": "u-1", "resourceVersion": "7"}}


@pytest.fixture
def stdin_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that stores what it is given, and the file with that."""
    given = tmp_path / "given"
    program = tmp_path / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/words\ncat > {given}\necho '{json.dumps(STORED)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return given


@pytest.mark.parametrize("reachable", [True, False])
def test_a_token_is_stored_and_never_an_argument(
    reachable: bool,
    site: WebServer,
    stdin_of: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", site.url if reachable else "http://127.0.0.1:9")
    monkeypatch.setenv("MINE", f" {TOKEN}\n")
    assert invoke(["secret", "hf-token", "-n", "team", "--from-env", "MINE"]) == 0
    out, err = capsys.readouterr()
    said = "the hub says: the token of someone" if reachable else "not checked: the hub did not answer"
    assert out.splitlines() == ["team/Secret/hf-token u-1, version 7", said]
    secret = json.loads(stdin_of.read_text())
    assert base64.b64decode(secret["data"]["token"]).decode() == TOKEN
    assert TOKEN not in out + err + (tmp_path / "words").read_text()


@pytest.mark.parametrize("token", ["", "short", "with blanks in it", "x" * 2000, "caf\xe9-caf\xe9-caf\xe9"])
def test_what_is_not_a_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(UserError, match=r"this is not a token \((empty|\d+ char)") as problem:
        hub_token.checked_form(token)
    assert not token or token not in problem.value.message


def test_a_token_that_the_hub_refuses_is_not_stored(
    site: WebServer, stdin_of: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", site.url)
    monkeypatch.setenv("MINE", "hf_of_another_person")
    assert invoke(["secret", "hf-token", "-n", "team", "--from-env", "MINE"]) == 1
    assert "refuses this token (401): nothing was stored" in capsys.readouterr().err
    assert not stdin_of.exists()
    assert invoke(["secret", "hf-token", "--from-env", "NONE_SUCH"]) == 2
    assert "there is no such variable" in capsys.readouterr().err
