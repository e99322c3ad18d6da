"""Optimizer steps: the state before and after each one, gradients, and the losses behind them."""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import records
from . import ends, faults, random_state
from .batches import Forwards, compiling, in_backward
from .digest import EVERY, Group, digests, hashed, is_sharded, sums
from .imports import on_import
from .parameters import Parameters
from .saves import Saves
from .state import Probe
from .world import World

TENSORS = 4096
_SAMPLED = 16  # parameters of an optimizer whose gradients are looked at before backward
_FRUITLESS = 64  # backward calls without any step of an optimizer, after which the process ends


class Steps:
    """Follows the optimizers of this process through torch's hooks for all optimizers."""

    def __init__(self, probe: Probe, forwards: Forwards, world: World, saves: Saves) -> None:
        self.probe, self.torch, self.forwards, self.world, self.saves = probe, probe.torch, forwards, world, saves
        self.open: Any = None  # the optimizer whose step runs: optimizers call others
        self.before: _Before | None = None
        self.known: list[weakref.ref[Any]] = []
        self.parameters: weakref.WeakKeyDictionary[Any, Parameters] = weakref.WeakKeyDictionary()
        self.written: weakref.WeakKeyDictionary[Any, _Written] = weakref.WeakKeyDictionary()
        self.flat: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.losses: list[tuple[int, Any]] = []
        self.last_end = time.perf_counter()
        self._look = probe.safe("optimizer")(self._look_before)
        self._finish = probe.safe("optimizer")(self._write_step)
        self._note_loss = probe.safe("gradients")(self._loss)
        self._note_written = probe.safe("gradients")(self._backward_wrote)
        self.flush = probe.safe("gradients")(self._flush)

    def install(self) -> None:
        """Register the hooks. They exist from torch 2.1 on."""
        optimizer: Any = sys.modules["torch.optim.optimizer"]
        if not hasattr(optimizer, "register_optimizer_step_pre_hook"):
            self.probe.uncovered("optimizer", f"torch {self.torch.__version__} has no hooks for all optimizers")
            return
        optimizer.register_optimizer_step_pre_hook(self.pre)
        optimizer.register_optimizer_step_post_hook(self.post)
        made = optimizer.Optimizer.__init__

        @functools.wraps(made)
        def init(one: Any, *args: Any, **kwargs: Any) -> None:
            made(one, *args, **kwargs)
            self.index(one)

        optimizer.Optimizer.__init__ = init
        self._wrap_backward()
        on_import("torch.distributed.checkpoint.state_dict", self.probe.safe("optimizer")(self._wrap_state))

    def _wrap_state(self, module: Any) -> None:
        """Leave out the step by which torch makes the state of an optimizer before it loads a checkpoint."""
        make = module._init_optim_state

        @functools.wraps(make)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self.open = self.open, _nobody
            try:
                return make(*args, **kwargs)
            finally:
                self.open = before

        module._init_optim_state = call

    def _wrap_backward(self) -> None:
        backward = self.torch.autograd.backward

        @functools.wraps(backward)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = None
            if not compiling(self.torch):
                before = self._note_loss(args[0] if args else kwargs.get("tensors"))
            result = backward(*args, **kwargs)
            if before:
                self._note_written(before)
            self.forwards.reset()
            return result

        self.torch.autograd.backward = call
        grad = self.torch.autograd.grad

        @functools.wraps(grad)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not compiling(self.torch):
                self.probe.grad_calls += 1
            return grad(*args, **kwargs)

        self.torch.autograd.grad = called

    def index(self, optimizer: Any) -> int:
        """Return the number of an optimizer in the order in which they became known."""
        for place, one in enumerate(self.known):
            if one() is optimizer:
                return place
        self.known.append(weakref.ref(optimizer))
        return len(self.known) - 1

    def optimizers(self) -> list[Any]:
        return [one for one in (ref() for ref in self.known) if one is not None]

    def last_parameters(self) -> str:
        """Return a digest of the parameters of all optimizers, after writing what is still to be written."""
        self.saves.settle()
        self._flush()
        parameters = [one for optimizer in self.optimizers() for one in _parameters(optimizer)]
        return hashed(*digests(self.torch, parameters)) if parameters else ""

    # Losses

    def _loss(self, tensors: Any) -> list[tuple[Any, _Written]]:
        """Note the loss. Return the gradients of each optimizer as they are before backward."""
        if in_backward(self.torch) or self.forwards.parts.trying:
            return []
        self.probe.backward_calls += 1
        first = tensors if isinstance(tensors, self.torch.Tensor) else next(iter(tensors or ()), None)
        if isinstance(first, self.torch.Tensor) and first.numel() == 1:
            self.losses.append((self.probe.step, first.detach().clone().reshape(())))
        if not self.probe.started:
            self._flush()
        self._end_fruitless()
        return [(one, _Written(self._is_clear(one), _marks(one))) for one in self.optimizers()]

    def _backward_wrote(self, gradients: list[tuple[Any, _Written]]) -> None:
        """Note the optimizers whose gradients a call of backward changed: a script may write the others itself."""
        for optimizer, before in gradients:
            after = _marks(optimizer)
            if after != before.marks:
                self.written[optimizer] = _Written(before.clear, after)

    def _flush(self) -> None:
        """Write the losses, whose values are read together with the rest of a step."""
        waiting, self.losses = self.losses, []
        for step, value in waiting:
            number = float(value)
            self.probe.write(records.Loss(step, number, math.isfinite(number)))

    def _end_fruitless(self) -> None:
        """End a process that trains without an optimizer that can be seen."""
        probe = self.probe
        if probe.step == 0 and probe.backward_calls > 4 * probe.steps + _FRUITLESS:
            ends.leave(probe)

    def _is_clear(self, optimizer: Any) -> bool:
        """Return whether the gradients of an optimizer are gone since its last step, by some of its parameters."""
        if optimizer in self.written and self.written[optimizer].clear:
            return True
        held = [one.grad for one in _parameters(optimizer) if one.grad is not None]
        return all(sums(self.torch, [one])[0] for one in held[:_SAMPLED])

    # Steps

    def pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Hook before each step. A closure runs forward and backward within the step: it is followed."""
        if compiling(self.torch) or self.open is not None:
            return None
        if in_backward(self.torch):
            self._stepped_inside()
            return None
        self.saves.settle()
        if self.probe.step >= self.probe.steps:
            self.flush()
            ends.leave(self.probe)
        self.open = weakref.ref(optimizer)
        self.forwards.reset()
        closure = kwargs.get("closure") or next((one for one in args[1:2] if callable(one)), None)
        if closure is None:
            self._look(optimizer)
            return None

        @functools.wraps(closure)
        def followed(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            if self.before is None:
                self._look(optimizer)
            return result

        if kwargs.get("closure"):
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs

    def _stepped_inside(self) -> None:
        self.probe.uncovered("optimizer", "an optimizer steps inside backward, where steps are not followed")

    def post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Hook after each step."""
        if compiling(self.torch) or self.open is None or self.open() is not optimizer:
            return
        self.open = None
        before, self.before = self.before, None
        if before is None or _skipped(optimizer):
            return
        self.probe.step += 1
        self._finish(optimizer, before)
        if self.probe.fault.kind == "hang" and self.probe.fault.step == self.probe.step:
            self.probe.safe("collectives")(self.world.shorten)()
        faults.after_step(self.probe)

    def _look_before(self, optimizer: Any) -> None:
        parameters = list(_parameters(optimizer))
        names = self._names()
        gradients = [one.grad for one in parameters if one.grad is not None]
        zero, finite = sums(self.torch, gradients, self.probe.step)
        state = _state(self.torch, optimizer, parameters)
        plain = [f"{name}={value}" for name, value in state if not isinstance(value, self.torch.Tensor)]
        held = [value for _, value in state if isinstance(value, self.torch.Tensor)]
        found, (gradient, kept) = self._parameters_of(optimizer).before(
            parameters, [Group(gradients, EVERY), Group(held, EVERY)]
        )
        self.forwards.parts.look(optimizer, parameters)
        labels = _labels(parameters, names)
        self.before = _Before(
            parameters=hashed(*found),
            gradients=gradient,
            state=hashed(*plain, kept),
            tensors=dict(zip(labels[:TENSORS], found)),
            model=self._model(parameters, names),
            zero=zero and any(one.requires_grad for one in parameters),  # frozen ones have none for a good reason
            none=not gradients,
            finite=finite,
            random=random_state.digest(self.torch),
            rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            missing=self._missing(names),
            foreign=self._foreign(parameters, labels, names),
        )

    def _parameters_of(self, optimizer: Any) -> Parameters:
        return self.parameters.setdefault(optimizer, Parameters(self.torch))

    def _names(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for module in self.forwards.modules:
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), name)
        return found

    def _model(self, parameters: list[Any], names: dict[int, str]) -> str:
        """Return a digest of what the modules train, where the optimizer holds copies or slices of it instead."""
        if any(id(one) in names for one in parameters):
            return ""
        held = {id(one): one for module in self.forwards.modules for one in module.parameters() if one.requires_grad}
        return hashed(*digests(self.torch, held.values())) if held else ""

    def _missing(self, names: dict[int, str]) -> list[str]:
        """Return parameters that get a gradient and are in no optimizer."""
        held = {id(one) for optimizer in self.optimizers() for one in _parameters(optimizer)}
        if names.keys() <= held:
            return []
        if any(one.grad is not None and id(one) not in names for it in self.optimizers() for one in _parameters(it)):
            return []  # the optimizer may keep copies of the parameters, in another precision
        found = set()
        for module in self.forwards.modules:
            for part in module.modules():
                for parameter in part.parameters(recurse=False) if part.training else ():
                    if parameter.grad is not None and id(parameter) not in held:
                        found.add(names.get(id(parameter), ""))
        return sorted(found - {""})[:TENSORS]

    def _foreign(self, parameters: list[Any], labels: list[str], names: dict[int, str]) -> list[str]:
        """Return parameters that no module that ran holds, and that got no gradient."""
        pairs = zip(parameters, labels)
        wrong = [label for one, label in pairs if id(one) not in names and one.requires_grad and one.grad is None]
        return wrong[:TENSORS] if self.forwards.modules else []

    def _is_flat(self, module: Any) -> bool:
        """Return whether a module is sharded by FSDP's first version, whose parameters do not show it."""
        if module not in self.flat:
            self.flat[module] = any(type(one).__name__ == "FullyShardedDataParallel" for one in module.modules())
        return self.flat[module]

    def _write_step(self, optimizer: Any, before: _Before) -> None:
        probe = self.probe
        self._flush()
        parameters = list(_parameters(optimizer))
        after = hashed(*self._parameters_of(optimizer).after(parameters))
        now = time.perf_counter()
        written = self.written.pop(optimizer, None)
        accumulated = written is not None and not written.clear and probe.step > 1
        if written is not None and accumulated and not written.holds(optimizer):
            accumulated = False
            probe.uncovered("gradients", "the script replaces gradients to which backward has added: these may be sums")
        if not probe.first_step_seconds:
            probe.first_step_seconds = time.monotonic() - probe.loaded
        probe.write(
            records.Step(
                step=probe.step,
                optimizer=self.index(optimizer),
                optimizer_class=type(optimizer).__name__,
                parameters_before=before.parameters,
                parameters_after=after,
                gradients=before.gradients,
                state_before=before.state,
                random=before.random,
                rates=before.rates,
                collectives=self.world.collectives(),
                seconds=now - self.last_end,
                zero_gradients=before.zero,
                no_gradients=before.none,
                finite_gradients=before.finite,
                accumulated=accumulated,
                forwards=self.forwards.since_step,
                missing=before.missing,
                foreign=before.foreign,
                sharded=any(map(is_sharded, parameters)) or any(map(self._is_flat, self.forwards.modules)),
                shared=any(map(_is_shared, parameters[:1])),
                tensors=before.tensors,
                model_before=before.model,
                probe_seconds=probe.busy,
            )
        )
        self.forwards.since_step = 0
        probe.busy = 0.0
        self.last_end = now


