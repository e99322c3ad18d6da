"""A compiler's cache that was incomplete at a kill is never used again; a complete one is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.trainer.compile_cache import CompileCache


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "inductor" / "aa").mkdir(parents=True)
    path = tmp_path / "inductor" / "aa" / "kernel.so"
    path.write_bytes(b"half")
    return path


def test_a_kill_before_the_first_step_discards_the_cache(library: Path) -> None:
    assert CompileCache().begin() == "whole"  # killed here: done() never ran
    assert CompileCache().begin() == "broken"
    assert not library.exists()
    assert CompileCache().begin() == "broken"  # killed again, before anything was compiled


def test_a_cache_that_a_step_has_run_with_is_kept(library: Path) -> None:
    cache = CompileCache()
    assert cache.begin() == "whole"
    cache.done()
    cache.done()
    assert CompileCache().begin() == "whole"
    assert library.exists()


def test_torchs_own_directory_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache = CompileCache()
    assert cache.begin() == "none"
    cache.done()
