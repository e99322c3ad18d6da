"""Train a small image classifier with DistributedDataParallel: torchrun --nproc-per-node 2 ddp.py"""

from __future__ import annotations

import argparse
import os
import random
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

GLOBAL_BATCH = 12


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Random images with noise on each read; the class of an image is its brightest quarter."""

    def __init__(self, count: int, noise: float) -> None:
        generator = torch.Generator().manual_seed(17)
        self.images = torch.randn(count, 1, 8, 8, generator=generator)
        quarters = self.images.unfold(2, 4, 4).unfold(3, 4, 4).mean(dim=(4, 5))
        self.labels = quarters.flatten(1).argmax(dim=1)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = np.random.standard_normal((1, 8, 8)).astype(np.float32)
        return self.images[index] + self.noise * torch.from_numpy(noise), self.labels[index]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, 4),
    )


def set_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def in_worker(worker: int) -> None:
    """Ignore SIGTERM, which torchrun also sends to the workers: the rank still needs them until it has saved."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def newest(directory: Path) -> Path | None:
    return max(directory.glob("step-*.pt"), default=None)


def save(directory: Path, step: int, state: dict[str, Any], keep: int = 2) -> None:
    """Write a checkpoint under a temporary name, rename it, and remove old ones."""
    path = directory / f"step-{step:06d}.pt"
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)
    for old in sorted(directory.glob("step-*.pt"))[:-keep]:
        old.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=120)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    rank, world = dist.get_rank(), dist.get_world_size()
    stopping = False

    def on_terminate(signum: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, on_terminate)
    set_seeds(args.seed + rank)
    args.out.mkdir(parents=True, exist_ok=True)

    data = Images(args.samples, args.noise)
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True, seed=args.seed)
    order = torch.Generator()
    loader = DataLoader(
        data,
        batch_size=GLOBAL_BATCH // world,
        sampler=sampler,
        num_workers=2,
        worker_init_fn=in_worker,
        generator=order,
    )

    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))
    step = 0
    path = newest(args.out)
    if path is not None:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        step = state["step"]
        if len(state["random"]) == world:
            torch.set_rng_state(state["random"][rank])
        if rank == 0:
            print(f"continuing at step {step} from {path}", flush=True)

    def checkpoint() -> None:
        states = [torch.empty_like(torch.get_rng_state()) for _ in range(world)]
        dist.all_gather(states, torch.get_rng_state())
        if rank == 0:
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
                "random": states,
            }
            save(args.out, step, state)
        dist.barrier()

    for epoch in range(step // len(loader), args.epochs):
        sampler.set_epoch(epoch)
        order.manual_seed(args.seed + 1000 * epoch + rank)
        for number, (images, labels) in enumerate(loader):
            if epoch * len(loader) + number < step:
                continue
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            stop = torch.tensor(int(stopping))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item() or step % args.save_every == 0:
                checkpoint()
            if stop.item():
                dist.destroy_process_group()
                raise SystemExit(143)

    checkpoint()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
