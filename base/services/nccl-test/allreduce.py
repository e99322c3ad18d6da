"""All-reduce over all ranks, by message size: `torchrun allreduce.py [--largest MIB]`

Rank 0 prints a table. Bus bandwidth is that of nccl-tests (doc/PERFORMANCE.md there): bytes / seconds x
2 (n - 1) / n, which does not depend on the number of ranks and can be compared with the network's bandwidth.
Every sum is checked. The exit code is 1 on every rank if one is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

WARM_UP = 3
SECONDS = 2.0  # for each size, approximately
MOST = 50


def sizes(largest_mib: int) -> Iterator[int]:
    """Yield message sizes in bytes: 64 KiB, then four times as much, and the largest."""
    size, largest = 64 * 1024, largest_mib * 2**20
    while size < largest:
        yield size
        size *= 4
    yield largest


def measure(size: int, device: torch.device, world: int) -> tuple[float, bool]:
    """Return the seconds of one all-reduce of `size` bytes on the slowest rank, and if the sum was right."""
    values = torch.full((size // 4,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(values)
    right = bool((values == world * (world + 1) / 2).all())
    one = _timed(values, WARM_UP)
    rounds = torch.tensor([max(1, min(MOST, int(SECONDS / one)))], device=device)
    dist.broadcast(rounds, 0)  # all ranks need the same number of rounds
    slowest = torch.tensor([_timed(values, int(rounds)), 0.0 if right else 1.0], dtype=torch.float64)
    slowest = slowest.to(torch.float32).to(device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest[0]), not bool(slowest[1])


def _timed(values: torch.Tensor, rounds: int) -> float:
    values.zero_()
    _wait(values)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(values)
    _wait(values)
    return (time.perf_counter() - began) / rounds


def _wait(values: torch.Tensor) -> None:
    if values.is_cuda:
        torch.cuda.synchronize()


def main() -> int:
    """Measure every size. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, metavar="MIB", help="default: 4096 with CUDA, 64 without")
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    world, first = dist.get_world_size(), dist.get_rank() == 0
    if first:
        print(f"all-reduce of {world} ranks by {dist.get_backend()}, torch {torch.__version__}", flush=True)
        print(f"{'bytes':>12} {'ms':>10} {'GB/s':>8} {'bus GB/s':>9}  sum", flush=True)
    wrong = False
    for size in sizes(arguments.largest or (4096 if cuda else 64)):
        seconds, right = measure(size, device, world)
        wrong = wrong or not right
        if first:
            rate = size / seconds / 1e9
            bus = rate * 2 * (world - 1) / world
            verdict = "right" if right else "WRONG"
            print(f"{size:>12} {1000 * seconds:>10.3f} {rate:>8.2f} {bus:>9.2f}  {verdict}", flush=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
