"""Published weights of each family: read as transformers reads them, trained, exported, read again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.training.models.test_families import TINY
from tests.training.weights.bases import configuration, logits, pretrained, publish, token_ids, trainers
from training.export import export_run
from training.models.causal import build_on_meta
from training.run.directory import RunDir
from training.weights import WeightsError, open_weights


def without_tokenizer(run: RunDir) -> Path:
    """The directory of a run's data, as an export looks for it."""
    directory = run.data / "tokens"
    directory.mkdir(parents=True)
    (directory / "index.json").write_text("{}")
    return directory


@pytest.mark.parametrize("family", TINY)
def test_published_weights_have_transformers_logits(tmp_path: Path, family: str) -> None:
    """Also with adapters, which are zero at the start, on every linear layer."""
    shape = {"architecture": family, **TINY[family]}
    publish(tmp_path / "base", **shape)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = theirs(token_ids()).logits
    linears = list(configuration(None, **shape).model.family.linears)
    for lora in (None, {"rank": 2, "alpha": 4, "target_modules": linears}):
        ours = trainers(configuration(str(tmp_path / "base"), lora, **shape), RunDir(tmp_path / "runs/mine"))
        torch.testing.assert_close(logits(ours, token_ids()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", TINY)
def test_an_exported_run_is_read_by_transformers(tmp_path: Path, family: str) -> None:
    """And by this package, whose digest of it is the export's."""
    run = RunDir(tmp_path / "runs/mine")
    shape = {"architecture": family, **TINY[family]}
    model = pretrained(run, without_tokenizer(run), **shape)
    written = export_run(run.path, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    with torch.no_grad():
        torch.testing.assert_close(theirs(token_ids()).logits, logits(model.eval(), token_ids()))
    config = configuration(str(tmp_path / "out"), **shape)
    assert open_weights(config, RunDir(tmp_path / "runs/next")).digest == written.digest


def test_experts_are_in_files_as_published(tmp_path: Path) -> None:
    """With the names of mistralai/Mixtral-8x7B-v0.1; a missing or unlike expert is named."""
    run, shape = RunDir(tmp_path / "runs/mine"), {"architecture": "mixtral", **TINY["mixtral"]}
    pretrained(run, without_tokenizer(run), **shape)
    export_run(run.path, tmp_path / "out")
    file = tmp_path / "out/model.safetensors"
    tensors = load_file(file)
    moe = "model.layers.1.block_sparse_moe"
    assert tensors[f"{moe}.gate.weight"].shape == (3, 64)
    assert {tensors[f"{moe}.experts.2.{w}.weight"].shape for w in ("w1", "w3")} == {(32, 64)}
    assert tensors[f"{moe}.experts.2.w2.weight"].shape == (64, 32)
    assert not any(".mlp." in name for name in tensors)
    lost = f"{moe}.experts.1.w3.weight"
    del tensors[lost]
    save_file(tensors, file)
    with pytest.raises(WeightsError, match=f"tensor {lost} is missing or unlike that of expert 0"):
        open_weights(configuration(str(tmp_path / "out"), **shape), RunDir(tmp_path / "runs/next"))


def test_fused_experts_are_read_as_well(tmp_path: Path) -> None:
    """transformers' own names of its parameters, without their conversion."""
    shape = {"architecture": "mixtral", **TINY["mixtral"]}
    theirs = publish(tmp_path / "base", **shape)
    save_file(dict(theirs.named_parameters()), tmp_path / "base/model.safetensors")
    config = configuration(str(tmp_path / "base"), **shape)
    assert "model.layers.0.mlp.experts.down_proj" in load_file(tmp_path / "base/model.safetensors")
    assert build_on_meta(config, "eager") is not None
    ours = trainers(config, RunDir(tmp_path / "runs/mine"))
    with torch.no_grad():
        torch.testing.assert_close(logits(ours, token_ids()), theirs(token_ids()).logits)


@pytest.mark.long
def test_a_sharded_step_on_two_ranks_is_the_step_of_one(tmp_path: Path) -> None:
    """Every family under FSDP2: the same initial values, loss and updated weights as unsharded."""
    script = Path(__file__).with_name("sharded_step.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(set(done.stdout.split())) == sorted(TINY)
