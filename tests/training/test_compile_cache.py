"""A compiler's cache that was incomplete at a kill is never used again; a complete one is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.run.directory import RunDir
from training.trainer.compile_cache import CompileCache, precompile_headers


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


def test_torchs_own_directory_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache = cache_of(tmp_path)
    assert cache.begin("1") == "none"
    cache.done()


def test_nodes_with_one_directory_join_the_same_attempt(library: Path, tmp_path: Path) -> None:
    assert cache_of(tmp_path).begin("1") == "whole"
    assert cache_of(tmp_path).begin("1") == "joined"
    assert library.exists()


def test_code_compiled_with_precompiled_headers_is_found_without_them() -> None:
    from torch._inductor import config

    name = "cpp_cache_precompile_headers"
    keys = {}
    with config.patch({name: True, "_cache_config_ignore_prefix": config._cache_config_ignore_prefix}):
        assert name in config.save_config_portable(ignore_private_configs=False)  # a part of each key
        for wanted in (True, False):
            precompile_headers(wanted)
            assert getattr(config, name) is wanted
            keys[wanted] = config.save_config_portable(ignore_private_configs=False)
    assert keys[True] == keys[False]
