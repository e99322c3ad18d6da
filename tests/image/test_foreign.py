"""Answers that are not of docker, cosign or a registry: one sentence, exit code 3, no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import cli
from tools.core import repo

PAGE = "<!DOCTYPE html><html><title>Sign in</title></html>"
DIGEST = "sha256:" + "a" * 64
IMAGE = '[{"Id": "sha256:1", "Size": 1, "Architecture": "amd64", "Config": {}}]'
# What the stand-in prints, and its exit code. A proxy, a captive portal or a cut connection answered.
REPLIES = {
    "a page": (PAGE, 0),
    "a word": ("Forbidden", 0),
    "a cut answer": ('[{"Id": "sha256:1", "Descr', 0),
    "a number": ("17", 0),
    "another object": ('{"a": 1}', 0),
    "no item": ("[]", 0),
    "a deep list": ("[" * 100_000, 0),
    "a page as an error": (f'error parsing HTTP 404 response body: invalid character "<": "{PAGE}" Not Found', 1),
    "a status": ("received unexpected HTTP status: 502 Bad Gateway", 1),
    "a status with a page": (f"unexpected status code 503 Service Unavailable: {PAGE}", 1),
}
FREE = ("push", "verify")  # they print lines that people read
SCRIPT = """#!/bin/sh
case "$(basename "$0") $1" in *" $FOREIGN"*) cat "$REPLY"; [ "$CODE" = 0 ] || cat "$REPLY" >&2; exit "$CODE";; esac
case "$1" in
version) echo '{"Client": {"Version": "28.0"}, "Server": {"Version": "28.0"}}';;
image) echo "$IMAGE";;
manifest) echo "no such manifest" >&2; exit 1;;
esac
"""
COMMANDS = {
    "push a:1 --to registry.example.com/a:1": ("version", "image", "manifest", "push"),
    "pin trainer-cpu registry.example.com/a:1": ("manifest",),
    "test a:1 --level quick": ("version", "image"),
    f"verify registry.example.com/a@{DIGEST} --key cosign.pub": ("verify",),
    "overlay . --on registry.example.com/a:1": ("image",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_foreign_answer_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("docker", "cosign"):
        (tmp_path / name).write_text(SCRIPT)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("IMAGE", IMAGE)
    monkeypatch.setenv("REPLY", str(tmp_path / "reply"))
    for word in COMMANDS[command]:
        monkeypatch.setenv("FOREIGN", word)
        for name, (text, code) in REPLIES.items():
            if word in FREE and PAGE not in text and not code:
                continue
            (tmp_path / "reply").write_text(text)
            monkeypatch.setenv("CODE", str(code))
            ended = cli.invoke(["image", *command.split()])
            shown = capsys.readouterr()
            said = [line for line in (shown.out + shown.err).splitlines() if line.startswith(("error:", "CANNOT"))]
            assert (ended, len(said)) == (3, 1), (word, name, shown)
            assert len(said[0]) < 400, (word, name)
            assert PAGE not in said[0], (word, name)
