"""What a rank decides about its device: threads, precision, attention, compiling, peak."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training.config import Config, ConfigError, apply_override, load_texts
from training.device import card_peak, cpu_threads, resolve
from training.device.cpu import fastest_format
from training.device.cuda import resolve_cuda
from training.distributed.ranks import Ranks
from training.trainer.parallelize import Parallel

Texts = dict[str, tuple[str, str]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA B200", 2250e12),
        ("Trainium core", 95e12),
        ("Trainium2 core", 166.75e12),
        ("NVIDIA L40", None),
        ("Tesla T4", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_peaks_of_cards_and_unknown_ones(name: str, peak: float | None) -> None:
    assert card_peak(name)[0] == peak


def _resolved(texts: Texts, *overrides: str) -> Config:
    for override in overrides:
        texts = apply_override(texts, override)
    return load_texts(texts)


def test_a_cpus_peak_is_measured(config: Config) -> None:
    peak, source = resolve(config).peak_flops()
    assert source == "measured"
    assert peak is not None
    assert peak > 1e6


@pytest.mark.parametrize(
    ("abilities", "fastest", "precision"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "amx", "bf16"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, "fp32", "fp32"),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True, "amx_bf16": False}, "bf16", "bf16"),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, "fp32", "fp32"),
        ({"architecture": "aarch64"}, "fp32", "fp32"),
    ],
)
def test_precision_is_what_the_processor_multiplies_fastest(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, abilities: dict[str, Any], fastest: str, precision: str
) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: abilities)
    assert fastest_format() == fastest
    assert resolve(_resolved(texts, "device.precision=auto")).precision == precision
    assert resolve(_resolved(texts, "device.precision=bf16")).precision == "bf16"


def test_a_peak_is_not_above_what_one_thread_saw(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    own = itertools.count()
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    monkeypatch.setattr("time.thread_time", lambda: next(own) / 2)
    assert resolve(config).peak_flops()[0] == 2 * 1024**3 / 0.5


def test_threads_are_the_pods_processors_over_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for granted, local, expected in (
        ("4", "1", 4),
        ("4", "2", 2),
        ("16", "2", 4),
        ("1", "4", 1),
        ("", "2", 4),
    ):
        monkeypatch.setenv("TRAINYARD_CPUS", granted)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        assert cpu_threads() == expected


@pytest.mark.parametrize(
    ("length", "compiled", "attention"),
    [("32", "on", "blocks"), ("512", "on", "blocks"), ("1024", "on", "sdpa"), ("32", "off", "sdpa")],
)
def test_plain_attention_up_to_512_tokens_on_a_cpu_that_compiles(
    texts: Texts, compiler: None, length: str, compiled: str, attention: str
) -> None:
    config = _resolved(texts, f"sequence_length={length}", f"device.compile={compiled}", "device.attention=auto")
    assert resolve(config).attention == attention


@pytest.mark.parametrize(("dropout", "attention"), [("0.0", "flex_attention"), ("0.1", "sdpa")])
def test_a_card_has_attention_with_dropout(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, dropout: str, attention: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", lambda _: None)
    given = ("device.attention=auto", "device.precision=fp32", f"model.attention_dropout={dropout}")
    assert resolve_cuda(_resolved(texts, *given)).attention == attention


def test_bert_has_plain_attention_and_refuses_blocks(compiler: None) -> None:
    places = {"model": "model/bert-tiny", "hardware": "hardware/cpu", "cell": "cpu/bert-tiny"}
    paths = {layer: ROOT / "overlays" / place / f"{layer}.yaml" for layer, place in places.items()}
    texts = {layer: (path.name, path.read_text()) for layer, path in paths.items()}
    assert resolve(_resolved(texts, "device.compile=on")).attention == "eager"
    with pytest.raises(ConfigError, match=r"attention blocks is not for architecture bert.*nearest value: eager"):
        _resolved(texts, "device.attention=blocks")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a C++ compiler, whatever this one has."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")


@pytest.mark.parametrize(
    ("overrides", "compiled"),
    [
        ((), False),
        (("train.steps=100000000",), True),
        (("device.precision=bf16",), True),
        (("parallel.activation_checkpointing=budget:0.5",), True),
        (("device.compile=on",), True),
        (("train.steps=100000000", "device.compile=off"), False),
    ],
)
def test_a_short_run_in_fp32_is_not_compiled(
    texts: Texts, compiler: None, overrides: tuple[str, ...], compiled: bool
) -> None:
    device = resolve(_resolved(texts, "device.compile=auto", *overrides))
    assert device.compile is compiled
    assert (device.compile_reason == "a short run") == (not overrides)


@pytest.mark.parametrize(
    ("overrides", "compiled"),
    [((), 0), (("train.eval_sequences=1000000000",), 1), (("device.compile=on",), 1)],
    ids=["short", "long", "on"],
)
def test_evaluation_is_compiled_where_it_is_long(
    texts: Texts, compiler: None, overrides: tuple[str, ...], compiled: int
) -> None:
    device = resolve(_resolved(texts, "device.compile=auto", "device.precision=bf16", *overrides))
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    module: Any = torch.nn.Linear(2, 2)
    module.compile(backend=backend)
    with Parallel(module, module, Ranks(0, 1, 0, None)).evaluating(device):
        module(torch.ones(1, 2))
    assert len(graphs) == compiled


def test_without_a_compiler_auto_runs_uncompiled_and_on_is_refused(
    texts: Texts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    device = resolve(_resolved(texts, "device.compile=auto", "train.steps=100000000"))
    assert not device.compile
    assert "install g++" in device.compile_reason
    with pytest.raises(ConfigError, match=r"device\.compile is on, but this machine cannot compile"):
        resolve(_resolved(texts, "device.compile=on"))


FREED = """
from pathlib import Path
import torch
from training.device.cpu import _keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

_keep_freed_memory()
before = resident()
block = torch.ones(1 << 24)
assert resident() - before > 60 << 20
del block
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
@pytest.mark.parametrize(("ranks", "kept"), [("1", True), ("2", False)])
def test_a_large_block_that_is_freed_stays_with_a_single_rank(ranks: str, kept: bool) -> None:
    words, environment = [sys.executable, "-c", FREED], {**os.environ, "WORLD_SIZE": ranks}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert (int(done.stdout) > 60 << 20) is kept


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device, which the test needs absent")
def test_cuda_without_a_card_is_refused(texts: Texts) -> None:
    with pytest.raises(ConfigError, match=r"device\.type is cuda, but torch sees no CUDA device"):
        resolve(_resolved(texts, "device.type=cuda"))


def test_test_processes_share_the_cores() -> None:
    """More threads than cores made trainings run into their time limits on a busy machine."""
    share = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    assert torch.get_num_threads() <= share
    assert cpu_threads() <= share
