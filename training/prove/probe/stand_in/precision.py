"""Mixed precision: regions for CUDA become regions for the CPU."""

from __future__ import annotations

import functools
import warnings
from typing import Any


def _kind(device: Any) -> Any:
    return "cpu" if isinstance(device, str) and device.split(":")[0] == "cuda" else device


def install(torch: Any) -> None:
    """Replace autocast's device and the questions about it. Scaling of losses is left out where the CPU cannot."""
    half = functools.lru_cache(maxsize=1)(lambda: _half(torch))
    region = torch.amp.autocast_mode.autocast
    made = region.__init__

    @functools.wraps(made)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if _kind(device_type) != device_type:
            dtype = half() if dtype in (None, torch.float16) else dtype
        made(self, _kind(device_type), dtype, *args, **kwargs)

    region.__init__ = init
    _questions(torch)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    _scaler(torch, scaler)


def _half(torch: Any) -> Any:
    """Return float16 where this CPU trains with it in autocast, else bfloat16."""
    try:
        with warnings.catch_warnings(), torch.random.fork_rng([]), torch.autocast("cpu", torch.float16):
            warnings.simplefilter("ignore")
            images = torch.ones(1, 1, 4, 4, requires_grad=True)
            rows = torch.nn.functional.conv2d(images, torch.ones(2, 1, 3, 3)).flatten(2)
            result = torch.nn.functional.linear(torch.softmax(rows, -1), torch.ones(4, 4))
            result.float().sum().backward()
            return torch.float16 if result.dtype == torch.float16 else torch.bfloat16
    except (RuntimeError, TypeError, ValueError):
        return torch.bfloat16


def _questions(torch: Any) -> None:
    """Ask about the CPU's region instead of CUDA's. Older releases have other names for the CPU's."""
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        plain = getattr(torch, name, None)
        if plain is not None:
            setattr(torch, name, _asks(plain, getattr(torch, f"{name[:-8]}_cpu_enabled", None)))
    for old, new in (("get_autocast_gpu_dtype", "get_autocast_cpu_dtype"),):
        if hasattr(torch, new):
            setattr(torch, old, getattr(torch, new))


def _asks(plain: Any, of_cpu: Any) -> Any:
    @functools.wraps(plain)
    def ask(*args: Any) -> Any:
        if args and isinstance(args[0], str):
            return plain(_kind(args[0]), *args[1:])
        if of_cpu is not None:
            return of_cpu(*args)
        return plain(*args)

    return ask


def _scaler(torch: Any, scaler: Any) -> None:
    """Disable a scaler where the CPU has no kernels for it (torch before 2.3)."""
    try:
        scale, growth = torch.ones(()), torch.zeros((), dtype=torch.int32)
        torch._amp_update_scale_(scale, growth, torch.zeros(()), 2.0, 0.5, 2000)
        torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(1)], torch.zeros(()), torch.ones(()))
    except (RuntimeError, NotImplementedError):
        made = scaler.__init__

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            self._enabled = False

        scaler.__init__ = init
