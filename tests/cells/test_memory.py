"""The memory formula: each cell fits, pairs without a cell do not, and the terms are what torch holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from tools import cli
from tools.cells import matrix
from tools.cells import memory as cells_memory
from tools.core import repo
from tools.core.errors import UserError
from tools.plan import layout, memory
from tools.plan.memory import GIB, Estimate, Room, Term
from training.config import Config, Device, load_texts
from training.config.counting import parameters

ROOT = repo.root()
FOUND = matrix.read(ROOT)
PAIRS = {f"{hardware}/{model}" for hardware in FOUND.machines for model in FOUND.models}
# The hardware that has a cell for every model of this list that fits it. The others have a choice of cells.
WIDE = ("cpu", "g5", "p4d", "p5", "trn1")
PUBLISHED = {cell.model for cell in FOUND.cells if cell.hardware == "g5"} | {"llama-2-70b", "llama-3-1-70b"}
# Sequences that cannot be shared by all cores of the hardware's largest machine, and what Neuron cannot train.
REFUSED = {name for name in PAIRS if name.startswith("trn") and name.endswith("alpaca")}
REFUSED |= {name for name in PAIRS if name.startswith("trn2/") and "-tiny" in name}
REFUSED |= {"trn1n/llama-tiny"}  # 16 sequences a step, and 32 cores
REFUSED |= {name for name in PAIRS if name.startswith("trn") and "/mixtral" in name}
OTHERS = sorted(
    {f"{hardware}/{model}" for hardware in WIDE for model in PUBLISHED} - REFUSED - {cell.name for cell in FOUND.cells}
)
# Pairs that fit and have no cell: this repository has no recipe for them.
NO_RECIPE = {
    "trn1/llama-tiny-lora", "trn1/deepseek-r1-distill-qwen-1-5b-lora",
    "p4d/deepseek-r1-distill-qwen-1-5b-alpaca", "p5/deepseek-r1-distill-qwen-1-5b-alpaca",
}  # fmt: skip
MODEL = """
model: {{architecture: llama, vocab_size: 512, hidden_size: {hidden}, intermediate_size: {inner},
        num_hidden_layers: {layers}, num_attention_heads: {heads}, num_key_value_heads: {kv}}}
sequence_length: {length}
data: {{source: /shared/text}}
train: {{seed: 7, steps: 20, global_batch_size: {batch}, learning_rate: 1.0e-2, eval_every: 10,
        eval_sequences: 8}}
"""
CARD = Room(8, 80 * GIB, "GPU")


def config(batch: int = 8, micro: int = 1, sharding: str = "fsdp", recompute: str = "none") -> Config:
    """A small Llama on a GPU."""
    shape = {"hidden": 512, "inner": 1792, "layers": 4, "heads": 8, "kv": 2, "length": 320}
    keys = f"micro_batch_size: {micro}, sharding: {sharding}, activation_checkpointing: {recompute}"
    return load_texts(
        {
            "model": ("model.yaml", MODEL.format(batch=batch, **shape)),
            "hardware": ("hardware.yaml", "device: {type: cuda, precision: bf16, attention: sdpa}"),
            "cell": ("cell.yaml", f"parallel: {{{keys}}}\ncheckpoint: {{every: 5}}"),
        }
    )


def term(estimate: Estimate, name: str) -> Term:
    """Return the term of that name, counted or not."""
    (found,) = (one for one in (*estimate.terms, *estimate.left_out) if one.name == name)
    return found


@pytest.mark.parametrize(
    ("device", "recompute", "kernels"),
    [
        ({"type": "cpu"}, "none", "eager"),
        ({"type": "cpu", "compile": "on"}, "none", "compiled"),
        ({"type": "cpu", "precision": "bf16"}, "none", "compiled"),
        ({"type": "cpu"}, "'budget:0.5'", "compiled"),
        ({"type": "cuda"}, "none", "compiled"),
    ],
)
def test_a_short_run_is_planned_as_the_trainer_compiles_it(
    device: dict[str, str], recompute: str, kernels: str
) -> None:
    short = config(recompute=recompute)
    short = short.model_copy(update={"device": Device.model_validate(device)})
    assert layout.Layout.of(short, 1, 1).kernels == kernels


@pytest.mark.parametrize("cell", FOUND.cells, ids=lambda cell: cell.name)
def test_each_cell_fits(cell: matrix.Cell) -> None:
    estimate = cells_memory.of_cell(ROOT, cell)
    assert estimate.fits, estimate.summary()
    assert estimate.needed == sum(one.nbytes for one in estimate.terms)
    assert all(one.nbytes > 0 and one.how for one in estimate.terms)


@pytest.mark.parametrize("name", OTHERS)
def test_a_pair_without_a_cell_does_not_fit_even_at_its_smallest(name: str) -> None:
    hardware, _, model = name.partition("/")
    cell = cells_memory.smallest(ROOT, FOUND, hardware, model)
    assert cells_memory.of_cell(ROOT, cell).fits == (name in NO_RECIPE)


def test_the_smallest_cell_needs_less_than_any_other() -> None:
    """g5/llama-2-70b: each micro batch is exchanged, so the smallest has one sequence at once."""
    cell = cells_memory.smallest(ROOT, FOUND, "g5", "llama-2-70b")
    assert (cell.nodes, cell.sections["parallel"]["micro_batch_size"]) == (8, 1)
    one = replace(
        cell,
        source=("x", json.dumps({**cell.sections, "parallel": {"sharding": "fsdp", "micro_batch_size": 2}})),
    )
    assert cells_memory.of_cell(ROOT, cell).needed < cells_memory.of_cell(ROOT, one).needed


def test_states_are_what_torch_holds() -> None:
    """Weights, gradients and Adam's moments of a real model after a real step, to the byte."""
    wanted = config(sharding="ddp")
    shape = wanted.model
    model = LlamaModel(_hf(wanted, layers=shape.num_hidden_layers))
    head = torch.nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
    held = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(held, fused=True)
    head(model(input_ids=torch.arange(8)[None]).last_hidden_state).sum().backward()
    optimizer.step()
    estimate = memory.estimate(wanted, 1, CARD)
    assert term(estimate, "weights").nbytes == sum(p.nbytes for p in held)
    assert term(estimate, "gradients").nbytes == sum(p.grad.nbytes for p in held if p.grad is not None)
    states = [state for one in optimizer.state.values() for state in one.values() if state.dim()]
    assert term(estimate, "optimizer").nbytes == sum(state.nbytes for state in states)


