"""A plain PyTorch loop on any number of ranks, which continues exactly where it was interrupted.

It runs with `torchrun train.py` below the agent, and as `TRAINYARD_RUN=run python train.py` without it.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import trainyard
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace, rank: int, ranks: int) -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    first = 0
    torch.manual_seed(100 + rank)  # every rank drops other values

    found = trainyard.latest()
    if found is not None:
        state = found.state
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        if found.own is not None:
            torch.set_rng_state(found.own["rng"])
        first = found.step
        print(f"continuing after step {first}", flush=True)

    parallel = DistributedDataParallel(model) if ranks > 1 else model
    for step in range(first + 1, args.steps + 1):
        # The step and the rank decide what is read, so that an interrupted run reads the same.
        data = torch.Generator().manual_seed(step * ranks + rank)
        inputs = torch.randn(32, 16, generator=data).to(device)
        loss = nn.functional.mse_loss(parallel(inputs), inputs.sin().sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        trainyard.report(step, steps=args.steps, loss=loss, lr=schedule.get_last_lr()[0])
        time.sleep(args.pause)
        if step % args.save_every == 0 or step == args.steps or trainyard.stopping():
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            trainyard.save(state, step, own={"rng": torch.get_rng_state()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait after each step, to watch")
    args = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args, rank, ranks)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
