"""Train a small GPT with options at the top of the file, as hobbyists share it.

One GPU: python plain_loop.py. Several: torchrun --nproc-per-node 2 plain_loop.py.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

device = "cuda"
backend = "nccl"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
compile = True
batch, length, width, symbols, steps, accumulate = 4, 16, 32, 50, 6, 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, symbols, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=torch.long, device=x.device)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        logits = self.head(self.layer(self.tokens(x) + self.places(places), src_mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.view(-1, symbols), y.view(-1))


ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    device = f"cuda:{int(os.environ['LOCAL_RANK'])}"
    torch.cuda.set_device(device)
offset = int(os.environ.get("RANK", 0))
torch.manual_seed(1337 + offset)
device_type = "cuda" if "cuda" in device else "cpu"
data = np.random.default_rng(4).integers(0, symbols, 5000).astype(np.uint16)


def get_batch() -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - length, (batch,))
    x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
    if device_type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device)


kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
region: Any = contextlib.nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type, dtype=kind)
model: Any = Model().to(device)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
if compile:
    model = torch.compile(model)
if ddp:
    model = DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
for step in range(steps):
    for micro in range(accumulate):
        if ddp:
            model.require_backward_grad_sync = micro == accumulate - 1
        with region:
            loss = model(*get_batch()) / accumulate
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {step}: loss {loss.item() * accumulate:.4f}")
raw = model.module if ddp else model
names = list(raw.state_dict())
print("compiled" if names[0].startswith("_orig_mod.") else "not compiled", torch.cuda.memory_summary(abbreviated=True))
if ddp:
    destroy_process_group()
