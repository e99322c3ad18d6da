"""What one process knows about itself, and the file that it writes."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, TypeVar

from .. import records

F = TypeVar("F", bound=Callable[..., Any])

_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "fabric", "composer", "horovodrun", "colossalai"}
_LAUNCHER_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher", "accelerate.commands",
    "deepspeed.launcher", "multiprocessing", "torch._inductor",
)  # fmt: skip


@dataclass
class Fault:
    """The fault of this start, as the runner chose it."""

    kind: str = ""
    rank: int = 0
    step: int | None = None
    save: int | None = None


@dataclass
class Probe:
    """The state of the probe in one process. Modules of the probe keep their own parts."""

    out: Path
    steps: int
    node: int
    fault: Fault
    stand_in: bool
    kept: list[str]
    restart: bool = False  # this start finds what an earlier one saved
    loaded: float = field(default_factory=time.monotonic)
    pid: int = field(default_factory=os.getpid)
    launched: dict[str, int] = field(default_factory=lambda: _launched())  # kept: a script may remove the variables
    torch: Any = None
    step: int = 0  # optimizer steps done
    saves: int = 0
    saving: int = 0  # saves that run now, in any thread
    backward_calls: int = 0
    grad_calls: int = 0  # of torch.autograd.grad, which torch.func calls too
    forward_calls: int = 0
    first_step_seconds: float = 0.0
    busy: float = 0.0  # seconds that the probe itself used since the step before
    ended: bool = False
    child: bool = False  # forked from an observed process: a worker, or a rank once it trains
    ends: Any = None  # ends.Ends
    leave_now: Callable[[int], Any] = os._exit  # without the record of an end
    _writer: records.Writer | None = None
    _worker_writer: records.Writer | None = None
    _waiting: list[Any] = field(default_factory=list)
    _said: set[tuple[str, str]] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.RLock)

    @property
    def distributed(self) -> Any:
        """Return torch.distributed where its default group exists, else None."""
        found = getattr(self.torch, "distributed", None)
        try:
            return found if found is not None and found.is_available() and found.is_initialized() else None
        except AttributeError:
            return None

    @property
    def rank(self) -> int:
        """The rank that the launcher gave. A script that spawns its ranks itself tells it to torch.distributed only."""
        group = self.distributed
        return number("RANK", self.launched.get("RANK", int(group.get_rank()) if group else 0))

    @property
    def world(self) -> int:
        group = self.distributed
        return number("WORLD_SIZE", self.launched.get("WORLD_SIZE", int(group.get_world_size()) if group else 1))

    @property
    def started(self) -> bool:
        """Whether this process has a file."""
        return self._writer is not None

    def write(self, event: Any) -> None:
        """Append an event to the file of this rank. The first one makes the file."""
        with self._lock:
            if self._writer is None:
                rank = self.rank
                self._writer = records.Writer(self.out / f"rank-{rank}-{self.pid}.jsonl")
                self._writer.write(self._begin(rank))
                for one in self._waiting:
                    self._writer.write(one)
                self._waiting.clear()
            self._writer.write(event)

    def write_worker(self, event: Any) -> None:
        """Append an event to the file of this worker of a DataLoader."""
        with self._lock:
            if self._worker_writer is None:
                self._worker_writer = records.Writer(self.out / f"worker-{self.rank}-{self.pid}.jsonl")
            self._worker_writer.write(event)

    def later(self, event: Any) -> None:
        """Write an event, or keep it until this process has a file: it alone does not make a rank."""
        with self._lock:
            if self._writer is not None:
                self._writer.write(event)
            elif len(self._waiting) < 4096:
                self._waiting.append(event)

    def _begin(self, rank: int) -> records.Begin:
        return records.Begin(
            rank=rank,
            local_rank=number("LOCAL_RANK", rank),
            world=self.world,
            node=number("GROUP_RANK", number("NODE_RANK", self.node)),
            pid=self.pid,
            argv=list(getattr(sys, "argv", [])),
            python=sys.version.split()[0],
            stand_in=self.stand_in,
            tensors=self.torch is not None,
        )

    def uncovered(self, what: str, reason: str) -> None:
        """Say once that something is not observed here."""
        if (what, reason) not in self._said:
            self._said.add((what, reason))
            self.later(records.Uncovered(what, reason))

    def forked(self) -> None:
        """Start anew in a child process, which is not this rank."""
        self.pid, self._waiting, self._lock = os.getpid(), [], threading.RLock()
        self._writer = self._worker_writer = None
        self.step = self.saves = self.saving = self.backward_calls = self.grad_calls = self.forward_calls = 0
        self.ended, self.child = False, True

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of the body as the probe's own."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.busy += time.perf_counter() - start

    def safe(self, what: str) -> Callable[[F], F]:
        """Decorate a function of the probe: its time is counted, and an error becomes `Uncovered`."""

        def decorate(function: F) -> F:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                start = time.perf_counter()
                try:
                    return function(*args, **kwargs)
                except Exception as problem:  # noqa: BLE001 - the script must not see an error of the probe
                    self.uncovered(what, f"the probe failed: {type(problem).__name__}: {str(problem)[:200]}")
                    return None
                finally:
                    self.busy += time.perf_counter() - start

            return call  # type: ignore[return-value]

        return decorate


def number(name: str, otherwise: int) -> int:
    """Return a variable of the environment as a number."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise


def _launched() -> dict[str, int]:
    """Return the place in the world that a launcher gave this process."""
    return {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE") if os.environ.get(name, "").isdigit()}


def is_launcher() -> bool:
    """Return whether this process starts ranks or serves them, and is not one of them."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith(_LAUNCHER_MODULES):
        return True
    argv = getattr(sys, "argv", None) or [""]
    return os.path.basename(argv[0]) in _LAUNCHERS or "compile_worker" in argv[0] or "multiprocessing" in argv[0]


def read(path: str) -> Probe:
    """Read the instructions that the runner wrote."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    fault = data.get("fault") or {}
    return Probe(
        out=Path(data["out"]),
        steps=int(data["steps"]),
        node=int(data.get("node", 0)),
        fault=Fault(fault.get("kind", ""), fault.get("rank", 0), fault.get("step"), fault.get("save")),
        stand_in=bool(data.get("stand_in")),
        kept=list(data.get("kept", [])),
        restart=bool(data.get("restart")),
    )
