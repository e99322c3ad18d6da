"""Fences around torch's rendezvous: its state is read without pickle, and its store stays on this machine.

torchrun's agents exchange a pickled state through a TCPStore. Anyone who reaches that store can list its
keys and replace the state, and each agent then unpickles it, which runs code. The store also listens on all
addresses of the machine, whatever its endpoint says.

`import torch` runs `install` in every process whose PYTHONPATH holds this directory, by torch's entry points
for extensions (https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html). A user's own
script is therefore fenced as well. An interpreter with -I or -E does not read PYTHONPATH.
"""

from __future__ import annotations

import errno
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import ipaddress
import os
import pickle
import socket
import sys
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

LOOPBACK = "TRAINYARD_LOOPBACK"  # set where all ranks are on this machine
RENDEZVOUS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
STATE = {
    *((RENDEZVOUS, name) for name in ("_RendezvousState", "_NodeDesc")),
    *(("datetime", name) for name in ("datetime", "timedelta", "timezone")),
}
LONGEST_STATE = 1 << 24  # bytes; a node takes about 200
ADDRESS = "127.0.0.1"


def install() -> None:
    """Fence this process. With TRAINYARD_LOOPBACK set, its stores listen on the loopback interface only."""
    if RENDEZVOUS in sys.modules:
        _read_plain_state(sys.modules[RENDEZVOUS])
    elif not any(isinstance(finder, _Rendezvous) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Rendezvous())
    if os.environ.get(LOOPBACK):
        _listen_on_loopback()


class _Rendezvous(importlib.abc.MetaPathFinder):
    """Finds the rendezvous as usual, and fences it when it has been imported."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != RENDEZVOUS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        plain = spec.loader.exec_module

        def fenced(module: ModuleType) -> None:
            plain(module)
            _read_plain_state(module)

        spec.loader.exec_module = fenced  # type: ignore[method-assign]
        return spec


def _read_plain_state(module: ModuleType) -> None:
    module.pickle = _PlainPickle()  # type: ignore[attr-defined]


class _PlainPickle:
    """pickle as the rendezvous uses it. Reading builds the rendezvous' own classes only."""

    PickleError = pickle.PickleError
    dumps = staticmethod(pickle.dumps)

    @staticmethod
    def loads(data: bytes) -> Any:
        if len(data) > LONGEST_STATE:
            raise pickle.UnpicklingError(f"the rendezvous state has {len(data)} bytes")
        try:
            state = _Unpickler(io.BytesIO(data)).load()
        except pickle.PickleError:
            raise
        except Exception as problem:  # noqa: BLE001 - a hostile state can raise anything
            raise pickle.UnpicklingError(f"the rendezvous state is damaged: {problem}") from None
        if type(state).__name__ != "_RendezvousState":
            raise pickle.UnpicklingError("the rendezvous state is of another type")
        return state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STATE:
            raise pickle.UnpicklingError(f"the rendezvous state names {module}.{name}")
        return super().find_class(module, name)


def _listen_on_loopback() -> None:
    """Give each TCPStore server of this process a socket of the loopback interface to listen on."""
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import DistNetworkError

    plain = TCPStore.__init__
    if hasattr(plain, "__wrapped__"):
        return
    serving: weakref.WeakSet[TCPStore] = weakref.WeakSet()

    @functools.wraps(plain)
    def init(
        self: TCPStore,
        host_name: str,
        port: int = 29500,
        world_size: int | None = None,
        is_master: bool = False,
        *rest: Any,
        **options: Any,
    ) -> None:
        host = _loopback(host_name)
        many = options.get("multi_tenant", len(rest) > 2 and rest[2])
        shared = many and any(store.port == port for store in serving)  # torch has it in this process
        if not is_master or shared or "master_listen_fd" in options or len(rest) > 3:
            plain(self, host, port, world_size, is_master, *rest, **options)
            return
        try:
            listener = _listener(host, port)
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE:
                raise
            if _agent_serves(port):
                plain(self, host, port, world_size, False, *rest, **options)
                return
            raise DistNetworkError(f"{host}:{port} is taken (EADDRINUSE)") from None
        options["master_listen_fd"] = listener.fileno()
        plain(self, host, listener.getsockname()[1], world_size, True, *rest, **options)
        listener.detach()  # the store closes it
        serving.add(self)

    TCPStore.__init__ = init  # type: ignore[method-assign]


def _agent_serves(port: int) -> bool:
    """Return whether torchrun itself serves at `port`. TCPStore then becomes a client of it."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agent and os.environ.get("MASTER_PORT") == str(port)


def _loopback(host: str) -> str:
    """Return `host` if it is a loopback address, else this machine's: all ranks are on this machine."""
    try:
        return host if ipaddress.ip_address(host).is_loopback else ADDRESS
    except ValueError:
        return ADDRESS


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener
