"""Run by torchrun on two ranks: a step of each family over FSDP2 against the same step unsharded."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from torch.distributed.tensor import DTensor

from tests.training.models.test_families import TINY, tiny
from training.config import Config
from training.device import resolve
from training.distributed.ranks import Ranks, join
from training.models.causal import CausalLM, build_on_meta, initialise, named_parameters
from training.trainer.optimizer import build_optimizer
from training.trainer.parallelize import parallelise


class Task:
    """The part of a task that parallelise needs."""

    def build(self, config: Any, device: Any) -> CausalLM:
        return build_on_meta(config, device.attention)

    def initialise(self, model: Any, config: Any, device: Any, ranks: Any) -> None:
        initialise(model, config, device)


def check(config: Config, ranks: Ranks) -> None:
    """Each rank has the same batch, so that FSDP2's mean of the gradients is the gradient of one."""
    device = resolve(config)
    ids = torch.randint(0, 515, (2, 32), generator=torch.Generator().manual_seed(0))
    batch = ids, ids.roll(-1, 1), torch.arange(32).expand(2, 32), torch.zeros_like(ids)
    whole = build_on_meta(config, device.attention)
    initialise(whole, config, device.torch_device)
    task: Any = Task()
    parallel = parallelise(task, config, device, ranks)
    losses = []
    for called, model in ((whole, whole), (parallel.wrapped, parallel.model)):
        optimizer = build_optimizer(model, config.train, fused=device.fuses_optimizer)
        loss = called(*batch) / ids.numel()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    expected = dict(named_parameters(whole))
    for name, parameter in named_parameters(parallel.model):
        assert isinstance(parameter, DTensor), name
        torch.testing.assert_close(parameter.full_tensor(), expected[name].data, rtol=1e-3, atol=3e-4, msg=name)


def main() -> None:
    first = tiny("llama")
    ranks = join(resolve(first), timedelta(seconds=300))
    for family in TINY:
        config = tiny(family)
        check(
            config.model_copy(update={"parallel": config.parallel.model_copy(update={"sharding": "fsdp"})}),
            ranks,
        )
        if ranks.rank == 0:
            print(family, flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
