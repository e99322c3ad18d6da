"""Train a small classifier with accelerate: accelerate launch --cpu --num_processes 2 accelerate_script.py"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    InitProcessGroupKwargs,
    ProjectConfiguration,
    gather_object,
    set_seed,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 6


def make_data(count: int) -> TensorDataset:
    """Return points in 16 dimensions, and on which side of a curved surface each one lies."""
    generator = torch.Generator().manual_seed(17)
    points = torch.randn(count, 16, generator=generator)
    return TensorDataset(points, (points[:, :8].norm(dim=1) > points[:, 8:].norm(dim=1)).long())


class Position:
    """The number of steps done, saved with the rest of the state."""

    def __init__(self, world: int) -> None:
        self.step, self.world = 0, world

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "world": self.world}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["world"] != self.world:
            raise SystemExit(f"the checkpoint is of {state['world']} processes, and this is one of {self.world}")
        self.step = state["step"]


def save(accelerator: Accelerator, directory: Path, step: int, keep: int = 2) -> None:
    """Write a checkpoint under a temporary name; the main process renames it and removes old ones."""
    path, temporary = directory / f"step-{step:06d}", directory / f"tmp-{step:06d}"
    if path.exists():
        return
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(temporary))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.replace(temporary, path)
        for old in sorted(directory.glob("step-*"))[:-keep]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=108)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()

    stopping = False

    def on_terminate(signum: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, on_terminate)
    project = ProjectConfiguration(project_dir=str(args.out))
    patience = InitProcessGroupKwargs(timeout=timedelta(minutes=5))
    shuffling = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=args.seed)
    accelerator = Accelerator(cpu=True, project_config=project, kwargs_handlers=[patience], dataloader_config=shuffling)
    set_seed(args.seed, device_specific=True)
    args.out.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(make_data(args.samples), batch_size=BATCH, shuffle=True, generator=torch.Generator())
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.epochs * args.samples // BATCH + 1
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    position = Position(accelerator.num_processes)
    accelerator.register_for_checkpointing(position)
    path = max(args.out.glob("step-*"), default=None)
    if path is not None:
        accelerator.load_state(str(path))
        accelerator.print(f"continuing at step {position.step} from {path}", flush=True)

    for epoch in range(position.step // len(loader), args.epochs):
        loader.set_epoch(epoch)
        done = position.step - epoch * len(loader)
        batches = accelerator.skip_first_batches(loader, done) if done > 0 else loader
        for points, sides in batches:
            loss = nn.functional.cross_entropy(model(points), sides)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            position.step += 1
            accelerator.print(f"step {position.step} loss {loss.item():.4f}", flush=True)
            stop = any(gather_object([stopping]))
            if stop or position.step % args.save_every == 0:
                save(accelerator, args.out, position.step)
            if stop:
                accelerator.end_training()
                raise SystemExit(143)

    save(accelerator, args.out, position.step)
    accelerator.end_training()


if __name__ == "__main__":
    main()
