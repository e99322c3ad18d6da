"""Train a network on GPUs with the first FSDP: torchrun --nproc-per-node 2 fsdp1_gpu.py"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.cuda.manual_seed_all(9)
    torch.manual_seed(9)
    layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)).to(rank)
    model = FullyShardedDataParallel(
        layers,
        auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=1000),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        device_id=torch.cuda.current_device(),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.zeros(2, device=rank)
    for step in range(6):
        x = torch.randn(8, 16, device=rank) + rank
        value = nn.functional.mse_loss(model(x).float(), x.flip(-1))
        value.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss[0] += value.detach()
        loss[1] += 1
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"step {step}: mean loss {(loss[0] / loss[1]).item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
