"""The CPU as a device: its threads, its abilities, its measured peak."""

from __future__ import annotations

import ctypes
import os
import shutil
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from training.config import Config, ConfigError, choices
from training.device.base import Device

# Parameters of glibc's mallopt (malloc.h), and what they become: bytes of a block, of free memory at the heap's end.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 1 << 30), (-1, (1 << 31) - 1)


@dataclass(frozen=True)
class Cpu(Device):
    """This rank's share of the processor's cores."""

    long_evaluation: bool = False

    @property
    def compiles_evaluation(self) -> bool:
        return self.long_evaluation

    def name(self) -> str:
        return f"cpu x {torch.get_num_threads()} threads"

    def peak_flops(self) -> tuple[float | None, str]:
        """Measured now with this rank's threads; the sum over ranks is right only if all measure at once."""
        return matmul_peak(self.precision), "measured"


def resolve_cpu(config: Config) -> Cpu:
    torch.set_num_threads(cpu_threads())
    _keep_freed_memory()
    precision = _precision(config)
    compiles, reason = _compiles(config, precision)
    attention, evaluation = choices.attention_on_a_cpu(config, compiles), choices.compiles_evaluation(config)
    return Cpu(torch.device("cpu"), precision, attention, compiles, reason, evaluation)


def _keep_freed_memory() -> None:
    """Let glibc reuse large blocks instead of giving them back to the kernel when they are freed, in a job of one rank.

    It gives back those above 32 MiB, such as a batch's logits, and in each step each of their pages faults again: 3 to
    4 % of the processor time of cpu/llama-tiny in one process. Two ranks with half of the batch have no such block, and
    are 5 to 10 % slower with it. Other C libraries stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and os.environ.get("WORLD_SIZE", "1") == "1":
        for parameter, value in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(parameter, value)


def cpu_threads() -> int:
    """Threads of this rank: its pod's CPUs (TRAINYARD_CPUS, else all usable) divided by the local ranks."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("TRAINYARD_CPUS", "")
    cpus = min(int(granted), usable) if granted.isdigit() and int(granted) > 0 else usable
    return max(1, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _precision(config: Config) -> str:
    if config.device.precision != "auto":
        return config.device.precision
    return "fp32" if fastest_format() == "fp32" else "bf16"


def fastest_format() -> str:
    """Return what this processor multiplies fastest: "amx" (bf16 in tiles), "bf16" or "fp32".

    Without hardware support bf16 is emulated and several times slower than fp32. Intel's processors with AVX512-BF16
    but without AMX, as many virtual machines show them, multiply it half as fast as fp32: see docs/performance.md.
    """
    abilities = torch.cpu.get_capabilities()
    if abilities.get("amx_bf16"):
        return "amx"
    intel = str(abilities.get("cpu_name", "")).startswith("Intel")
    return "bf16" if abilities.get("avx512_bf16") and not intel else "fp32"


def _compiles(config: Config, precision: str) -> tuple[bool, str]:
    wanted = config.device.compile
    if not choices.compiles(config, precision == "fp32"):
        return False, "device.compile is off" if wanted == "off" else "a short run"
    compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if compiler and header.exists():
        return True, f"C++ compiler {compiler}"
    lacking = "no C++ compiler (install g++)" if not compiler else f"no {header} (install Python's development files)"
    if wanted == "on":
        raise ConfigError(f"device.compile is on, but this machine cannot compile: {lacking}; nearest value: auto")
    return False, lacking


def matmul_peak(precision: str, size: int = 1024, rounds: int = 12) -> float:
    """Return the best FLOP/s of `rounds` products of two square matrices of `size` rows with this process's threads."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(size, size, generator=generator).to(dtype)
    b = torch.randn(size, size, generator=generator).to(dtype)
    with torch.no_grad():
        return max(2 * size**3 / _seconds(lambda: a @ b) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    """Seconds on the processors: while other programs run, the wall clock would show their work too.

    The kernel sometimes counts too little for the other threads, so this thread's own seconds are the least.
    """
    whole, own = time.process_time(), time.thread_time()
    work()
    return max((time.process_time() - whole) / torch.get_num_threads(), time.thread_time() - own)
