"""Two steps of the trainer on one rank, for each case: prints the peak of allocated memory of the second step.

Real ranks exchange over gloo and compute, and torch's profiler counts what they allocate. Fake ranks hold tensors
without data, so that a model of any size on any number of ranks is counted, by torch.distributed._tools.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.llama import modeling_llama

from training.bert import Bert
from training.config import Config, load_texts
from training.device import Device, resolve
from training.distributed.ranks import Ranks, join
from training.finetune import Finetune
from training.models import bert, causal
from training.pretrain import Pretrain
from training.task import Task, Trainable
from training.trainer import parallelize
from training.trainer.optimizer import build_optimizer, clip_gradients
from training.trainer.parallelize import Parallel, parallelise


def _emptied(model: Trainable, *, device: torch.device) -> None:
    """Give memory to a model that is not sharded: torch's own way refuses tensors without data."""
    new: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                fresh = nn.Parameter(torch.empty_like(old, device=device), requires_grad=old.requires_grad)
                module._parameters[name] = new.setdefault(id(old), fresh)
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else torch.empty_like(buffer, device=device)


def _give_memory(model: Trainable, config: Config, device: torch.device, _: Ranks) -> None:
    """Give memory to a model on meta: its values do not matter here."""
    if not any(isinstance(one, DTensor) for one in model.parameters()):
        model.to_empty = partial(_emptied, model)  # type: ignore[assignment]
    if isinstance(model, bert.PretrainingBert):
        model.to_empty(device=device)
        model.tie()
        bert._fill_buffers(model)
    else:
        causal.materialise(model, config, device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)


def _task(config: Config) -> Task:
    return Bert() if config.model.bert else Finetune() if config.lora else Pretrain()


