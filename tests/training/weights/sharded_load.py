"""Run by torchrun on any number of ranks: a sharded load keeps the right bits, and no more than its share.

`PYTHONPATH=. torchrun --nproc-per-node=2 tests/training/weights/sharded_load.py DIRECTORY [WEIGHTS]`, in the
checkout, loads a model over FSDP2 with adapters: WEIGHTS, else one that it makes in DIRECTORY. Writes, for
each rank, DIRECTORY/report-RANK.json: the peak of its resident memory while it loads, above what it had, as a
ratio to its shard; and, as control, the same for a load of the whole model. A step of a small one in bf16
follows, against the same step on one rank.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from tests.training.weights.bases import LORA, configuration, random_weights
from training.device import Device, resolve
from training.distributed.ranks import Ranks, join
from training.models.causal import CausalLM, build_on_meta, named_parameters, trained_parameters
from training.models.lora import adapt
from training.run.directory import RunDir
from training.task import Trainable
from training.trainer.parallelize import parallelise
from training.weights import Weights, open_weights

SHAPE: dict[str, Any] = {
    "vocab_size": 16000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 5,
    "num_attention_heads": 12, "num_key_value_heads": 4, "tie_word_embeddings": True,
}  # fmt: skip


class Loading:
    """The part of a task that parallelise needs."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.peak = 0.0

    def build(self, config: Any, device: Device) -> CausalLM:
        model = build_on_meta(config, device.attention)
        adapt(model, config, device.precision)
        return model

    def initialise(self, model: Trainable, config: Any, device: torch.device, ranks: Any) -> None:
        before = forget_peak()
        self._weights.load(model, config, device)
        self.peak = peak() - before


def forget_peak() -> float:
    """Give back what is free and let the kernel count the peak anew; returns the memory now, in MiB.

    Memory that was freed but kept would be filled again unseen. See man 5 proc, clear_refs.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> float:
    """The peak of resident memory since then, in MiB."""
    return _status("VmHWM")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def main() -> None:
    directory = Path(sys.argv[1])
    weights = sys.argv[2] if len(sys.argv) > 2 else str(directory / "base")
    config = configuration(weights, LORA, "fsdp", **SHAPE)
    ranks = join(resolve(config), timedelta(seconds=300))
    if ranks.first and len(sys.argv) == 2:
        random_weights(directory / "base", config, torch.bfloat16)
    ranks.barrier()
    opened = open_weights(config, RunDir(directory / "runs" / "mine"), ranks)
    task: Any = Loading(opened)
    model = parallelise(task, config, resolve(config), ranks).model

    shard = sum(p.to_local().nbytes for p in model.parameters() if isinstance(p, DTensor)) / 2**20
    before = forget_peak()
    stored = load_file(opened.directory / "model.safetensors")
    whole = {name: tensor.float() for name, tensor in stored.items()}
    control = peak() - before
    for name, parameter in named_parameters(model):
        assert isinstance(parameter, DTensor), name
        if "lora" not in name:
            expected = whole[name.replace(".base_layer.", ".")]
            assert torch.equal(parameter.full_tensor(), expected), name
    report = {
        "rank": ranks.rank,
        "digest": opened.digest,
        "shard_mib": shard,
        "ratio": task.peak / shard,
        "control": control / shard,
    }
    # A file for each rank: torchrun starts them unbuffered, so that lines of two ranks run into each other.
    (directory / f"report-{ranks.rank}.json").write_text(json.dumps(report))
    check_a_bf16_step(directory / "small", ranks)
    torch.distributed.destroy_process_group()


def check_a_bf16_step(directory: Path, ranks: Ranks) -> None:
    """A base in bf16 and adapters in fp32 train sharded like unsharded, up to bf16's rounding."""
    section = {**LORA, "modules_to_save": ["norm", "input_layernorm"]}
    config = configuration(str(directory), section, "fsdp")
    config = config.model_copy(update={"device": config.device.model_copy(update={"precision": "bf16"})})
    if ranks.first:
        random_weights(directory, config, torch.bfloat16)
    ranks.barrier()
    device, weights = resolve(config), open_weights(config, RunDir(directory / "runs" / "mine"), ranks)
    ids = torch.randint(0, 515, (2, 32), generator=torch.Generator().manual_seed(0))
    batch = ids, ids.roll(-1, 1), torch.arange(32).expand(2, 32), torch.zeros_like(ids)
    whole = build_on_meta(config, device.attention)
    adapt(whole, config, device.precision)
    weights.load(whole, config, device.torch_device)
    task: Any = Loading(weights)
    parallel = parallelise(task, config, device, ranks)
    with device.autocast():
        expected = whole(*batch)
    expected.backward()
    with parallel.autocast(device):
        found = parallel.wrapped(*batch)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)
    ours = dict(trained_parameters(parallel.model))
    for name, parameter in trained_parameters(whole):
        mine, gradient = ours[name], ours[name].grad
        assert isinstance(mine, DTensor), name
        assert isinstance(gradient, DTensor), name
        assert mine.dtype == gradient.dtype == torch.float32, name
        assert parameter.grad is not None, name
        apart = (gradient.full_tensor() - parameter.grad).norm() / parameter.grad.norm().clamp(min=1e-6)
        assert apart < 0.05, (name, apart)
    frozen = [p for p in parallel.model.parameters() if not p.requires_grad]
    assert all(p.dtype == torch.bfloat16 and p.grad is None for p in frozen)


if __name__ == "__main__":
    main()