@dataclass(frozen=True)
class _Written:
    """What backward calls wrote into the gradients of an optimizer since its last step."""

    clear: bool  # they were gone before one of the calls
    marks: list[tuple[int, int]]  # after the last call

    def holds(self, optimizer: Any) -> bool:
        """Return whether one of these gradients is still there: the script may have put its own in their place."""
        return any(now and now == mark for (now, _), (mark, _) in zip(_marks(optimizer), self.marks))


class _Before:
    """What was seen before a step."""

    def __init__(self, **values: Any) -> None:
        self.parameters: str = values["parameters"]
        self.gradients: str = values["gradients"]
        self.state: str = values["state"]
        self.tensors: dict[str, str] = values["tensors"]
        self.model: str = values["model"]
        self.zero: bool = values["zero"]
        self.none: bool = values["none"]
        self.finite: bool = values["finite"]
        self.random: dict[str, str] = values["random"]
        self.rates: list[float] = values["rates"]
        self.missing: list[str] = values["missing"]
        self.foreign: list[str] = values["foreign"]


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_shared(parameter: Any) -> bool:
    """Return whether other processes may see this parameter, as after `module.share_memory()`."""
    plain = getattr(parameter, "_local_tensor", parameter)
    return bool(plain.is_cpu and plain.is_shared())


