"""torch.distributed: NCCL becomes gloo, and wrappers of modules take the CPU for their device."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable

from .. import imports

_AVERAGED = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")


def install(torch: Any) -> None:
    """Replace backends and devices, in the modules that are loaded now and in those that come later."""
    dist = torch.distributed
    if not dist.is_available():
        return
    core = sys.modules["torch.distributed.distributed_c10d"]
    for name in ("init_process_group", "new_group"):
        _everywhere(core, name, _grouped(getattr(core, name), name == "init_process_group"))
    _everywhere(core, "is_nccl_available", lambda: True)
    _everywhere(core, "barrier", _without(core.barrier, "device_ids"))
    for name in _AVERAGED:
        if hasattr(core, name):
            _everywhere(core, name, _averaged(torch, getattr(core, name)))
    replicas = torch.nn.parallel.DistributedDataParallel
    replicas.__init__ = _without(replicas.__init__, "device_ids", "output_device")
    replicas._passing_sync_batchnorm_handle = lambda replica, module: None  # refuses SyncBatchNorm on the CPU
    imports.on_import("torch.distributed.device_mesh", _meshes)
    imports.on_import("torch.distributed.fsdp.fully_sharded_data_parallel", functools.partial(_sharded, torch))


def _everywhere(core: Any, name: str, value: Any) -> None:
    """Set a function where it is defined, in `torch.distributed`, and in the loaded modules that imported it."""
    old = getattr(core, name)
    for place, module in list(sys.modules.items()):
        if place.startswith("torch.") and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, value)


def _bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments | None:
    """Return the arguments by name; None when they do not fit, and the function's own error is due."""
    try:
        return inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None


def _without(function: Any, *names: str) -> Callable[..., Any]:
    """Return a function that ignores some of its arguments."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _bound(function, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)
        for name in names:
            bound.arguments.pop(name, None)
        return function(*bound.args, **bound.kwargs)

    return call


def _grouped(function: Any, first: bool) -> Callable[..., Any]:
    """Return a function that makes a group with gloo for NCCL. `first`: no backend means NCCL on a GPU."""
    plain = _without(function, "device_id", "pg_options")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _bound(function, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)
        backend = bound.arguments.get("backend")
        if not (first and backend is None) and "nccl" not in str(backend).lower():
            return function(*args, **kwargs)
        named = {**bound.arguments, "backend": "gloo"}
        return plain(**named)

    return call


def _averaged(torch: Any, function: Any) -> Callable[..., Any]:
    """Return a collective that averages, which gloo cannot: each rank divides before the sum."""
    dist = torch.distributed

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _bound(function, args, kwargs)
        if bound is None or bound.arguments.get("op") != dist.ReduceOp.AVG:
            return function(*args, **kwargs)
        size = dist.get_world_size(bound.arguments.get("group"))
        with torch.no_grad():
            for name in ("input_list", "input"):  # what a script gives stays as it is
                if name in bound.arguments:
                    given = bound.arguments[name]
                    parts = [one / size for one in given] if isinstance(given, (list, tuple)) else given / size
                    bound.arguments[name] = parts
            if "tensor" in bound.arguments:
                bound.arguments["tensor"].div_(size)
        bound.arguments["op"] = dist.ReduceOp.SUM
        return function(*bound.args, **bound.kwargs)

    return call


def _meshes(module: Any) -> None:
    mesh = getattr(module, "DeviceMesh", None)
    if mesh is None:
        return
    made = mesh.__init__

    @functools.wraps(made)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    mesh.__init__ = init


def _sharded(torch: Any, module: Any) -> None:
    """Give FSDP of the first version the CPU as its device. A script must not ask for another one."""
    kind = module.FullyShardedDataParallel
    made = kind.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = _bound(made, (self, *args), kwargs)
        if bound is None:
            made(self, *args, **kwargs)
            return
        bound.arguments["device_id"] = torch.device("cpu")
        made(*bound.args, **bound.kwargs)

    kind.__init__ = init
