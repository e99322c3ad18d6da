"""Which ranks hold parts of one model and so read one batch: tensor and pipeline parallel training."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from .. import records
from .imports import on_import
from .state import Probe

_FSDP = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")  # the second one up to torch 2.5
MATRIX = 2  # dimensions: a tensor with more is sharded by experts too, and their ranks read batches of their own


class Parts:
    """Records the ranks that hold the other parts of this rank's model, once for each kind of parallelism."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.stages: list[Any] = []  # of a pipeline, on this rank
        self.trying = False  # a stage runs its module on made-up data, to learn the shapes of what comes out
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers
        self._written: set[str] = set()
        self.look = probe.safe("batches")(self._look)
        self._note = probe.safe("batches")(self._staged)

    def install(self) -> None:
        """Follow the stages of torch's pipelines."""
        on_import("torch.distributed.pipelining.stage", self.probe.safe("batches")(self._wrap))

    def _wrap(self, module: Any) -> None:
        made = module._PipelineStageBase.__init__

        @functools.wraps(made)
        def init(stage: Any, *args: Any, **kwargs: Any) -> None:
            made(stage, *args, **kwargs)
            self._note(stage)

        module._PipelineStageBase.__init__ = init
        for name in ("_forward_metadata_inference", "_backward_metadata_inference"):
            if hasattr(module.PipelineStage, name):
                setattr(module.PipelineStage, name, self._trial(getattr(module.PipelineStage, name)))

    def _trial(self, infer: Any) -> Any:
        @functools.wraps(infer)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.trying = True
            try:
                return infer(*args, **kwargs)
            finally:
                self.trying = False

        return call

    def _staged(self, stage: Any) -> None:
        self.stages.append(stage)
        distributed = self.probe.torch.distributed
        group = distributed.group.WORLD if stage.group is None else stage.group
        self._write("pipeline", distributed.get_process_group_ranks(group))

    def reads(self, module: Any) -> bool:
        """Return whether a module reads batches: later stages of a pipeline read what the stages before them made."""
        firsts = [one.submod for one in self.stages if one.stage_index == 0]
        return not self.stages or (not self.trying and any(one is module for one in firsts))

    def _look(self, optimizer: Any, parameters: list[Any]) -> None:
        """Find the ranks that share the layers of an optimizer's parameters. Looks at each optimizer once."""
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        sharded = int(_is_fully_sharded())
        for parameter in parameters:
            ranks = _tensor_parallel(parameter, sharded)
            if len(ranks) > 1:
                self._write("tensor", ranks)
                return

    def _write(self, how: str, ranks: list[int]) -> None:
        if how not in self._written and len(ranks) > 1:
            self._written.add(how)
            self.probe.later(records.Peers(how, sorted(map(int, ranks))))


def _is_fully_sharded() -> bool:
    """Return whether `fully_shard` was applied, which gives a module a class of its own: FSDP, then its name.

    It need not be a module that was called: a method of it may be registered as its forward pass.
    """
    kinds = (getattr(sys.modules.get(name), "FSDPModule", None) for name in _FSDP)
    return any(one.__name__.startswith("FSDP") for kind in kinds if kind is not None for one in kind.__subclasses__())


def _tensor_parallel(parameter: Any, skipped: int) -> list[int]:
    """Return the ranks that hold the parts of a layer, but for the first `skipped` dimensions that shard it.

    `fully_shard` uses the first one. Its ranks read batches of their own.
    """
    mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
    if mesh is None or parameter.dim() > MATRIX:
        return []
    parting = [at for at, one in enumerate(placements) if not one.is_replicate() and not one.is_partial()][skipped:]
    place = mesh.get_coordinate()
    if not parting or place is None:
        return []
    ranks = mesh.mesh[tuple(slice(None) if at in parting else here for at, here in enumerate(place))]
    found: list[int] = ranks.flatten().tolist()
    return found