def _marks(optimizer: Any) -> list[tuple[int, int]]:
    """Return the identity and the version of each gradient: they show that it was replaced or changed in place."""
    gradients = [one.grad for one in _parameters(optimizer)]
    return [(0, 0) if one is None else (id(one), getattr(one, "_local_tensor", one)._version) for one in gradients]


def _labels(parameters: list[Any], names: dict[int, str]) -> list[str]:
    return [names.get(id(one), f"parameter {place}") for place, one in enumerate(parameters)]


def _state(torch: Any, optimizer: Any, parameters: list[Any]) -> list[tuple[str, Any]]:
    """Return the leaves of an optimizer's state by name, in the order of their names."""
    places = {id(one): place for place, one in enumerate(parameters)}
    found: list[tuple[str, Any]] = []
    for holder in _holders(torch, optimizer):
        for parameter, values in holder.state.items():
            place = places.get(id(parameter), parameter if isinstance(parameter, str) else -1)
            _add_leaves(torch, f"{place}", values, found)
    return sorted(found, key=lambda one: one[0])


def _holders(torch: Any, optimizer: Any) -> list[Any]:
    """Return the optimizers whose state decides a step: this one, and those that it steps itself."""
    inner = [one for one in vars(optimizer).values() if isinstance(one, torch.optim.Optimizer) and one is not optimizer]
    # It steps an optimizer of its own shard. Its own state is what a load left there, and nothing reads it.
    unread = any(one.__name__ == "ZeroRedundancyOptimizer" for one in type(optimizer).__mro__)
    return inner if unread else [optimizer, *inner]


def _add_leaves(torch: Any, name: str, value: Any, found: list[tuple[str, Any]]) -> None:
    if type(value) is torch.Tensor and not value.dim() and value.is_cpu:
        found.append((name, value.item()))  # a count of steps: reading it costs less than a digest
    elif value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        found.append((name, value))
    elif isinstance(value, dict):
        for key, one in value.items():
            _add_leaves(torch, f"{name}.{key}", one, found)
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(value):
            _add_leaves(torch, f"{name}.{place}", one, found)


def _nobody() -> None:
    """Stand for an optimizer whose step runs, so that no other step is followed."""


def _skipped(optimizer: Any) -> bool:
    """Return whether a gradient scaler told a fused optimizer to leave this step out."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
