"""Modules and optimizers that choose another way when there are GPUs."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

from .places import Places


def install(torch: Any, places: Places) -> None:
    """Let compiled code run as it is written, optimizers choose kernels of the CPU, and replicas stay one module."""
    _compile(torch)
    for name in torch.optim.__dict__:
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            _optimizer(torch, kind)
    replicas = sys.modules.get("torch.nn.parallel.data_parallel")
    if replicas is not None and hasattr(replicas, "_get_available_device_type"):
        replicas._get_available_device_type = lambda: None  # type: ignore[attr-defined]
    _batch_norm(torch)
    to = torch.nn.Module.to

    @functools.wraps(to)
    def module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """An integer is a CUDA device, also for a torch without CUDA."""
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = (torch.device("cuda", places.check(args[0])), *args[1:])
        return to(self, *args, **kwargs)

    torch.nn.Module.to = module_to


def _compile(torch: Any) -> None:
    stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    compiled = torch.compile

    @functools.wraps(compiled)
    def compile_nothing(model: Any = None, **kwargs: Any) -> Any:
        kwargs = {name: value for name, value in kwargs.items() if name not in ("mode", "options")}
        if stance is not None:
            stance("force_eager")
        return compiled(model, **{**kwargs, "backend": "eager"})

    torch.compile = compile_nothing


def _optimizer(torch: Any, kind: Any) -> None:
    """Leave out what needs a kernel of CUDA: a capturable step, and a fused one where the CPU has none."""
    made = kind.__init__
    fused_here = "cpu" in _fused_devices()

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("capturable"):
            kwargs["capturable"] = False
        if kwargs.get("fused") and not fused_here:
            kwargs["fused"] = None
        made(self, *args, **kwargs)

    kind.__init__ = init


def _fused_devices() -> list[str]:
    helpers: Any = sys.modules.get("torch.utils._foreach_utils")
    devices = getattr(helpers, "_get_fused_kernels_supported_devices", None)
    return list(devices()) if devices else []


def _batch_norm(torch: Any) -> None:
    """Compute `SyncBatchNorm`, whose kernels are CUDA's, from sums over all ranks."""
    kind = torch.nn.SyncBatchNorm

    def forward(self: Any, values: Any) -> Any:
        dist = torch.distributed
        group = self.process_group
        together = self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
        self._check_input_dim(values)
        return _shared(torch, self, values) if together else _alone(torch, self, values)

    kind.forward = forward


def _alone(torch: Any, layer: Any, values: Any) -> Any:
    tracked = layer.track_running_stats and layer.running_mean is not None
    if layer.training and tracked and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    return torch.nn.functional.batch_norm(
        values, layer.running_mean, layer.running_var, layer.weight, layer.bias,
        layer.training or not tracked, _momentum(layer), layer.eps,
    )  # fmt: skip


def _momentum(layer: Any) -> float:
    return 1.0 / max(float(layer.num_batches_tracked), 1.0) if layer.momentum is None else layer.momentum


def _shared(torch: Any, layer: Any, values: Any) -> Any:
    from torch.distributed.nn.functional import all_reduce

    axes = [axis for axis in range(values.dim()) if axis != 1]
    shape = [1, -1] + [1] * (values.dim() - 2)
    wide = values.double()
    count = wide.new_full((1,), wide.numel() / wide.shape[1])
    group = layer.process_group or torch.distributed.group.WORLD
    parts = torch.cat([wide.sum(axes), (wide * wide).sum(axes), count])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its successor is not in every version
        total = all_reduce(parts, group=group)
    channels, number = wide.shape[1], total[-1]
    mean = total[:channels] / number
    variance = total[channels:-1] / number - mean * mean
    if layer.track_running_stats and layer.running_mean is not None:
        layer.num_batches_tracked.add_(1)
        with torch.no_grad():
            unbiased = variance * number / (number - 1).clamp(min=1)
            layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), _momentum(layer))
            layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), _momentum(layer))
    result = ((wide - mean.view(shape)) * (variance.view(shape) + layer.eps).rsqrt()).to(values.dtype)
    if not layer.affine:
        return result
    return result * layer.weight.view(shape) + layer.bias.view(shape)
