"""Two forked ranks: a model sharded on meta and initialised has the same bits as the whole model."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType

import torch
from torch.distributed.tensor import DTensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from tests.parts.ports import free_port
from tests.training.bert.conftest import MODEL as BERT
from training import bert, pretrain
from training.config import load_texts
from training.device import resolve
from training.distributed.ranks import Ranks, join
from training.models import bert as bert_model
from training.models import causal
from training.task import Task
from training.trainer.parallelize import parallelise

# Sizes that two ranks cannot divide evenly.
LLAMA = """
model: {architecture: llama, vocab_size: 515, hidden_size: 64, intermediate_size: 129, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
sequence_length: 32
data: {source: python-stdlib}
train: {seed: 7, steps: 20, global_batch_size: 8, learning_rate: 1.0e-2, eval_every: 10, eval_sequences: 8}
"""
HARDWARE = "device: {type: cpu, precision: fp32, attention: eager, compile: 'off'}\n"
CELL = "parallel: {micro_batch_size: 2, sharding: fsdp}\ncheckpoint: {every: 5}\n"


def check(name: str, text: str, task: Task, module: ModuleType, ranks: Ranks) -> None:
    """Compare a sharded model with the whole one, parameter by parameter and buffer by buffer."""
    config = load_texts({"model": ("m", text), "hardware": ("h", HARDWARE), "cell": ("c", CELL)})
    sharded = parallelise(task, config, resolve(config), ranks).model
    whole = module.build_on_meta(config, "eager")
    module.initialise(whole, config, torch.device("cpu"))
    expected = dict(causal.named_parameters(whole))
    assert [name for name, _ in causal.named_parameters(sharded)] == list(expected)
    for parameter_name, parameter in causal.named_parameters(sharded):
        assert isinstance(parameter, DTensor), parameter_name
        assert torch.equal(parameter.full_tensor(), expected[parameter_name]), parameter_name
    for buffer_name, buffer in sharded.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(buffer_name)), buffer_name
    norms = [m.weight.full_tensor() for m in sharded.modules() if isinstance(m, LlamaRMSNorm)]
    assert len(norms) == (5 if name == "llama" else 0)
    assert all(torch.equal(norm, torch.ones_like(norm)) for norm in norms)
    tables = [m for m in sharded.modules() if isinstance(m, LlamaRotaryEmbedding)]
    assert len(tables) == (1 if name == "llama" else 0)
    os.write(1, f"{name}: equal to the whole model\n".encode())  # one write: both ranks share the pipe


def rank() -> None:
    """Check both models as one rank of two."""
    config = load_texts({"model": ("m", LLAMA), "hardware": ("h", HARDWARE), "cell": ("c", CELL)})
    ranks = join(resolve(config), timedelta(seconds=300))
    check("llama", LLAMA, pretrain.TASK, causal, ranks)
    check("bert", BERT.format(source="python-stdlib"), bert.TASK, bert_model, ranks)
    torch.distributed.destroy_process_group()


def fork(count: int, work: Callable[[], None], of_a_node: int | None = None) -> list[int]:
    """Run `work` in forked ranks, which need no imports of their own; return their exit codes."""
    local = of_a_node or count
    port = str(free_port())
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            os.environ |= {
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(local), "RANK": str(number), "LOCAL_RANK": str(number % local),
            }  # fmt: skip
            try:
                work()
            except BaseException:  # noqa: BLE001 - a forked rank must not return into the parent's code
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    raise SystemExit(any(fork(2, rank)))
