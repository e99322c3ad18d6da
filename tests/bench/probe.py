"""Ours with a clock inside: what forward, backward and optimizer take, each evaluation, each save.

python -m tests.bench.probe MODULE --config DIR, below torchrun. Rank 0 writes the lines of `probe.jsonl` in the run's
directory.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.trainer import main, saver

loop: Any = importlib.import_module("training.trainer.loop")
Saver: Any = saver.Saver
tensor: Any = torch.Tensor
_inside = [0.0]


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            _inside[0] += time.perf_counter() - began

    return timed


def _say(**row: Any) -> None:
    if os.environ.get("RANK", "0") == "0":
        with Path(os.environ["TRAINYARD_RUN"], "probe.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps({**row, "time": time.time()}) + "\n")


def _watch_steps() -> None:
    """Time the calls inside a step; the model's forward pass by hooks, because wrappers look at its type."""
    tensor.backward = _timed(tensor.backward)
    loop.clip_gradients = _timed(loop.clip_gradients)
    build, optimizers, step = loop.parallelise, loop.build_optimizer, loop._step
    began = [0.0]

    def before(*_given: Any) -> None:
        began[0] = time.perf_counter()

    def after(*_given: Any) -> None:
        _inside[0] += time.perf_counter() - began[0]

    def parallelise(*given: Any) -> Any:
        made = build(*given)
        made.wrapped.register_forward_pre_hook(before)
        made.wrapped.register_forward_hook(after)
        return made

    def build_optimizer(*given: Any, **named: Any) -> Any:
        made = optimizers(*given, **named)
        kind: Any = type(made)  # of the class: the schedule expects a method
        kind.step = _timed(kind.step)
        return made

    def whole(run: Any, now: Any, *given: Any) -> str:
        _inside[0] = 0.0
        result = step(run, now, *given)
        _say(step=now.step, inside_s=_inside[0])
        return result

    loop.parallelise, loop.build_optimizer, loop._step = parallelise, build_optimizer, whole


def _watch_evaluations() -> None:
    evaluate = loop.evaluate

    def timed(parallel: Any, device: Any, feed: Any, sequences: int, losses: Any) -> Any:
        began = time.perf_counter()
        means = evaluate(parallel, device, feed, sequences, losses)
        seconds = time.perf_counter() - began
        tokens = sum(batch.tokens() for batch in feed.heldout(sequences))
        _say(evaluated=tokens, seconds=seconds, heldout=sum(means.values()))
        return means

    loop.evaluate = timed


def _watch_saves() -> None:
    save = Saver.save

    def timed(self: Any, now: Any, *, must: bool) -> None:
        began = time.perf_counter()
        save(self, now, must=must)
        if not must:
            _say(saved_s=time.perf_counter() - began)

    Saver.save = timed


if __name__ == "__main__":
    module = sys.argv.pop(1)
    _watch_steps()
    _watch_evaluations()
    _watch_saves()
    main.main(importlib.import_module(module).TASK, __doc__)
