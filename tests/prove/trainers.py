"""Our own trainers as users' commands: pre-training, fine-tuning, LoRA and BERT, replicated and sharded."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.training.chats import chat, chatml_tokenizer, say

ROOT = Path(__file__).resolve().parents[2]
SHAPE = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
TRAIN = {
    "seed": 7, "steps": 24, "global_batch_size": 12, "learning_rate": 1.0e-2, "warmup_steps": 2, "eval_every": 12,
    "eval_sequences": 8,
}  # fmt: skip
LLAMA = {"architecture": "llama", **SHAPE, "num_key_value_heads": 2, "tie_word_embeddings": True}
BERT = {
    "architecture": "bert", **SHAPE, "tie_word_embeddings": True, "attention_dropout": 0.1,
    "bert": {"max_position_embeddings": 64, "hidden_dropout": 0.1},
}  # fmt: skip
HARDWARE = {"device": {"type": "cpu", "precision": "fp32", "attention": "eager", "compile": "off"}}
LORA = {"rank": 4, "alpha": 8, "dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]}
NAMES = [f"{task}-{sharding}" for task in ("pretrain", "finetune", "lora", "bert") for sharding in ("ddp", "fsdp")]


def make(name: str, directory: Path) -> list[str]:
    """Write the inputs of a trainer of `NAMES` into a directory, and return its command there."""
    task, sharding = name.split("-")
    inputs = {"pretrain": _pretrain, "finetune": _finetune, "lora": _lora, "bert": _bert}[task](directory)
    configuration = directory / "configuration"
    configuration.mkdir()
    cell = {"parallel": {"micro_batch_size": 2, "sharding": sharding}, "checkpoint": {"every": 5, "keep": 2}}
    for layer, values in {"model": inputs, "hardware": HARDWARE, "cell": cell}.items():
        (configuration / f"{layer}.yaml").write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    module = "finetune" if task == "lora" else task
    return ["torchrun", "--nproc-per-node", "2", "-m", f"training.{module}", "--config", "configuration"]


def options(directory: Path) -> list[str]:
    """Return the options of `yard prove` for a trainer whose inputs are in a directory."""
    values = {
        "PYTHONPATH": str(ROOT),
        "TRAINYARD_RUN": str(directory / "runs/proof"),
        "TRAINYARD_DATA": str(directory / "data"),
    }
    return ["--keep", "runs", *(word for name, value in values.items() for word in ("--env", f"{name}={value}"))]


def _texts(directory: Path) -> str:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(200)]
    corpus = directory / "corpus"
    corpus.mkdir()
    for number in range(80):
        lines = (" ".join(draw.choices(words, k=12)) + "." for _ in range(draw.randint(2, 9)))
        (corpus / f"{number:03d}.txt").write_text("\n".join(lines), encoding="utf-8")
    return str(corpus)


def _pretrain(directory: Path) -> dict[str, object]:
    data = {"source": _texts(directory), "heldout_fraction": 0.1}
    return {"model": LLAMA, "sequence_length": 32, "data": data, "train": TRAIN}


def _bert(directory: Path) -> dict[str, object]:
    data = {"source": _texts(directory), "heldout_fraction": 0.1}
    return {"model": BERT, "sequence_length": 32, "masking": {"most": 6}, "data": data, "train": TRAIN}


def _finetune(directory: Path) -> dict[str, object]:
    base = directory / "base"
    torch.manual_seed(3)
    config = LlamaConfig(
        **SHAPE, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=64, rms_norm_eps=1e-5
    )
    LlamaForCausalLM(config).save_pretrained(base)
    shutil.copytree(chatml_tokenizer(directory / "tokenizer"), base, dirs_exist_ok=True)
    rows = [chat(say(1, n), say(2 + n % 7, n)) for n in range(90)]
    (directory / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {"source": str(directory / "chats.jsonl"), "heldout_fraction": 0.1, "tokenizer": "base"}
    model = {**LLAMA, "weights": str(base)}
    return {"model": model, "sequence_length": 64, "data": data, "train": TRAIN}


def _lora(directory: Path) -> dict[str, object]:
    return {**_finetune(directory), "lora": LORA}
