"""Run by torchrun on two ranks: a model sharded on meta and initialised holds the whole model's bits."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed.tensor import DTensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from training.config import load_texts
from training.device import resolve
from training.distributed.ranks import join
from training.models.causal import build_on_meta, initialise, named_parameters
from training.pretrain import TASK
from training.trainer.parallelize import parallelise

MODEL = """
model: {architecture: llama, vocab_size: 515, hidden_size: 64, intermediate_size: 129, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
sequence_length: 32
data: {source: python-stdlib}
train: {seed: 7, steps: 20, global_batch_size: 8, learning_rate: 1.0e-2, eval_every: 10, eval_sequences: 8}
"""
HARDWARE = "device: {type: cpu, precision: fp32, compile: 'off'}\n"
CELL = "parallel: {micro_batch_size: 2, sharding: fsdp}\ncheckpoint: {every: 5}\n"


def main() -> None:
    config = load_texts({"model": ("m", MODEL), "hardware": ("h", HARDWARE), "cell": ("c", CELL)})
    device = resolve(config)
    sharded = parallelise(TASK, config, device, join(device, timedelta(seconds=60))).model
    whole = build_on_meta(config, "eager")
    initialise(whole, config, torch.device("cpu"))
    expected = dict(named_parameters(whole))
    names = [name for name, _ in named_parameters(sharded)]
    assert names == list(expected), (names, list(expected))
    for name, parameter in named_parameters(sharded):
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), expected[name]), name
    norms = [m.weight.full_tensor() for m in sharded.modules() if isinstance(m, LlamaRMSNorm)]
    assert len(norms) == 5
    assert all(torch.equal(n, torch.ones_like(n)) for n in norms)
    tables = [m.inv_freq for m in sharded.modules() if isinstance(m, LlamaRotaryEmbedding)]
    assert torch.equal(tables[0], whole.hf.model.rotary_emb.inv_freq)
    print("equal to the whole model", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