class _Tracker(MemTracker):
    """Puts no hooks on weights: a frozen one takes none, and only the sum of all kinds of memory is wanted."""

    def _track_module_params_and_buffers(self, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        return super()._track_module_params_and_buffers(module, install_grad_hooks=False)


def _inputs(config: Config) -> dict[str, torch.Tensor]:
    """One micro batch of a rank."""
    size = samples, length = config.parallel.micro_batch_size, config.sequence_length
    ids, ones = torch.randint(0, config.model.vocab_size, size), torch.ones(size, dtype=torch.int64)
    if config.model.bert is None:
        positions = torch.arange(length).expand(size).contiguous()
        return {"input_ids": ids, "labels": ids.clone(), "position_ids": positions, "document_ids": 0 * ones}
    assert config.masking is not None
    places = torch.zeros(samples, config.masking.most, dtype=torch.int64)
    second = {"masked_labels": places.clone(), "next_sentence_label": torch.zeros(samples, dtype=torch.int64)}
    return {"input_ids": ids, "token_type_ids": 0 * ones, "attention_mask": ones, "masked_positions": places, **second}


def _step(
    config: Config,
    device: Device,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    passes: int,
    tracker: MemTracker | None = None,
) -> None:
    """Do one optimizer step, as training/trainer/loop.py does."""
    for index in range(passes):
        if tracker:
            tracker.reset_mod_stats()  # it follows each module through one pass
        with parallel.exchange(index == passes - 1):
            with parallel.autocast(device):
                losses = parallel.wrapped(**_inputs(config))
            (losses * 1e-4).sum().backward()
    parallel.exchange_rest(device)
    clip_gradients(parallel.model, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _count_all_threads() -> None:
    """Count what every thread frees.

    torch's profiler counts only the threads that it follows. A buffer that gloo's own thread is the last to hold would
    stay in the count: a run on a busy machine then seemed to hold up to 13 % more.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
    ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage").value = True


@contextmanager
def _products_left_out(config: Config) -> Iterator[None]:
    """Give matrix products in bf16 without computing them where the processor would take minutes for each step.

    Their sizes do not depend on their values.
    """
    if config.device.precision == "fp32" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        yield
        return
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("mm", lambda one, other: one.new_empty(one.shape[0], other.shape[1]), "CPU")
        library.impl("addmm", lambda bias, one, other, **_: one.new_empty(one.shape[0], other.shape[1]), "CPU")
        library.impl("mm.out", lambda one, other, out: out, "CPU")
        yield


def real(config: Config, ranks: Ranks) -> int:
    """Return the peak of the second step in bytes, beyond what the process held before."""
    device = resolve(config)
    _count_all_threads()
    with _products_left_out(config), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        parallel, optimizer, passes = _ready(config, device, ranks)
        _step(config, device, parallel, optimizer, passes)
        with record_function("second step"):
            _step(config, device, parallel, optimizer, passes)
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    second = next(one for one in events if one.get("name") == "second step" and one.get("ph") == "X")
    counts = sorted((one["ts"], one["args"]) for one in events if one.get("name") == "[memory]")
    before = counts[0][1]["Total Allocated"] - counts[0][1]["Bytes"]
    during = (one for at, one in counts if second["ts"] <= at <= second["ts"] + second["dur"])
    return max(int(one["Total Allocated"]) for one in during) - int(before)


def fake(config: Config, ranks: Ranks) -> int:
    """Return the peak of the second step in bytes, of tensors without data."""
    device = resolve(config)
    mesh = parallelize._mesh(config, device, ranks) if config.parallel.sharded and ranks.world_size > 1 else None
    for name in (mesh.mesh_dim_names or ()) if mesh is not None else ():
        mesh[name]  # type: ignore[index]  # groups are made before tensors lose their data
    unmasked = patch.object(modeling_llama, "create_causal_mask", lambda **_: None)  # a causal kernel, as on a card
    plain = patch.object(causal, "document_mask", lambda *_: None)
    first = patch.object(DeviceMesh, "_compute_coordinates_from_mesh", staticmethod(_first_of_each))
    nccl = patch.object(parallelize, "_by_gloo", lambda _: False)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with patch.object(parallelize, "_mesh", lambda *_: mesh), unmasked, plain, first, nccl, mode:
        parallel, optimizer, passes = _ready(config, device, ranks)
        with patch.object(torch, "empty_like", _host):
            _step(config, device, parallel, optimizer, passes)
            tracker = _Tracker()
            tracker.track_external(parallel.model, optimizer)
            with tracker:
                _step(config, device, parallel, optimizer, passes, tracker)
    if "VERBOSE" in os.environ:
        tracker.display_snapshot("peak", units="MiB")
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


_EMPTY_LIKE = torch.empty_like


def _host(tensor: torch.Tensor, device: Any = None, **more: Any) -> torch.Tensor:
    """Like torch.empty_like, but what moves to the host is not counted."""
    return _EMPTY_LIKE(tensor, device="meta" if isinstance(device, str) else device, **more)


def _first_of_each(ranks: torch.Tensor, _: int) -> tuple[int, ...]:
    """Return the place of rank 0 in a mesh."""
    return (0,) * ranks.ndim


def _ready(config: Config, device: Device, ranks: Ranks) -> tuple[Parallel, torch.optim.Optimizer, int]:
    task = _task(config)
    with patch.object(task, "initialise", _give_memory):
        parallel = parallelise(task, config, device, ranks)
    optimizer = build_optimizer(parallel.model, config.train, fused=device.fuses_optimizer)
    return parallel, optimizer, config.accumulation(ranks.world_size)


def main() -> None:
    """Read cases from a file: their texts, number of ranks and of ranks of a node."""
    ranks: Ranks | None = None
    for case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        config = load_texts({name: (name, text) for name, text in case["texts"].items()})
        if case["fake"]:
            if dist.is_initialized():
                dist.destroy_process_group()
            if case["ranks"] > 1:
                dist.init_process_group("fake", rank=0, world_size=case["ranks"], store=FakeStore())
            group = dist.group.WORLD if case["ranks"] > 1 else None
            ranks = Ranks(0, case["ranks"], 0, group)
        ranks = ranks or join(resolve(config), timedelta(minutes=5))
        ranks = replace(ranks, local_world_size=case["per_node"], tensor=config.parallel.tensor)
        found = fake(config, ranks) if case["fake"] else real(config, ranks)
        torch._dynamo.reset()
        gc.collect()
        if ranks.first:
            print(json.dumps({"name": case["name"], "bytes": found}), flush=True)


if __name__ == "__main__":
    main()
