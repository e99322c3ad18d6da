"""What the model reads: the tensors of each outermost forward call in training mode."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from .. import records
from . import random_state, samples
from .loaders import Loaders
from .parts import Parts
from .state import Probe
from .world import World


class Forwards:
    """Follows forward calls. Calls inside another one, and those that backward repeats, are not counted.

    The hooks ask first whether torch compiles: it would compile what they read after that into the script's model.
    """

    def __init__(self, probe: Probe, world: World, loaders: Loaders, parts: Parts) -> None:
        self.probe, self.world, self.loaders, self.parts = probe, world, loaders, parts
        self.torch = probe.torch
        self.open: Any = None
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules that ran in training mode
        self.since_step = 0
        self.numbers = 0
        self.finer = False  # the rows of a batch are parts of samples
        self._dropout_step = -1
        self._drops: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._see = probe.safe("batches")(self._outermost)

    def install(self) -> None:
        module = self.torch.nn.modules.module
        module.register_module_forward_pre_hook(self.before)
        module.register_module_forward_hook(self.after)
        self._wrap_compile(self.torch.nn.Module)

    def _wrap_compile(self, kind: Any) -> None:
        """Follow modules that compile their whole call, hooks included."""
        if not hasattr(kind, "compile"):
            return
        made = kind.compile

        @functools.wraps(made)
        def compile_call(module: Any, *args: Any, **kwargs: Any) -> None:
            made(module, *args, **kwargs)
            compiled = module._compiled_call_impl

            def call(*args: Any, **kwargs: Any) -> Any:
                if compiling(self.torch):
                    return compiled(*args, **kwargs)
                if self._begins(module):
                    self._see(module, args, kwargs)
                result = compiled(*args, **kwargs)
                self.after(module, args, result)
                return result

            module._compiled_call_impl = call

        kind.compile = compile_call

    def before(self, module: Any, args: Any) -> None:
        """Global hook before each forward call of a module."""
        if not compiling(self.torch) and self._begins(module):
            self._see(module, args, _keywords(sys._getframe(1)))

    def _begins(self, module: Any) -> bool:
        """Return whether an outermost call in training mode begins."""
        if self.open is not None and self.open() is not None:
            return False
        if not module.training or not self.torch.is_grad_enabled() or in_backward(self.torch):
            return False
        self.open = weakref.ref(module)
        return True

    def after(self, module: Any, args: Any, output: Any) -> None:
        """Global hook after each forward call."""
        if not compiling(self.torch) and self.open is not None and self.open() is module:
            self.open = None

    def reset(self) -> None:
        """Forget a forward call that ended by an exception."""
        self.open = None

    def _outermost(self, module: Any, args: Any, keywords: dict[str, Any]) -> None:
        if next(module.parameters(), None) is None:
            self.open = None
            return
        if not self.probe.forward_calls:
            self.world.begin()
        self.modules.add(module)
        self.since_step += 1
        self.probe.forward_calls += 1
        self._dropout(module)
        data = samples.main(self.torch, args, keywords) if self.parts.reads(module) else None
        if data is None:
            return
        digest = samples.digest(self.torch, data)
        place = self.loaders.place(digest)
        indices, rows = self._rows(place.indices, data)
        event = records.Batch(
            step=self.probe.step,
            number=self.numbers,
            module=type(module).__name__,
            shape=samples.shape(data),
            digest=digest,
            rows=rows,
            passes=place.of.number,
            order=place.of.order,
            indices=indices,
            dataset=place.of.dataset,
            whole=place.of.whole,
            iteration=place.of.iteration,
            beside=samples.beside(self.torch, data, args, keywords),
        )
        self.numbers += 1
        self.probe.write(event)

    def _rows(self, indices: list[str], data: Any) -> tuple[list[str], list[str]]:
        """Return the places of the samples and digests of them.

        Rows that are parts of samples, such as the nodes of graphs, are equal by chance: only the places tell then.
        """
        self.finer = self.finer or (bool(indices) and len(data) > len(indices) and len(data) % len(indices) > 0)
        if self.finer and indices:
            return indices, []
        return indices if len(indices) == len(data) else [], samples.row_digests(self.torch, data)

    def _dropout(self, module: Any) -> None:
        """Record the random state at the first call of a step of a model that drops out."""
        if self._dropout_step == self.probe.step:
            return
        if module not in self._drops:
            self._drops[module] = any(_drops_out(one) for one in module.modules())
        if self._drops[module]:
            self._dropout_step = self.probe.step
            kind = next(module.parameters()).device.type
            state = random_state.torch_state(self.torch, "cuda" if kind == "cuda" else "cpu")
            self.probe.write(records.Dropout(self.probe.step, state))


def compiling(torch: Any) -> bool:
    return bool(torch.compiler.is_compiling())


def in_backward(torch: Any) -> bool:
    """Return whether autograd runs backward in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def _keywords(frame: Any) -> dict[str, Any]:
    """Return the keyword arguments of the forward call: hooks for all modules are not given them."""
    found = frame.f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}


def _drops_out(module: Any) -> bool:
    for name, value in vars(module).items():
        if isinstance(value, float) and 0 < value < 1 and "drop" in name:
            return True
    rate = getattr(module, "p", 0.0) if "Dropout" in type(module).__name__ else 0.0
    return isinstance(rate, (int, float)) and rate > 0
