"""The one place that knows which device a rank runs on: cpu or cuda, chosen at run time.

Everything else asks this module: where tensors live, which precision and attention fit, how to take the
time of queued work, how much memory is used, and what the card's peak is.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.config import Config, ConfigError

# Dense BF16 peaks, FLOP/s per device, without structured sparsity. Sources: NVIDIA's data sheets of each card
# (A10G: AWS's variant of the A10, 70 TFLOPS tensor; L4, L40S, B200: half of the figure "with sparsity");
# Trainium: AWS Neuron documentation, trn1 architecture, 190 TFLOPS a chip of two cores.
# Matched in this order, as whole words of the device's name.
PEAK_BF16: tuple[tuple[str, float], ...] = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("A10G", 70e12),
    ("L4", 121e12),
    ("Trainium", 95e12),
)
# The same cards outside the tensor cores, for fp32 runs (TF32 is not switched on).
PEAK_FP32: tuple[tuple[str, float], ...] = (
    ("H100 PCIe", 51e12),
    ("H100 NVL", 60e12),
    ("H100", 67e12),
    ("H200", 67e12),
    ("B200", 75e12),
    ("A100", 19.5e12),
    ("L40S", 91.6e12),
    ("A10G", 35e12),
    ("L4", 30.3e12),
)


@dataclass(frozen=True)
class Device:
    """A rank's device with every `auto` of the configuration resolved."""

    torch_device: torch.device
    precision: str  # bf16 | fp32
    attention: str  # eager | sdpa | flex_attention
    compile: bool
    compile_reason: str  # why blocks are compiled, or not

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    @property
    def backend(self) -> str:
        """Collectives: NCCL for CUDA tensors, gloo always for CPU ones."""
        return "cpu:gloo,cuda:nccl" if self.is_cuda else "gloo"

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 compute over fp32 parameters; nothing in fp32."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def mark(self) -> Any:
        """A point in this device's queue of work, for `seconds`."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; waits for the second one."""
        if not self.is_cuda:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def memory_gib(self) -> float:
        """Peak memory of this rank in GiB: allocated on the card, or resident in the process."""
        if self.is_cuda:
            return torch.cuda.max_memory_allocated() / 2**30
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30

    def name(self) -> str:
        return torch.cuda.get_device_name() if self.is_cuda else f"cpu x {torch.get_num_threads()} threads"


def resolve(config: Config) -> Device:
    """Choose the device of this process and resolve every `auto`.

    Raises:
        ConfigError: the configuration asks for what this machine does not have.
    """
    wanted = config.device.type
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device.type is cuda, but torch sees no CUDA device here; nearest value: auto")
    kind = "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"local rank {local_rank} has no card: {torch.cuda.device_count()} CUDA devices here; "
                "nprocPerNode must not exceed them"
            )
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(cpu_threads())
    compiles, reason = _compiles(config.device.compile, kind)
    return Device(device, _precision(config, kind), _attention(config, kind), compiles, reason)


def cpu_threads() -> int:
    """Threads of this rank: its pod's CPUs (TRAINYARD_CPUS, else all usable) over its local ranks."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("TRAINYARD_CPUS", "")
    cpus = min(int(granted), usable) if granted.isdigit() and int(granted) > 0 else usable
    return max(1, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _precision(config: Config, kind: str) -> str:
    if config.device.precision != "auto":
        return config.device.precision
    if kind == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    # Without hardware support bf16 is emulated and several times slower than fp32.
    native = any(
        getattr(torch.cpu, name, lambda: False)()
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    )
    return "bf16" if native else "fp32"


def _attention(config: Config, kind: str) -> str:
    if config.device.attention != "auto":
        return config.device.attention
    if kind == "cuda":
        return "flex_attention"
    # Plain attention is faster than SDPA on CPU up to 512 tokens, slower above (measured at 256, 512, 2048).
    return "eager" if config.sequence_length <= 512 else "sdpa"


def _compiles(wanted: str, kind: str) -> tuple[bool, str]:
    if wanted == "off":
        return False, "device.compile is off"
    if kind == "cuda":
        return True, "cuda"
    compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if compiler and header.exists():
        return True, f"C++ compiler {compiler}"
    lacking = (
        "no C++ compiler (install g++)"
        if not compiler
        else f"no {header} (install Python's development files)"
    )
    if wanted == "on":
        raise ConfigError(
            f"device.compile is on, but this machine cannot compile: {lacking}; nearest value: auto"
        )
    return False, lacking


def peak_flops(device: Device) -> tuple[float | None, str]:
    """Peak FLOP/s of this rank's device at the run's precision, and where the figure comes from.

    CUDA: from the table of data sheets; unknown cards give None. CPU: measured here, now, with this rank's
    threads, so all ranks must call it at the same time for the sum to be honest.
    """
    if not device.is_cuda:
        return _measure_matmul(device), "measured"
    table = PEAK_BF16 if device.precision == "bf16" else PEAK_FP32
    return card_peak(device.name(), table)


def card_peak(name: str, table: tuple[tuple[str, float], ...] = PEAK_BF16) -> tuple[float | None, str]:
    """Peak FLOP/s of a card by the name that CUDA gives it, as whole words: an L40 is not an L4."""
    known = (peak for key, peak in table if re.search(rf"\b{re.escape(key)}\b", name))
    peak = next(known, None)
    return (peak, "data sheet") if peak else (None, f"unknown card {name}")


def _measure_matmul(device: Device, size: int = 1024, rounds: int = 12) -> float:
    dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(size, size, generator=generator).to(dtype)
    b = torch.randn(size, size, generator=generator).to(dtype)
    with torch.no_grad():
        return max(2 * size**3 / _seconds(lambda: a @ b) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rng_state(device: Device) -> dict[str, torch.Tensor]:
    """State of every random generator that training may draw from on this rank, as byte tensors."""
    state = {"cpu": torch.get_rng_state()}
    if device.is_cuda:
        state["cuda"] = torch.cuda.get_rng_state(device.torch_device)
    return state


def set_rng_state(device: Device, state: dict[str, torch.Tensor]) -> None:
    """Put back what `rng_state` returned; a state of a device this rank does not have is left out."""
    torch.set_rng_state(state["cpu"])
    if device.is_cuda and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device.torch_device)
