"""Train a small classifier with Lightning: torchrun --nproc-per-node 2 lightning_script.py"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH = 12


class Classifier(L.LightningModule):
    def __init__(self, lr: float, steps: int) -> None:
        super().__init__()
        self.lr, self.steps = lr, steps
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)

    def forward(self, points: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(points))
        return logits

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        points, sides = batch
        loss = nn.functional.cross_entropy(self(points), sides)
        self.print(f"step {self.global_step + 1} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class SaveOnTerminate(L.Callback):
    """Save and stop after the step in which a rank has got SIGTERM."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.stopping = directory, False

    def on_terminate(self, signum: int, frame: object) -> None:
        self.stopping = True

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        signal.signal(signal.SIGTERM, self.on_terminate)

    def on_train_batch_end(self, trainer: L.Trainer, *others: Any) -> None:
        if trainer.strategy.reduce_boolean_decision(self.stopping, all=False):
            trainer.save_checkpoint(self.directory / f"stopped-step={trainer.global_step}.ckpt")
            trainer.should_stop = True


def make_data(count: int) -> TensorDataset:
    """Return points in 16 dimensions, and on which side of a curved surface each one lies."""
    generator = torch.Generator().manual_seed(17)
    points = torch.randn(count, 16, generator=generator)
    return TensorDataset(points, (points[:, :8].norm(dim=1) > points[:, 8:].norm(dim=1)).long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=72)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()

    L.seed_everything(args.seed, workers=True)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    loader = DataLoader(make_data(args.samples), batch_size=GLOBAL_BATCH // world, shuffle=True)
    model = Classifier(args.lr, args.epochs * args.samples // GLOBAL_BATCH)
    saver = ModelCheckpoint(
        dirpath=args.out, monitor="step", mode="max", save_top_k=2, every_n_epochs=1,
        save_on_train_epoch_end=True,
    )  # fmt: skip
    trainer = L.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=DDPStrategy(timeout=timedelta(minutes=5)) if world > 1 else "auto",
        max_epochs=args.epochs,
        callbacks=[saver, SaveOnTerminate(args.out)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = max(args.out.glob("*.ckpt"), default=None, key=lambda path: path.stat().st_mtime)
    trainer.fit(model, loader, ckpt_path=last)


if __name__ == "__main__":
    main()
