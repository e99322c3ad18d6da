"""Run by torchrun on two ranks: BERT sharded on meta and initialised holds the whole model's bits."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from torch.distributed.tensor import DTensor

from training.bert import TASK
from training.config import load
from training.device import resolve
from training.distributed.ranks import join
from training.models.bert import build_on_meta, initialise
from training.models.causal import named_parameters
from training.trainer.parallelize import parallelise


def main() -> None:
    config = load(sys.argv[1])
    device = resolve(config)
    sharded = parallelise(TASK, config, device, join(device, timedelta(seconds=60))).model
    whole = build_on_meta(config, "eager")
    initialise(whole, config, torch.device("cpu"))
    expected = dict(named_parameters(whole))
    assert [name for name, _ in named_parameters(sharded)] == list(expected)
    for name, parameter in named_parameters(sharded):
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), expected[name]), name
    for name, buffer in sharded.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(name)), name
    print("equal to the whole model", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
