"""Tiny published models, written by transformers, and configurations that start from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from training.checkpoint.shards import shards_of
from training.checkpoint.store import Store
from training.checkpoint.write import Snapshot
from training.config import Config, load_texts
from training.models.causal import (
    CausalLM,
    build_on_meta,
    hf_config,
    initialise,
    materialise,
    trained_parameters,
)
from training.models.lora import adapt
from training.run.directory import RunDir, write_json
from training.task import Trainable
from training.weights import open_weights

CPU = torch.device("cpu")
LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
SCALED = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
MODEL: dict[str, Any] = {
    "architecture": "llama", "vocab_size": 515, "hidden_size": 64, "intermediate_size": 129,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA: dict[str, Any] = {"rope_scaling": SCALED, "rope_theta": 500000.0}
QWEN2: dict[str, Any] = {"architecture": "qwen2", "tie_word_embeddings": False, "rms_norm_eps": 1e-6}


def configuration(
    weights: str | None, lora: dict[str, Any] | None = None, parallel: str = "ddp", **model: Any
) -> Config:
    """A tiny configuration that starts from `weights`."""
    layers = {
        "model": {
            "model": {**MODEL, **model, **({"weights": weights} if weights else {})},
            "sequence_length": 32,
            **({"lora": lora} if lora else {}),
            "data": {"source": "python-stdlib"},
            "train": {
                "seed": 7, "steps": 20, "global_batch_size": 8, "learning_rate": 1e-2, "eval_every": 10,
                "eval_sequences": 8,
            },
        },
        "hardware": {"device": {"type": "cpu", "precision": "fp32", "compile": "off", "attention": "eager"}},
        "cell": {"parallel": {"micro_batch_size": 2, "sharding": parallel}, "checkpoint": {"every": 5}},
    }  # fmt: skip
    return load_texts({name: (f"{name}.yaml", json.dumps(value)) for name, value in layers.items()})


def publish(directory: Path, dtype: torch.dtype = torch.float32, files: str = "5GB", **model: Any) -> Any:
    """Let transformers write a model with seeded weights; return it in fp32."""
    config = configuration(str(directory), **model)
    torch.manual_seed(0)
    built: Any = getattr(transformers, config.model.family.model)(hf_config(config))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1)
    built.to(dtype).save_pretrained(directory, max_shard_size=files)
    return built.float().eval()


def trainers(config: Config, run: RunDir, precision: str = "fp32") -> CausalLM:
    """The trainer's model at the start: built on meta, adapted, loaded."""
    model = build_on_meta(config, "eager")
    if config.lora is not None:
        adapt(model, config, precision)
    open_weights(config, run).load(model, config, CPU)
    return model


def logits(model: CausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The trainer's logits for one document per row."""
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    with torch.no_grad():
        return model.logits(ids, positions, torch.zeros_like(ids))


def token_ids() -> torch.Tensor:
    return torch.randint(0, 515, (2, 24), generator=torch.Generator().manual_seed(1))


def commit(run: RunDir, config: Config, model: Trainable, dataset: Path, step: int = 20, **origin: Any) -> None:
    """Write a checkpoint and run.json of the model, like the loop does."""
    meta = {"config": config.model_dump(mode="json"), "dataset_directory": str(dataset), **origin}
    tensors = shards_of([(f"model.{name}", p.detach()) for name, p in trained_parameters(model)])
    Store(run.checkpoints).save(Snapshot(step, tensors, meta=meta))
    write_json(run.run, meta)


def pretrained(run: RunDir, dataset: Path, step: int = 20, seed: int = 7, **model: Any) -> CausalLM:
    """Write the checkpoint of a run that trained every weight; return the model."""
    config = configuration(None, **model)
    config = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
    built = build_on_meta(config, "eager")
    initialise(built, config, CPU)
    commit(run, config, built, dataset, step)
    return built


def adapted(run: RunDir, config: Config, dataset: Path) -> CausalLM:
    """Write the checkpoint of a run that trained adapters away from their start; return the model."""
    model = trainers(config, run)
    torch.manual_seed(2)
    with torch.no_grad():
        for _, parameter in trained_parameters(model):
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    commit(run, config, model, dataset, **open_weights(config, run).origin)
    return model


def random_weights(directory: Path, config: Config, dtype: torch.dtype) -> int:
    """Write a directory for a configuration without building its model; return the number of parameters."""
    directory.mkdir(parents=True)
    meta = build_on_meta(config, "eager")
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(parameter.shape, generator=generator).mul_(0.02).to(dtype)
        for name, parameter in meta.hf.named_parameters()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    hf_config(config).save_pretrained(directory)
    return sum(tensor.numel() for tensor in tensors.values())


def whole(config: Config, run: RunDir) -> CausalLM:
    """The model of a run that trained every weight, from its weights, unsharded."""
    model = build_on_meta(config, "eager")
    materialise(model, config, CPU)
    open_weights(config, run).fill(model)
    return model
