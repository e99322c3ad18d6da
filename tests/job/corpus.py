"""The corpus of `why`: situations planted in a healthy job, each with the cause that must come first.

`healthy` and `cannot tell` are also answers. Messages of registries, kubelets, the operator, NCCL and torch are
as these programs print them. tests/job/situations has a family of causes in each pair of files: what is data in
YAML (steps.py reads it), what is computed in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.job.world import World

CPU, P5, G5 = "cpu/llama-tiny", "p5/llama-3-1-8b", "g5/llama-2-7b"
HEALTHY, CANNOT_TELL = "healthy", "cannot tell"


@dataclass(frozen=True)
class Situation:
    """A change to a healthy job's world, and the answer that `why` must give."""

    name: str
    cell: str
    cause: str
    plant: Callable[[World], None]


SITUATIONS: list[Situation] = []
Plant = Callable[[World], None]


def situation(cause: str, cell: str = CPU) -> Callable[[Plant], Plant]:
    """Add the function to the corpus."""

    def add(plant: Plant) -> Plant:
        SITUATIONS.append(Situation(plant.__name__, cell, cause, plant))
        return plant

    return add


def planted(name: str, cause: str, plant: Plant, cell: str = CPU) -> None:
    """Add a row of a table to the corpus."""
    SITUATIONS.append(Situation(name, cell, cause, plant))


STEP = "step  {n}/400  loss 3.000  lr 1.00e-03  900 tokens/s  MFU unknown  1.0 GiB  ETA 1:00"
TORCHRUN = (
    "E1121 11:59:00.000000 17 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "Root Cause (first observed failure):",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)
PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.1.7]:31337"
TOO_EARLY = (
    "Unable to attach or mount volumes: unmounted volumes=[shared], unattached volumes=[], failed to process"
    " volumes=[shared]: error processing PVC team-a/trainyard: failed to fetch PVC from API server:"
    ' persistentvolumeclaims "trainyard" is forbidden: User "system:node:node-1" cannot get resource'
    ' "persistentvolumeclaims" in API group "" in the namespace "team-a": no relationship found between node'
    " 'node-1' and this object"
)
