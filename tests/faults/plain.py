"""The control: a training script for torchrun that saves and loads with torch.distributed.checkpoint.

It is what tutorials write: DDP, a directory for each step, the newest one that has a `.metadata` is loaded, and
torchrun starts the ranks again. Model, optimizer, batch and interval are those of tests/training/jobs.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

from tests.faults import inside

VOCABULARY, LENGTH = 512, 32
RUN = Path(os.environ["TRAINYARD_RUN"])
CHECKPOINTS = RUN / "checkpoints"


def main() -> None:
    """Train from the newest checkpoint to the last step."""
    given = parsed()
    if os.environ["RANK"] == "0":
        print("starting", flush=True)
    if given.batch % int(os.environ["WORLD_SIZE"]):
        raise ValueError(f"a batch of {given.batch} cannot be divided among the ranks")
    dist.init_process_group("gloo", timeout=timedelta(seconds=given.timeout))
    rank = dist.get_rank()
    RUN.mkdir(parents=True, exist_ok=True)
    inside.prepare(CHECKPOINTS.resolve())
    torch.manual_seed(given.seed)
    model = DistributedDataParallel(LlamaForCausalLM(architecture()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = resume(model, optimizer)
    if rank == 0:
        print(f"continuing from step {step}", flush=True)
    with open(RUN / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        while step < given.steps:
            step += 1
            inside.before_step(step, rank)
            loss = train_step(model, optimizer, batch_of(given, step, rank), step, rank)
            if rank == 0:
                record = {"step": step, "loss": loss, "time": time.time()}
                metrics.write(json.dumps(record) + "\n")
                metrics.flush()
            if step % given.every == 0 or step == given.steps:
                save(model, optimizer, step)
    if rank == 0:
        (RUN / "final.json").write_text(json.dumps(digest(model)))
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of a collective; 1800 is gloo's default")
    return parser.parse_args()


def architecture() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip


def batch_of(given: argparse.Namespace, step: int, rank: int) -> torch.Tensor:
    """Return this rank's samples of a step, by arithmetic, so that they do not depend on a position."""
    draw = torch.Generator().manual_seed(given.seed * 1_000_003 + step * 101 + rank)
    return torch.randint(0, VOCABULARY, (given.batch // dist.get_world_size(), LENGTH), generator=draw)


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, step: int, rank: int
) -> float:
    loss = model(input_ids=tokens, labels=tokens).loss
    if inside.poisons(step, rank):
        loss = loss * float("nan")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach())
    return float(loss) / dist.get_world_size()


def state_of(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def save(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    dcp.save(state_of(model, optimizer), checkpoint_id=CHECKPOINTS / f"step-{step:08d}")  # type: ignore[attr-defined]


def resume(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint with a `.metadata`; return its step, or 0."""
    whole = sorted(path.parent for path in CHECKPOINTS.glob("step-*/.metadata"))
    if not whole:
        return 0
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=whole[-1])  # type: ignore[attr-defined]
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(whole[-1].name.removeprefix("step-"))


def digest(model: DistributedDataParallel) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    main()
