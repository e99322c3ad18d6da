"""The interface of a device, with defaults for one that works eagerly on tensors in host memory."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from training.run.directory import RunDir


@dataclass(frozen=True)
class Device:
    """A rank's device with every `auto` of the configuration resolved."""

    torch_device: torch.device
    precision: str  # bf16 | fp32
    attention: str  # eager | blocks | sdpa | flex_attention
    compile: bool
    compile_reason: str  # why blocks are compiled or not

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    @property
    def backend(self) -> str:
        """torch.distributed's backends; tensors in host memory always use gloo."""
        return "gloo"

    @property
    def birthplace(self) -> torch.device:
        """The device on which a model gets memory and initial values, before `settle`."""
        return self.torch_device

    @property
    def fuses_optimizer(self) -> bool:
        """Whether torch has a fused optimizer step for this device."""
        return True

    @property
    def compiles_evaluation(self) -> bool:
        """Whether evaluation compiles blocks too, where training does."""
        return True

    @property
    def wraps(self) -> bool:
        """Whether DistributedDataParallel exchanges gradients; else the loop calls `exchange`."""
        return True

    def lacks_float8(self, recipe: str) -> str | None:
        """Why this device cannot multiply float8 with scales for each tensor or row; None if it can."""
        return f"{self.name()} multiplies no float8"

    @property
    def extracts_graphs(self) -> bool:
        """Whether a compiler only collects graphs from this run: nothing is computed, no value is real."""
        return False

    def settle(self, model: nn.Module) -> None:
        """Move an initialised model to this device; tied tensors stay tied."""

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 computation over fp32 parameters; does nothing for precision fp32."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def put(self, arrays: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        """One micro batch's arrays as tensors of this device."""
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def copy_to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the host's memory; its values are there after `synchronize`."""
        return tensor.detach().to("cpu", copy=True)

    def values(self, numbers: Sequence[float]) -> torch.Tensor:
        """Numbers of the host as a tensor of this device, fp32, without waiting for the device."""
        return torch.tensor(numbers, dtype=torch.float32, device=self.torch_device)

    def micro_batch_done(self) -> None:
        """Called after a forward and backward pass: a lazy device starts to run it."""

    def step_done(self) -> None:
        """Called after an optimizer step: a lazy device starts to run it."""

    def exchange(self, gradients: Sequence[torch.Tensor], group: dist.ProcessGroup | None, world_size: int) -> None:
        """Replace gradients by their mean over all ranks if `wraps` is False; `group` is for host tensors."""

    def graphs_compiled(self) -> int | None:
        """Number of whole graphs that this process has compiled; None if the device has no such graphs."""
        return None

    @contextmanager
    def cache_claimed(self, run: RunDir) -> Iterator[None]:
        """Hold this run's claim on a compile cache that is shared with other runs; only rank 0 calls it.

        Raises:
            ConfigError: another job uses the cache.
        """
        yield

    def mark(self) -> Any:
        """Mark a point in this device's queue of work, for `seconds`."""
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; waits for the second one."""
        return float(end - start)

    def synchronize(self) -> None:
        """Wait for all queued work."""

    def memory_gib(self) -> float:
        """Peak memory of this rank in GiB: allocated on the card, or resident in the process without one."""
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30

    def name(self) -> str:
        """The device's name for people."""
        raise NotImplementedError

    def peak_flops(self) -> tuple[float | None, str]:
        """Peak FLOP/s of this rank's device at the run's precision, and the source of the figure."""
        raise NotImplementedError

    def seed(self, value: int) -> None:
        """Seed every random generator that training may draw from on this rank."""
        torch.manual_seed(value)

    def rng_state(self) -> dict[str, torch.Tensor]:
        """State of every random generator that training may draw from on this rank, as byte tensors."""
        return {"cpu": torch.get_rng_state()}

    def set_rng_state(self, state: dict[str, torch.Tensor]) -> None:
        """Restore what `rng_state` returned; ignore the state of a device that this rank does not have."""
        torch.set_rng_state(state["cpu"])
