"""The modules `torch.cuda` and `torch.accelerator`, as a machine with GPUs has them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Callable

from .places import Places

NAME = "CPU in place of a CUDA device"
CAPABILITY = (8, 0)  # bfloat16 exists from here on, 8-bit floats do not
TYPES = ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "BFloat16", "Bool")
NO_GRAPHS = "CUDA graphs do not exist on the CPU, which stands in for CUDA here; capture none to be proven"


class Properties:
    """The properties of each device."""

    name = NAME
    major, minor = CAPABILITY
    multi_processor_count = 108
    warp_size = 32
    max_threads_per_multi_processor = 2048
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 49152
    shared_memory_per_block_optin = 166912
    L2_cache_size = 40 << 20
    is_integrated = is_multi_gpu_board = 0
    gcnArchName = ""
    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Stream:
    """A stream: everything in it has happened when the call returns."""

    device_type = 1
    cuda_stream = stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = device, priority

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Return: the event has happened."""

    def wait_stream(self, stream: Any) -> None:
        """Return: the stream is done."""

    def synchronize(self) -> None:
        """Return: this stream is done."""

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the stream."""


class Event:
    """A point in time, for the time between two of them."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds to another event."""
        return float((end.at - self.at) * 1000)

    def wait(self, stream: Any = None) -> None:
        """Return: the event has happened."""

    def synchronize(self) -> None:
        """Return: the event has happened."""

    def query(self) -> bool:
        return True


class _Runtime:
    """The CUDA runtime: each of its functions reports success."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_, **__: 0


class _NoGraph:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(NO_GRAPHS)


def _no_graphs(*_: Any, **__: Any) -> Any:
    raise RuntimeError(NO_GRAPHS)


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _replace(module: Any, values: dict[str, Any], new: bool = False) -> None:
    for name, value in values.items():
        if new or hasattr(module, name):
            setattr(module, name, value)


def install(torch: Any, places: Places) -> None:
    """Replace what asks for, or works on, a CUDA device."""
    cuda = torch.cuda
    devices = _devices(torch, places)
    memory = _memory()
    random = _random(torch, places)
    streams = _streams(places)
    _replace(cuda, {**devices, **memory, **random, **streams}, new=True)
    for name, values in (("memory", memory), ("random", random), ("streams", {"Stream": Stream, "Event": Event})):
        _replace(getattr(cuda, name, None), values)
    _replace(cuda, {f"{kind}Tensor": getattr(torch, f"{kind}Tensor", None) for kind in TYPES}, new=True)
    _replace(getattr(cuda, "graphs", None), {"is_current_stream_capturing": lambda: False, "CUDAGraph": _NoGraph})
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    _replace(cuda.nvtx, dict.fromkeys(("range_push", "range_pop", "mark", "range_start", "range_end"), nothing))
    _replace(cuda.profiler, {"start": nothing, "stop": nothing, "profile": _nothing})
    _replace(cuda.nccl, {"version": lambda: (2, 20, 5), "is_available": lambda tensors: True})
    _replace(torch.backends.cuda, {"is_built": lambda: True})
    _replace(torch._C, {"_set_sdp_use_math": nothing})  # the only kernel for attention that the CPU has in every form
    torch.version.cuda = torch.version.cuda or "12.4"
    _accelerator(torch, places, devices, memory)
    _others(torch, places)


def _devices(torch: Any, places: Places) -> dict[str, Any]:
    def set_device(device: Any) -> None:
        index = places.index(device)
        if index is None:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        places.current = index

    def exchange(index: Any) -> int:
        before = places.current
        if index is not None and int(index) >= 0:
            places.current = places.check(int(index))
        return before

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_initialized": True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: places.count,
        "current_device": lambda: places.current,
        "set_device": set_device,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": lambda device=None: Properties(),
        "get_arch_list": lambda: ["sm_80"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "can_device_access_peer": lambda device, peer: True,
        "synchronize": lambda device=None: None,
        "ipc_collect": lambda: None,
        "cudart": _Runtime,
        "utilization": lambda device=None: 0,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
    }


def _memory() -> dict[str, Any]:
    def peak(device: Any = None) -> int:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def free(device: Any = None) -> tuple[int, int]:
        return max(Properties.total_memory - peak(), 0), Properties.total_memory

    def statistics(device: Any = None) -> OrderedDict[str, Any]:
        rows = (f"{name}.all.{kind}" for name in ("allocated_bytes", "reserved_bytes") for kind in ("current", "peak"))
        counts = ("num_alloc_retries", "num_ooms")
        return OrderedDict([*((row, peak()) for row in rows), *((name, 0) for name in counts)])

    def nothing(*_: Any, **__: Any) -> None:
        """Do nothing: memory of a device does not exist."""

    asked = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    told = ("empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated")
    return {
        **dict.fromkeys((*asked, "memory_cached", "max_memory_cached", "device_memory_used"), peak),
        **dict.fromkeys((*told, "reset_max_memory_cached", "set_per_process_memory_fraction"), nothing),
        "mem_get_info": free,
        "memory_stats": statistics,
        "memory_summary": lambda device=None, abbreviated=False: "",
        "memory_snapshot": lambda *_, **__: [],
        "_record_memory_history": nothing,
        "_dump_snapshot": nothing,
    }


def _random(torch: Any, places: Places) -> dict[str, Any]:
    """Return functions on generators of their own, so that they leave the CPU's generator as it is."""
    generators = tuple(torch.Generator() for _ in range(places.count))

    def one(device: Any = "cuda") -> Any:
        return generators[places.index(device) or 0]

    def set_all(states: Any) -> None:
        for generator, state in zip(generators, states):
            generator.set_state(state)

    def seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(int(seed))

    return {
        "default_generators": generators,
        "manual_seed": lambda seed: one(None).manual_seed(int(seed)) and None,
        "manual_seed_all": seed_all,
        "seed": lambda: one(None).seed() and None,
        "seed_all": lambda: seed_all(generators[0].seed()),
        "initial_seed": lambda: one(None).initial_seed(),
        "get_rng_state": lambda device="cuda": one(device).get_state(),
        "get_rng_state_all": lambda: [generator.get_state() for generator in generators],
        "set_rng_state": lambda new_state, device="cuda": one(device).set_state(new_state) and None,
        "set_rng_state_all": set_all,
    }


