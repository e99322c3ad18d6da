"""AWS Trainium through torch_xla: operations are recorded and compiled as whole graphs.

torch_xla's CPU client (PJRT_DEVICE=CPU) makes and runs the same graphs without the hardware and without AWS's
compiler. Two things differ there: processes do not know each other, so gradients are exchanged on the host;
and the compile cache is in this process's memory.

Facts: torch_xla 2.9, torch_xla/__init__.py, runtime.py and _internal/neuron.py; AWS Neuron documentation,
"PyTorch NeuronX neuron_parallel_compile CLI" and "Neuron sysfs user guide".
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from training.config import Config, ConfigError
from training.device.base import Device
from training.device.peaks import card_peak
from training.neuron import cache as neuron_cache
from training.run.directory import RunDir

CPU_CLIENT, NEURON = "CPU", "NEURON"  # values of PJRT_DEVICE
INSTANCE_TYPE = Path("/sys/devices/virtual/neuron_device/neuron0/info/architecture/instance_type")
TORCH_NEURONX = "torch 2.9 with torch-neuronx 2.9 (requirements of the image trainer-neuron)"


@dataclass(frozen=True)
class Neuron(Device):
    """One NeuronCore, or torch_xla's CPU client instead."""

    client: str  # NEURON | CPU
    cache: Path | None  # the compiler's cache on disk; the CPU client has none

    @property
    def backend(self) -> str:
        return "cpu:gloo,xla:xla"

    @property
    def birthplace(self) -> torch.device:
        # On the device every filled row would be a separate graph to compile.
        return torch.device("cpu")

    @property
    def fuses_optimizer(self) -> bool:
        return False

    @property
    def wraps(self) -> bool:
        return False

    @property
    def extracts_graphs(self) -> bool:
        return bool(os.environ.get("NEURON_EXTRACT_GRAPHS_ONLY"))

    def settle(self, model: nn.Module) -> None:
        moved: dict[int, Any] = {}  # a tensor in two places stays one tensor
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in moved:
                    there = parameter.detach().to(self.torch_device)
                    moved[id(parameter)] = nn.Parameter(there, parameter.requires_grad)
                setattr(module, name, moved[id(parameter)])
            for name, buffer in list(module.named_buffers(recurse=False)):
                module._buffers[name] = moved.setdefault(id(buffer), buffer.to(self.torch_device))
        self.step_done()

    def put(self, arrays: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array).to(self.torch_device) for name, array in arrays.items()}

    def micro_batch_done(self) -> None:
        # One graph per pass: compiling all passes of a step as one graph would take hours.
        self.step_done()

    def step_done(self) -> None:
        import torch_xla

        torch_xla.sync()

    def exchange(self, gradients: Sequence[torch.Tensor], group: dist.ProcessGroup | None, world_size: int) -> None:
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        if world_size == 1:
            return
        if xr.world_size() == world_size:  # in the graph, over NeuronLink and EFA
            xm.all_reduce(xm.REDUCE_SUM, list(gradients), scale=1 / world_size)
            return
        if self.client != CPU_CLIENT:
            raise ConfigError(
                f"torchrun started {world_size} ranks, the Neuron runtime knows {xr.world_size()}: "
                "do not set NEURON_RT_VISIBLE_CORES or NEURON_PJRT_* with torchrun"
            )
        flat = torch.cat([gradient.detach().cpu().flatten() for gradient in gradients])
        dist.all_reduce(flat, group=group)
        flat /= world_size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view(gradient.shape))

    def graphs_compiled(self) -> int | None:
        import torch_xla.debug.metrics as counters

        return int(counters.counter_value("UncachedCompile") or 0)

    @contextmanager
    def cache_claimed(self, run: RunDir) -> Iterator[None]:
        if self.cache is None:
            yield
            return
        with neuron_cache.claimed(self.cache, run.name):
            neuron_cache.add_precompiled(self.cache)
            yield

    def seconds(self, start: Any, end: Any) -> float:
        """By the host's clock: at most one step is queued, so the median of several steps is right."""
        return super().seconds(start, end)

    def synchronize(self) -> None:
        import torch_xla.core.xla_model as xm

        xm.wait_device_ops()

    def name(self) -> str:
        if self.client == CPU_CLIENT:
            return "XLA's CPU client"
        kind = INSTANCE_TYPE.read_text().strip() if INSTANCE_TYPE.exists() else "unknown"
        known = {"trn1": "Trainium core", "trn2": "Trainium2 core"}
        return known.get(kind.lower()[:4], f"Neuron core of {kind}")

    def peak_flops(self) -> tuple[float | None, str]:
        return card_peak(self.name(), self.precision)

    def seed(self, value: int) -> None:
        import torch_xla.core.xla_model as xm

        super().seed(value)
        xm.set_rng_state(value % 2**62, str(self.torch_device))

    def rng_state(self) -> dict[str, torch.Tensor]:
        import torch_xla.core.xla_model as xm

        seed = xm.get_rng_state(str(self.torch_device)).to_bytes(8, "little")
        return {**super().rng_state(), "xla": torch.tensor(list(seed), dtype=torch.uint8)}

    def set_rng_state(self, state: dict[str, torch.Tensor]) -> None:
        import torch_xla.core.xla_model as xm

        super().set_rng_state(state)
        if "xla" in state:
            xm.set_rng_state(int.from_bytes(state["xla"].tolist(), "little"), str(self.torch_device))


def is_here() -> bool:
    """Whether this machine has Neuron devices and their runtime."""
    return Path("/dev/neuron0").exists() and importlib.util.find_spec("libneuronxla") is not None


def resolve_neuron(config: Config) -> Neuron:
    """Resolve this rank's core, and set NEURON_COMPILE_CACHE_URL to the cache of device.cacheset.

    Raises:
        ConfigError: torch_xla or the devices are missing, or a key asks for what XLA does not support.
    """
    for _, refused in config.refused_on("neuron"):  # `auto` is known here only
        raise ConfigError(refused)
    client = os.environ.get("PJRT_DEVICE", NEURON)
    if client not in (NEURON, CPU_CLIENT):
        raise ConfigError(f"PJRT_DEVICE is {client!r}: device.type neuron runs on {NEURON}, or {CPU_CLIENT}")
    if importlib.util.find_spec("torch_xla") is None:
        raise ConfigError(f"device.type is neuron, but torch_xla is not installed here: {TORCH_NEURONX}")
    if client == NEURON and not is_here():
        raise ConfigError(
            "device.type is neuron, but this machine has no Neuron device (/dev/neuron0 and libneuronxla); "
            "PJRT_DEVICE=CPU runs the same graphs on the CPU"
        )
    cache = neuron_cache.use(config) if client == NEURON else None
    import torch_xla
    import torch_xla.distributed.xla_backend  # registers the backend `xla`

    precision = config.device.precision
    if precision == "auto":
        precision = "bf16" if client == NEURON else "fp32"
    reason = "Neuron compiles whole graphs"
    return Neuron(torch_xla.device(), precision, "eager", False, reason, client, cache)
