"""Train a small recurrent language model in one process: python no_framework.py"""

from __future__ import annotations

import argparse
import os
import random
import signal
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SYMBOLS = 16


class Model(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits


def make_data(count: int, length: int = 12) -> TensorDataset:
    """Return texts in which each symbol follows from the two before it."""
    generator = torch.Generator().manual_seed(17)
    tokens = torch.randint(SYMBOLS, (count, length), generator=generator)
    for place in range(2, length):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % SYMBOLS
    return TensorDataset(tokens)


def set_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()

    stopping = False

    def on_terminate(signum: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, on_terminate)
    set_seeds(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    order = torch.Generator()
    loader = DataLoader(make_data(args.samples), batch_size=args.batch, shuffle=True, generator=order)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / total)
    step = 0
    path = max(args.out.glob("step-*.pt"), default=None)
    if path is not None:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        step = state["step"]
        torch.set_rng_state(state["random"])
        print(f"continuing at step {step} from {path}", flush=True)

    def checkpoint() -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": step,
            "random": torch.get_rng_state(),
        }
        path = args.out / f"step-{step:06d}.pt"
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        os.replace(temporary, path)
        for old in sorted(args.out.glob("step-*.pt"))[:-2]:
            old.unlink()

    model.train()
    for epoch in range(step // len(loader), args.epochs):
        order.manual_seed(args.seed + epoch)
        for number, (tokens,) in enumerate(loader):
            if epoch * len(loader) + number < step:
                continue
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if stopping or step % args.save_every == 0:
                checkpoint()
            if stopping:
                raise SystemExit(143)

    checkpoint()


if __name__ == "__main__":
    main()
