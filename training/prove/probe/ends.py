"""The end of a process: what is still to be written, and the exit after the wished number of steps."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
import threading
import time
from typing import Any

from .. import records
from . import faults, random_state
from .state import Probe, is_launcher

_ENDS_SECONDS = 5.0
_SAVE_SECONDS = 30.0  # for a save that another thread has begun


class Ends:
    """Writes `End` once, whichever way the process ends, where Python still runs then."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.error = ""
        self.reason = "finished"
        self.final: Any = None  # () -> digest of the last parameters

    def install(self) -> None:
        atexit.register(self._at_exit)
        hook, leave, stop = sys.excepthook, os._exit, sys.exit

        def excepthook(kind: Any, value: Any, trace: Any) -> None:
            self._raised(value)
            hook(kind, value, trace)

        def exit_now(status: int) -> None:
            if self.probe.started:
                self.write("exit" if self.reason == "finished" else self.reason)
            leave(status)

        def exit_(status: Any = None) -> None:
            if status not in (None, 0) and threading.current_thread() is threading.main_thread():
                self.reason, self.error = "exit", str(status)[:500]
            stop(status)

        sys.excepthook, os._exit, sys.exit = excepthook, exit_now, exit_  # type: ignore[assignment]
        self.probe.leave_now = leave

    def _raised(self, value: BaseException) -> None:
        self.reason, self.error = "exception", f"{type(value).__name__}: {str(value)[:500]}"

    def _at_exit(self) -> None:
        uncaught = getattr(sys, "last_value", None)
        if self.reason == "finished" and uncaught is not None:  # a hook of the script's own replaced the one here
            self._raised(uncaught)
        relevant = not self.probe.child and (self.probe.torch is not None or "RANK" in os.environ)
        if self.probe.started or (relevant and not is_launcher()):
            self.write(self.reason)

    def write(self, reason: str) -> None:
        """Write `End`, with what is known."""
        if self.probe.ended:
            return
        self.probe.ended = True
        with contextlib.suppress(Exception):
            self.probe.write(self._end(reason))

    def _end(self, reason: str) -> records.End:
        probe = self.probe
        return records.End(
            step=probe.step,
            reason=reason,
            error=self.error,
            parameters=self.final() or "" if self.final else "",
            backward_calls=probe.backward_calls + probe.grad_calls,
            optimizer_steps=probe.step,
            forward_calls=probe.forward_calls,
            seeded=probe.torch is not None and random_state.seeded_by_us(probe.torch),
            versions=versions(),
            framework=framework(),
            peak_memory=peak_memory(probe.torch),
            first_step_seconds=probe.first_step_seconds,
        )


VERSIONS = (
    "torch",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "deepspeed",
    "numpy",
    "safetensors",
)


def versions() -> dict[str, str]:
    """Return the versions of the frameworks that were imported."""
    loaded = {name: sys.modules.get(name) for name in VERSIONS}
    return {name: str(getattr(one, "__version__", "")) for name, one in loaded.items() if one is not None}


def framework() -> str:
    """Return the framework whose loop or whose preparation was used, as far as its modules show it."""
    if "lightning.pytorch.trainer" in sys.modules or "pytorch_lightning.trainer" in sys.modules:
        return "lightning"
    if "transformers.trainer" in sys.modules:
        return "transformers"
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return "accelerate" if getattr(state, "_shared_state", None) else ""


def peak_memory(torch: Any) -> int:
    """Return the most memory that was in use, in bytes: of the device where there is one, else of the process."""
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return int(cuda.max_memory_allocated())
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used if sys.platform == "darwin" else used * 1024)


def leave(probe: Probe) -> None:
    """End the process after the wished steps, together with the other ranks. Exit code 0."""
    end = time.monotonic() + _SAVE_SECONDS
    while probe.saving and time.monotonic() < end:
        time.sleep(0.05)
    probe.ends.write("steps")
    faults.wait_for_all(probe, "end", max(_ENDS_SECONDS, probe.first_step_seconds))
    for child in multiprocessing.active_children():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    probe.leave_now(0)
