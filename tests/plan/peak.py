"""One rank of the trainer for two steps: prints the peak of allocated host memory, as torch's profiler counts it."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from training import pretrain
from training.config import Config, load_texts
from training.device import Device, resolve
from training.distributed.ranks import join
from training.trainer.optimizer import build_optimizer, clip_gradients
from training.trainer.parallelize import Parallel, parallelise


def step(config: Config, device: Device, parallel: Parallel, optimizer: torch.optim.Optimizer, passes: int) -> None:
    """Do one optimizer step, as training/trainer/loop.py does."""
    size = config.parallel.micro_batch_size, config.sequence_length
    for index in range(passes):
        ids = torch.randint(0, config.model.vocab_size, size)
        positions = torch.arange(size[1]).expand(size).contiguous()
        with parallel.exchange(index == passes - 1):
            with parallel.autocast(device):
                documents = torch.zeros(size, dtype=torch.int64)
                losses = parallel.wrapped(
                    input_ids=ids, labels=ids.clone(), position_ids=positions, document_ids=documents
                )
            (losses * 1e-4).sum().backward()
    parallel.exchange_rest(device)
    clip_gradients(parallel.model, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def peak(config: Config) -> int:
    """Return the peak of the second step in bytes."""
    device = resolve(config)
    ranks = join(device, timedelta(minutes=5))
    passes = config.accumulation(ranks.world_size)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        parallel = parallelise(pretrain.TASK, config, device, ranks)
        optimizer = build_optimizer(parallel.model, config.train, fused=device.fuses_optimizer)
        step(config, device, parallel, optimizer, passes)
        with record_function("second step"):
            step(config, device, parallel, optimizer, passes)
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        seen.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    second = next(one for one in events if one.get("name") == "second step" and one.get("ph") == "X")
    counts = [
        int(one["args"]["Total Allocated"])
        for one in events
        if one.get("name") == "[memory]" and second["ts"] <= one["ts"] <= second["ts"] + second["dur"]
    ]
    return max(counts)


if __name__ == "__main__":
    found = peak(load_texts({name: (name, text) for name, text in json.loads(os.environ["CONFIG"]).items()}))
    if os.environ["RANK"] == "0":
        print(found, flush=True)
