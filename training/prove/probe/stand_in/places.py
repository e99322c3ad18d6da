"""Where a tensor is: devices of CUDA become the CPU, and the script is told otherwise."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import threading
from typing import Any, Callable

_CUDA = re.compile(r"cuda(?::(\d{1,4}))?\Z")
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_PROVE = os.path.dirname(os.path.dirname(_PACKAGE))
_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), _PROVE + os.sep})
# A storage remembers where the script moved it; it is absent for results of operations.
_PLACE = "trainyard_place"

Handler = Callable[[Any, "tuple[Any, ...]", "dict[str, Any]"], Any]


@functools.lru_cache(maxsize=4096)
def of_library(file: str) -> bool:
    """Return whether code of this file is Python's, an installed package's or ours, and not the script's."""
    installed = f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
    return installed or file.startswith("<frozen") or file.startswith(_LIBRARIES)


class Places:
    """The devices of this process, and the functions of torch that take or tell a device."""

    def __init__(self, torch: Any, count: int) -> None:
        self.torch = torch
        self.count = count
        self.current = 0
        self._cpu = torch.device("cpu")
        tensor = torch.Tensor
        self._handlers: dict[Any, Handler] = {
            tensor.to: self._to,
            tensor.cuda: self._to_cuda,
            tensor.cpu: self._to_cpu,
            tensor.type: self._type,
            tensor.pin_memory: lambda _, arguments, __: arguments[0],
            tensor.is_cuda.__get__: self._is_cuda,
            tensor.device.__get__: self._device,
            tensor.get_device: self._index,
        }
        self._types = (tensor, torch.nn.Parameter)

    def install(self) -> None:
        """Follow every function of torch in this thread and in later ones."""
        from torch.overrides import TorchFunctionMode

        class StandIn(TorchFunctionMode):
            """Sees the calls of torch's functions before torch."""

            def __torch_function__(
                _, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
            ) -> Any:
                return self.call(func, args, kwargs or {})

        mode = StandIn()
        mode.__enter__()
        begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def bootstrap(thread: threading.Thread) -> None:
            mode.__enter__()
            begin(thread)

        threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]
        self.torch.Tensor.pin_memory = lambda tensor, device=None: tensor
        self.torch.Tensor.record_stream = lambda tensor, stream: None
        self.torch.Tensor.backward = _backward(self.torch)

    # Devices

    def check(self, index: int | None) -> int:
        """Return the number of a device. Raises RuntimeError, as CUDA does, for one that does not exist."""
        index = self.current if index is None else index
        if not 0 <= index < self.count:
            known = f"this node has {self.count} rank{'s' * (self.count > 1)}, and so many devices"
            raise RuntimeError(f"CUDA error: invalid device ordinal {index} ({known})")
        return index

    def index(self, device: Any) -> int | None:
        """Return the number of a CUDA device (text, number, torch.device; None is the current one), else None."""
        if device is None:
            return self.current
        if isinstance(device, self.torch.device):
            return self.check(device.index) if device.type == "cuda" else None
        if isinstance(device, int) and not isinstance(device, bool):
            return self.current if device < 0 else self.check(device)
        if isinstance(device, str):
            match = _CUDA.match(device)
            return self.check(int(match.group(1)) if match.group(1) else None) if match else None
        return None

    def is_cuda(self, device: Any) -> bool:
        return device is not None and self.index(device) is not None

    def mapped(self, device: Any) -> Any:
        """Return the CPU for a CUDA device, and any other device as it is."""
        return self._cpu if self.is_cuda(device) else device

    # Calls

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a function of torch on the CPU."""
        try:
            handler = self._handlers.get(func)
        except TypeError:  # not hashable: a function of other code
            handler = None
        if handler is not None:
            return handler(func, args, kwargs)
        device = kwargs.get("device")
        args = tuple(self.mapped(one) if type(one) is self.torch.device else one for one in args)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if device is None or not self.is_cuda(device):
            return func(*args, **kwargs)
        return self._mark(func(*args, **{**kwargs, "device": self._cpu}), "cuda")

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = kwargs.get("device")
        wanted = args[1] if wanted is None and len(args) > 1 else wanted
        if self.is_cuda(wanted):
            args = tuple(self._cpu if one is wanted and place else one for place, one in enumerate(args))
            kwargs = {**kwargs, "device": self._cpu} if kwargs.get("device") is not None else kwargs
            return self._moved(args[0], func(*args, **kwargs), "cuda")
        moved = func(*args, **kwargs)
        cpu = str(wanted) == "cpu" if isinstance(wanted, (str, self.torch.device)) else False
        return self._moved(args[0], moved, "cpu") if cpu else moved

    def _to_cuda(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        if device is not None and not self.is_cuda(device):
            raise ValueError(f"Invalid device, must be cuda device: {device}")
        self.check(self.index(device))
        return self._moved(args[0], args[0], "cuda")

    def _to_cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._moved(args[0], func(*args, **kwargs), "cpu")

    def _type(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        texts = [one.replace("torch.cuda.", "torch.") if isinstance(one, str) else one for one in args]
        return func(*texts, **kwargs)

    def _moved(self, before: Any, after: Any, place: str) -> Any:
        """Return a tensor that was moved: a copy where a move between CUDA and the CPU copies."""
        if type(after) not in self._types or after.layout != self.torch.strided or after.is_meta:
            return after
        if self._place(before) == place:
            return self._mark(after, place)
        shared = after.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        return self._mark(after.clone() if shared else after, place)

    def _place(self, tensor: Any) -> str:
        try:
            return str(getattr(tensor.untyped_storage(), _PLACE, ""))
        except (RuntimeError, NotImplementedError):
            return ""

    def _mark(self, tensor: Any, place: str) -> Any:
        if type(tensor) in self._types and tensor.layout == self.torch.strided:
            setattr(tensor.untyped_storage(), _PLACE, place)
        return tensor

    # Questions: libraries hear the truth, and the script hears what it would on a GPU.

    def _tells_cuda(self, tensor: Any) -> bool:
        """Return the answer for the code that asks, which is four frames above."""
        if tensor.is_meta or of_library(sys._getframe(4).f_code.co_filename):
            return False
        return self._place(tensor) != "cpu"

    def _is_cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._tells_cuda(args[0]) or func(*args, **kwargs)

    def _device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._tells_cuda(args[0]):
            return self.torch.device("cuda", self.current)
        return func(*args, **kwargs)

    def _index(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.current if self._tells_cuda(args[0]) else func(*args, **kwargs)


def _backward(torch: Any) -> Callable[..., None]:
    """Return `Tensor.backward` without torch's detour, in which code that runs inside backward is not followed."""

    def backward(
        self: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    return functools.wraps(torch.Tensor.backward)(backward)
