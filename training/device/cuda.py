"""NVIDIA cards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from training.config import Config, ConfigError
from training.device.base import Device
from training.device.peaks import card_peak


@dataclass(frozen=True)
class Cuda(Device):
    """One card, chosen by the local rank."""

    @property
    def backend(self) -> str:
        return "cpu:gloo,cuda:nccl"

    def put(self, arrays: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        return {
            name: torch.from_numpy(array).pin_memory().to(self.torch_device, non_blocking=True)
            for name, array in arrays.items()
        }

    def copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        # torch keeps freed pinned memory for the next copy.
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor.detach(), non_blocking=True)

    def values(self, numbers: Sequence[float]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float32).pin_memory().to(self.torch_device, non_blocking=True)

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def memory_gib(self) -> float:
        return torch.cuda.max_memory_allocated() / 2**30

    def name(self) -> str:
        return torch.cuda.get_device_name()

    def peak_flops(self) -> tuple[float | None, str]:
        """From the table of data sheets; None for an unknown card."""
        return card_peak(self.name(), self.precision)

    def lacks_float8(self, recipe: str) -> str | None:
        """Compute capabilities by torchao's documentation of float8 training (docs.pytorch.org/ao, 2026-11)."""
        least, found = (9, 0) if recipe == "rowwise" else (8, 9), torch.cuda.get_device_capability(self.torch_device)
        if found >= least:
            return None
        return (
            f"{self.name()} has compute capability {'.'.join(map(str, found))}, and float8 {recipe} needs "
            f"{'.'.join(map(str, least))}"
        )

    def rng_state(self) -> dict[str, torch.Tensor]:
        return {**super().rng_state(), "cuda": torch.cuda.get_rng_state(self.torch_device)}

    def set_rng_state(self, state: dict[str, torch.Tensor]) -> None:
        super().set_rng_state(state)
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.torch_device)


def resolve_cuda(config: Config) -> Cuda:
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} has no card: this pod has {torch.cuda.device_count()} CUDA devices; "
            "nprocPerNode must not exceed that"
        )
    torch.cuda.set_device(local_rank)
    wanted, attention = config.device.precision, config.device.attention
    if wanted == "auto":
        wanted = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if attention == "auto":
        plain = config.model.bert is not None or config.plainly_causal
        attention = "sdpa" if plain or config.model.attention_dropout else "flex_attention"  # which has no dropout
    compiles = config.device.compile != "off"
    reason = "cuda" if compiles else "device.compile is off"
    return Cuda(torch.device("cuda", local_rank), wanted, attention, compiles, reason)
