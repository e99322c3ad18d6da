"""Two replicas in one process exchange gradients inside the graph, as NeuronCores do, and print them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

from training.device.neuron import CPU_CLIENT, Neuron

# XLA's CPU client numbers a collective when it compiles it: replicas that compile for themselves never meet.
COMPILED = threading.Event()


def replica(_index: int) -> None:
    device: Any = torch_xla.device()
    own = Neuron(device, "fp32", "eager", False, "", CPU_CLIENT, None)
    rank = xr.global_ordinal()
    # As inputs, not constants, so that the graph is the same for both and is compiled once.
    gradients = [torch.full((3,), 1.0 + rank).to(device), torch.full((2, 2), 10.0 * rank).to(device)]
    own.exchange(gradients, None, xr.world_size())
    if rank > 0:
        COMPILED.wait()
    own.step_done()
    COMPILED.set()
    means = [gradient.cpu().flatten().tolist() for gradient in gradients]
    sys.stdout.write(f"replica {rank} {xr.world_size()} {means}\n")  # one write: replicas share the stream
    sys.stdout.flush()


if __name__ == "__main__":
    xmp.spawn(replica)
