"""A compiler's cache that was incomplete at a kill is never used again; a complete one is kept."""

from __future__ import annotations

import inspect
import platform
import shutil
import tempfile
from pathlib import Path

import pytest

from training.run import signing
from training.run.directory import RunDir
from training.trainer.compile_cache import CompileCache, leave_headers


def cache_of(tmp_path: Path) -> CompileCache:
    return CompileCache(RunDir(tmp_path / "run"), "cpu")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "inductor" / "aa").mkdir(parents=True)
    path = tmp_path / "inductor" / "aa" / "kernel.so"
    path.write_bytes(b"half")
    return path


def test_a_kill_before_the_first_step_discards_the_cache(library: Path, tmp_path: Path) -> None:
    assert cache_of(tmp_path).begin("1") == "whole"  # killed here: done() never ran
    assert cache_of(tmp_path).begin("2") == "broken"
    assert not library.exists()
    assert cache_of(tmp_path).begin("3") == "broken"  # killed again, before anything was compiled


def test_a_cache_that_a_step_has_run_with_is_kept(library: Path, tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    assert cache.begin("1") == "whole"
    cache.done()
    cache.done()
    assert cache_of(tmp_path).begin("2") == "whole"
    assert library.exists()


@pytest.mark.parametrize("named", [False, True], ids=["no variable", "torch sets the variable"])
def test_torchs_own_directory_is_not_touched(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    own = tmp_path / "torchinductor_trainer"
    library.parent.parent.rename(own)
    monkeypatch.setenv("USER", "trainer")
    monkeypatch.setenv("LOGNAME", "trainer")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    if not named:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    for attempt in "12":
        assert cache_of(tmp_path).begin(attempt) == "none"
    assert (own / "aa" / "kernel.so").exists()


def test_nodes_with_one_directory_join_the_same_attempt(library: Path, tmp_path: Path) -> None:
    assert cache_of(tmp_path).begin("1") == "whole"
    assert cache_of(tmp_path).begin("1") == "joined"
    assert library.exists()


def test_an_image_with_another_c_library_compiles_again(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("k" * 44)
    monkeypatch.setenv(signing.KEY_FILE, str(tmp_path / "key"))
    first = cache_of(tmp_path)
    assert (first.begin("1"), first.done(), first.keep()) == ("whole", True, True)
    shutil.rmtree(tmp_path / "inductor")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.0"))
    assert cache_of(tmp_path).begin("2") == "none"


def test_a_header_is_included_as_it_is_where_torch_would_compile_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache

    theirs = inspect.signature(codecache._precompile_header)
    monkeypatch.setattr(codecache, "_precompile_header", codecache._precompile_header)
    leave_headers()
    theirs.bind("torch/header.h", "g++", min_optimize=True)
    assert codecache._precompile_header("torch/header.h", "g++", min_optimize=True) == "torch/header.h"
