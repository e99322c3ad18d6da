"""Train a small decoder with FSDP2 and torch.distributed.checkpoint: torchrun --nproc-per-node 2 fsdp2.py"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SYMBOLS = 32
GLOBAL_BATCH = 12


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.dropout(self.down(torch.relu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    def __init__(self, length: int, width: int = 32, blocks: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class State:
    """Everything that a restart needs, as torch.distributed.checkpoint saves and loads it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]


def make_data(count: int, length: int) -> TensorDataset:
    """Return texts in which each symbol follows from the two before it."""
    generator = torch.Generator().manual_seed(17)
    tokens = torch.randint(SYMBOLS, (count, length), generator=generator)
    for place in range(2, length):
        tokens[:, place] = (tokens[:, place - 1] + tokens[:, place - 2]) % SYMBOLS
    return TensorDataset(tokens)


def save(directory: Path, state: State, keep: int = 2) -> None:
    """Write a checkpoint under a temporary name; rank 0 renames it and removes old ones."""
    path = directory / f"step-{state.step:06d}"
    temporary = directory / f"tmp-{state.step:06d}"
    if path.exists():
        return
    if dist.get_rank() == 0:
        shutil.rmtree(temporary, ignore_errors=True)
    dist.barrier()
    dcp.save({"state": state}, checkpoint_id=temporary)  # type: ignore[attr-defined]
    name = f"random-{dist.get_world_size()}-{dist.get_rank()}.pt"
    torch.save(torch.get_rng_state(), temporary / name)
    dist.barrier()
    if dist.get_rank() == 0:
        os.replace(temporary, path)
        for old in sorted(directory.glob("step-*"))[:-keep]:
            shutil.rmtree(old)
    dist.barrier()


def load(path: Path, state: State) -> None:
    dcp.load({"state": state}, checkpoint_id=path)  # type: ignore[attr-defined]
    own = path / f"random-{dist.get_world_size()}-{dist.get_rank()}.pt"
    if own.exists():
        torch.set_rng_state(torch.load(own, weights_only=True))
    if dist.get_rank() == 0:
        print(f"continuing at step {state.step} from {path}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
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
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)  # all ranks shard the same weights
    model = Decoder(args.length)
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(args.seed + 1 + rank)  # and drop other units

    data = make_data(args.samples, args.length)
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True, seed=args.seed)
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // world, sampler=sampler, generator=torch.Generator())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / total)
    state = State(model, optimizer, scheduler)
    path = max(args.out.glob("step-*"), default=None)
    if path is not None:
        load(path, state)

    for epoch in range(state.step // len(loader), args.epochs):
        sampler.set_epoch(epoch)
        for number, (tokens,) in enumerate(loader):
            if epoch * len(loader) + number < state.step:
                continue
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            state.step += 1
            if rank == 0:
                print(f"step {state.step} loss {loss.item():.4f}", flush=True)
            stop = torch.tensor(int(stopping))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item() or state.step % args.save_every == 0:
                save(args.out, state)
            if stop.item():
                dist.destroy_process_group()
                raise SystemExit(143)

    save(args.out, state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
