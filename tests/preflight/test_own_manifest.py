"""The page about any manifest shows what its commands print."""

from __future__ import annotations

import itertools
import shlex

import pytest

from tests.house import printed
from tools.cli import invoke
from tools.core import repo

PAGE = repo.root() / "docs/own-manifest.md"
FENCES = printed.fences(PAGE)
SHOWN = [(line.strip(), after[1]) for (kind, line), after in itertools.pairwise(FENCES) if kind == "sh"]


@pytest.mark.parametrize(("line", "text"), SHOWN, ids=[line.split("/")[-1] for line, _ in SHOWN])
def test_the_page_shows_what_is_printed(
    line: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line in printed.run_by("tests/preflight/test_own_manifest.py")
    monkeypatch.chdir(repo.root())
    program, *words = shlex.split(line)
    assert program == ".venv/bin/yard"
    code = invoke(words)
    assert capsys.readouterr().out == text
    assert code == (1 if text.startswith("FAIL") else 0)
