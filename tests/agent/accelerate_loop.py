"""A loop with accelerate on data of its own."""

import argparse
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()

set_seed(7)
accelerator = Accelerator(cpu=True)
rows = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
seen, step = 0, 0
while step < options.steps:
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        accelerator.print(f"step {step} loss={mean:.6f} world={accelerator.num_processes}", flush=True)
        if step == options.steps:
            break
accelerator.end_training()
sys.stdout.flush()
os._exit(0)  # torch may abort a process while Python ends: the job would start again from step 1
