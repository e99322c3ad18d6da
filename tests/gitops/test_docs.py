"""docs/flux.md: its `yard` commands. tests/house/printed.yaml names the tests that run the others."""

from __future__ import annotations

import shlex

import pytest

from tests.gitops.conftest import DIGEST, Team
from tests.house import printed
from tools.cli import invoke
from tools.core import repo


def test_the_commands_in_their_order(
    team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a cluster `list` shows the files, and says that it asked nobody."""
    monkeypatch.setattr(repo, "root", lambda: team.root)
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    codes = []
    for line in printed.run_by("tests/gitops/test_docs.py"):
        words = shlex.split(line.replace("REGISTRY", "registry.example").replace("DIGEST", DIGEST))
        codes.append(invoke(words[1:]))
        team.commit("a step")
    said = capsys.readouterr()
    assert codes[1] in (2, 3), "no cluster"
    assert [codes[0], *codes[2:]] == [0, 0, 0, 0], said
    assert all(f"cpu-llama-tiny-{name}.yaml" in said.out for name in ("r1", "lr-1e-3", "lr-2e-3"))
