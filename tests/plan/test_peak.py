"""The planned memory beside what ranks of the trainer allocate on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tools.core import repo
from tools.plan.memory import GIB, INTERPRETER, Room, estimate
from training.config import load_texts

MODEL = """
model: {{architecture: llama, vocab_size: 8192, hidden_size: 512, intermediate_size: 1536, num_hidden_layers: 6,
        num_attention_heads: 8, num_key_value_heads: 4}}
sequence_length: 512
data: {{source: /shared/text}}
train: {{seed: 7, steps: 20, global_batch_size: {batch}, learning_rate: 1.0e-2, eval_every: 10, eval_sequences: 8}}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("sharding", "precision", "compiled"),
    [("ddp", "fp32", "off"), ("ddp", "bf16", "off"), ("fsdp", "fp32", "off"), ("fsdp", "bf16", "off"),
     ("fsdp", "bf16", "on")],
)  # fmt: skip
def test_planned_memory_is_what_two_ranks_allocate(sharding: str, precision: str, compiled: str) -> None:
    texts = {
        "model": MODEL.format(batch=8),
        "hardware": f"device: {{type: cpu, precision: {precision}, attention: sdpa, compile: '{compiled}'}}",
        "cell": f"parallel: {{micro_batch_size: 4, sharding: {sharding}}}\ncheckpoint: {{every: 5}}",
    }
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.plan.peak")
    environment = {**os.environ, "CONFIG": json.dumps(texts), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=repo.root(),
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    measured = int(done.stdout.split()[-1])
    config = load_texts({name: (name, text) for name, text in texts.items()})
    planned = estimate(config, 1, Room(2, 3 * GIB, "process")).needed - INTERPRETER
    assert 0.97 <= planned / measured <= 1.08
