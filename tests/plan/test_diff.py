"""`yard plan diff`: what a changed matrix costs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.plan.runs import ROOT
from tools import cli
from tools.core import repo


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with a branch `main` that holds overlays/, in the place of this checkout."""
    shutil.copytree(ROOT / "overlays", tmp_path / "overlays")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-qm", "before")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(repo, "root", lambda: tmp_path)
    return tmp_path / "overlays/matrix.yaml"


def test_what_a_changed_matrix_costs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = yaml.safe_load(clone.read_text(encoding="utf-8"))
    cells = table["cells"]["p5"]
    cells["llama-3-1-8b"]["nodes"] = 8
    cells["llama-3-1-8b"]["parallel"]["micro_batch_size"] = 1
    del cells["llama-3-1-70b"]
    cells["llama-3-2-1b"]["checkpoint"]["keep"] = 7
    cells["own"] = {"nodes": 2}
    (clone.parent / "model/own").mkdir()
    (clone.parent / "model/own/kustomization.yaml").write_text("kind: Component\n", encoding="utf-8")
    clone.write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
    assert cli.invoke(["plan", "diff", "main"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in shown[1:9:2]] == [
        ["p5/llama-3-1-70b", "before", "8"],
        ["p5/llama-3-1-8b", "before", "4"],
        ["p5/llama-3-2-1b", "before", "1"],
        ["p5/own", "before", "-"],
    ]
    assert shown[4][1:5] == ["now", "8", "x", "p5en.48xlarge"]
    assert shown[5][2:-2] == shown[6][2:-2]
    assert float(shown[6][-2]) > 2 * float(shown[5][-2])
    assert " ".join(shown[8][1:8]) == "now 2 x p5.48xlarge 16 unknown of"
    assert shown[-1][0] == "together:"
    assert "without 1 plan of unknown cost" in " ".join(shown[-1])
    assert cli.invoke(["plan", "diff", "main", "--json"]) == 0
    before, now = json.loads(capsys.readouterr().out)["p5/llama-3-1-8b"]
    assert (before["nodes"], now["nodes"]) == (4, 8)
    assert now["hours"][0] < before["hours"][0]


@pytest.mark.parametrize("broken", ["now", "before"])
def test_a_matrix_that_cannot_be_read_is_named(broken: str, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = clone.read_text(encoding="utf-8")
    clone.write_text("cells: [\n", encoding="utf-8")
    if broken == "before":
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qam", "broken"]
        subprocess.run(words, cwd=clone.parent, check=True)
        clone.write_text(whole, encoding="utf-8")
    assert cli.invoke(["plan", "diff", "main"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {'at main: ' if broken == 'before' else ''}overlays/matrix.yaml:2: not valid YAML")


def test_an_unknown_revision_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["plan", "diff", "no-such-revision"]) == 2
    assert "no such commit" in capsys.readouterr().err