def _streams(places: Places) -> dict[str, Any]:
    streams = [Stream("cuda") for _ in range(places.count)]

    def default(device: Any = None) -> Stream:
        return streams[places.index(device) or 0]

    return {
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "current_stream": default,
        "default_stream": default,
        "set_stream": lambda stream: None,
        "stream": _nothing,
        "StreamContext": _nothing,
        "is_current_stream_capturing": lambda: False,
        "CUDAGraph": _NoGraph,
        "graph": _NoGraph,
        "graph_pool_handle": _no_graphs,
        "make_graphed_callables": _no_graphs,
    }


def _accelerator(torch: Any, places: Places, devices: dict[str, Any], memory: dict[str, Any]) -> None:
    """Replace `torch.accelerator`, which exists from torch 2.6 on."""
    module = getattr(torch, "accelerator", None)
    if module is None:
        return
    values = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": devices["device_count"],
        "synchronize": devices["synchronize"],
        **dict.fromkeys(("current_device_index", "current_device_idx"), devices["current_device"]),
        **dict.fromkeys(("set_device_index", "set_device_idx"), devices["set_device"]),
        "current_stream": lambda device=None: torch.cuda.current_stream(device),
        "set_stream": lambda stream: None,
        "get_device_capability": lambda device=None: {"supported_dtypes": {torch.float32, torch.bfloat16}},
        "device_index": torch.cuda.device,
        "get_memory_info": memory["mem_get_info"],
    }
    _replace(module, {**{name: memory[name] for name in memory if hasattr(module, name)}, **values})


def _others(torch: Any, places: Places) -> None:
    """Replace what takes a device and is not a function on tensors."""
    plain: Any = torch._C.Generator
    meta: Any = type(plain)

    class Kind(meta):
        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, plain)

    def new(cls: Any, device: Any = "cpu") -> Any:
        return plain(places.mapped(device))

    # A generator of the CPU, whatever device it is for.
    torch.Generator = Kind("Generator", (plain,), {"__new__": new})
    torch.UntypedStorage.cuda = lambda storage, *_, **__: storage
    torch.UntypedStorage.pin_memory = lambda storage, *_, **__: storage
    _replace(torch, {"Stream": Stream, "Event": Event})
    load, default = torch.load, torch.set_default_device
    context = importlib.import_module("torch.utils._device").DeviceContext
    made = context.__init__
    context.__init__ = lambda self, device: made(self, places.mapped(device))
    torch.set_default_device = functools.wraps(default)(lambda device: default(places.mapped(device)))
    kinds = getattr(torch, "set_default_tensor_type", None)
    if kinds is not None:
        torch.set_default_tensor_type = lambda kind: kinds(
            kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind
        )

    @functools.wraps(load)
    def load_here(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or isinstance(map_location, dict):
            map_location = "cpu"
        return load(f, places.mapped(map_location), *args, **kwargs)

    torch.load = torch.serialization.load = load_here