def test_activations_are_what_a_compiled_block_keeps() -> None:
    """Counted from the tensors that autograd saves of bf16 blocks, in graphs as the compiler cuts them."""
    wanted = config()
    model = LlamaModel(_hf(wanted, layers=wanted.model.num_hidden_layers)).to(torch.bfloat16)
    for layer in model.layers:
        layer.compile(fullgraph=True, backend="aot_eager_decomp_partition")
    length = wanted.sequence_length
    inputs = torch.randn(1, length, wanted.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(inputs_embeds=inputs, position_ids=torch.arange(length)[None])
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    measured = sum(storage.nbytes() for address, storage in saved.items() if address not in own)
    counted = term(memory.estimate(wanted, 1, CARD), "activations").nbytes
    assert counted <= measured <= 1.1 * counted


def _hf(wanted: Config, layers: int) -> LlamaConfig:
    shape = wanted.model
    return LlamaConfig(
        vocab_size=shape.vocab_size, hidden_size=shape.hidden_size, num_hidden_layers=layers,
        intermediate_size=shape.intermediate_size, num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip


def test_more_processes_share_the_states() -> None:
    one, four = (memory.estimate(config(batch=8 * nodes), nodes, CARD) for nodes in (1, 4))
    for name in ("weights", "gradients", "optimizer"):
        assert term(one, name).nbytes == pytest.approx(4 * term(four, name).nbytes, abs=8)
    assert term(one, "activations") == term(four, "activations")


def test_accumulation_keeps_whole_gradients_beside_shards_and_buckets() -> None:
    count = parameters(config().model)
    for sharding in ("fsdp", "ddp"):
        need = memory.estimate(config(batch=32, sharding=sharding), 1, CARD)
        assert term(need, "accumulated gradients").nbytes == 4 * count
    for other in (config(batch=8), config(batch=8, sharding="ddp")):
        names = [one.name for one in memory.estimate(other, 1, CARD).terms]
        assert "accumulated gradients" not in names


def test_recomputing_keeps_the_blocks_inputs_and_one_block() -> None:
    none, full = (memory.estimate(config(recompute=how), 1, CARD) for how in ("none", "full"))
    assert term(full, "activations").nbytes == 320 * 4 * 512 * 2
    again = term(full, "backward pass of a block").nbytes - term(none, "backward pass of a block").nbytes
    assert again == term(none, "activations").nbytes // 4


def test_the_largest_moment_counts() -> None:
    """The activations of many sequences outgrow the logits and the exchange of gradients."""
    many, few = memory.estimate(config(64, 8), 1, CARD), memory.estimate(config(), 1, CARD)
    assert "activations" in [one.name for one in many.terms]
    assert {"gradient exchange", "logits"} <= {one.name for one in many.left_out}
    assert few.needed == sum(one.nbytes for one in few.terms) >= sum(one.nbytes for one in few.steady)


def test_the_command_prints_the_terms(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["matrix", "memory", "overlays/p5/llama-3-1-8b"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("p5/llama-3-1-8b, 4 x p5en.48xlarge: ")
    assert "GiB  optimizer: 8.03 G x 8 B / 32: Adam's two moments\n" in shown
    assert cli.invoke(["matrix", "memory", "g5/llama-3-1-70b"]) == 1
    assert "22.4 there: does not fit\n" in capsys.readouterr().out
    assert cli.invoke(["matrix", "memory"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FOUND.cells)
    assert cli.invoke(["matrix", "memory", "--all"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == len(PAIRS - REFUSED)
    assert "\ng5/llama-2-70b, no cell, 8 x g5.48xlarge: 33.4 GiB a GPU needed, 22.4 there: does not fit\n" in shown
    assert cli.invoke(["matrix", "memory", "g5/llama-3-1-8b", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["needed"] == sum(one["bytes"] for one in told["terms"]) < told["there"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("p5/falcon", "a new model or hardware: docs/extending.md"),
        ("p5/llama-3-1-9b", "did you mean p5/llama-3-1-8b?"),
    ],
)
def test_a_pair_without_an_estimate(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["matrix", "memory", name]) == 2
    assert said in capsys.readouterr().err


def test_a_batch_that_cannot_be_divided_names_the_cell() -> None:
    cell = next(one for one in FOUND.cells if one.name == "p5/llama-3-1-70b")
    with pytest.raises(UserError, match=r"cells\.p5\.llama-3-1-70b: train\.global_batch_size 64 cannot"):
        cells_memory.of_cell(ROOT, replace(cell, nodes=7))
