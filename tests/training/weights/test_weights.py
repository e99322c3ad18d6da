"""Base weights: the same values as transformers reads, whatever the files; other files are one error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.training.weights.bases import (
    LLAMA,
    LORA,
    QWEN2,
    adapted,
    configuration,
    logits,
    pretrained,
    publish,
    token_ids,
    trainers,
    whole,
)
from training.checkpoint.errors import CheckpointError
from training.models.causal import named_parameters
from training.run.directory import RunDir, write_json
from training.weights import WeightsError, open_weights


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "mine")


@pytest.mark.parametrize("model", [LLAMA, QWEN2], ids=["llama-tied-rope-scaled", "qwen2-biases-untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("files", ["5GB", "40KB"], ids=["one-file", "many-files"])
def test_logits_are_those_of_transformers(
    tmp_path: Path, run: RunDir, model: dict[str, Any], dtype: torch.dtype, files: str
) -> None:
    directory = tmp_path / "base"
    publish(directory, dtype, files, **model)
    assert (len(list(directory.glob("*.safetensors"))) > 3) == (files != "5GB")
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    for lora in (None, LORA):
        config = configuration(str(directory), lora, **model)
        ours = trainers(config, run)
        with torch.no_grad():
            assert torch.equal(logits(ours, token_ids()), theirs(token_ids()).logits)


def test_the_digest_is_of_the_weights_however_files_divide_them(tmp_path: Path, run: RunDir) -> None:
    publish(tmp_path / "one", **LLAMA)
    publish(tmp_path / "many", files="40KB", **LLAMA)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    digests = [open_weights(configuration(str(tmp_path / n), **LLAMA), run).digest for n in ("one", "many")]
    assert digests[0] == digests[1]
    tensors = load_file(tmp_path / "one" / "model.safetensors")
    tensors["model.norm.weight"][3] += 1e-6
    save_file(tensors, tmp_path / "one" / "model.safetensors")
    assert open_weights(configuration(str(tmp_path / "one"), **LLAMA), run).digest != digests[0]


def test_the_model_in_another_trainers_dcp_checkpoint_is_the_same_base(tmp_path: Path, run: RunDir) -> None:
    """It lies beside the optimizer's state, and is the same weights as the published files."""
    published = publish(tmp_path / "published")
    state = {"model": published.state_dict(), "optimizer": {"model.embed_tokens.weight.exp_avg": torch.zeros(3)}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)  # type: ignore[attr-defined]
    shutil.copy(tmp_path / "published" / "config.json", tmp_path / "dcp")
    ours = open_weights(configuration(str(tmp_path / "dcp")), run)
    assert ours.digest == open_weights(configuration(str(tmp_path / "published")), run).digest
    dcp.save({**state, "ema": published.state_dict()}, checkpoint_id=tmp_path / "two", no_dist=True)  # type: ignore[attr-defined]
    shutil.copy(tmp_path / "published" / "config.json", tmp_path / "two")
    with pytest.raises(WeightsError, match=r"DCP holds several models of ema\., model\."):
        open_weights(configuration(str(tmp_path / "two")), run)


def test_old_files_with_rotary_tables_and_a_doubled_head_are_the_same_weights(tmp_path: Path, run: RunDir) -> None:
    publish(tmp_path / "base", **LLAMA)
    config = configuration(str(tmp_path / "base"), **LLAMA)
    before = open_weights(config, run).digest
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    assert open_weights(config, run).digest == before


def _tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return damage


def _config(**changes: Any) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def _index(places: dict[str, str] | None) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        text = json.dumps({} if places is None else {"weight_map": places})
        (directory / "model.safetensors.index.json").write_text(text)

    return damage


def _pickled(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x02")


def _adapter(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    (directory / "config.json").unlink()
    (directory / "adapter_config.json").write_text("{}")


def _cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _not_json(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": ')


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "architecture": (_config(model_type="mistral"), "model_type is 'mistral', model.architecture is llama"),
    "two keys": (
        _config(hidden_size=128, head_dim=32, num_key_value_heads=4),
        "hidden_size is 128 there, model.hidden_size is 64; "
        "num_key_value_heads is 4 there, model.num_key_value_heads is 2",
    ),
    "rope": (
        _config(rope_theta=1.0, rope_parameters=None), "rope_theta is 1.0 there, model.rope_theta is 10000.0"
    ),
    "rope scaling": (
        _config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
        'rope_scaling is {"rope_type": "linear", "factor": 2.0} there, model.rope_scaling is null',
    ),
    "tied": (_config(tie_word_embeddings=False), "tie_word_embeddings is false there"),
    "biases": (_config(attention_bias=True), "attention_bias is true, but only false is supported"),
    "quantized": (_config(quantization_config={"bits": 4}), "the weights are quantized"),
    "no configuration": (_config(hidden_size="x"), "not a llama configuration: "),
    "not JSON": (_not_json, "config.json: not JSON"),
    "no config.json": (lambda d: (d / "config.json").unlink(), "config.json is missing"),
    "shape": (
        _tensors(lambda t: t.update({"model.norm.weight": torch.ones(63)})),
        r"tensor model.norm.weight has shape [63], the model needs [64]",
    ),
    "missing": (_tensors(lambda t: t.pop("model.norm.weight")), "tensor model.norm.weight is missing"),
    "unexpected": (
        _tensors(lambda t: t.update({"score.weight": torch.ones(3)})), "tensor score.weight is unexpected"
    ),
    "whole numbers": (
        _tensors(lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int32)})),
        "tensor model.norm.weight has dtype I32",
    ),
    "another head": (
        _tensors(lambda t: t.update({"lm_head.weight": torch.ones(515, 64)})),
        "lm_head.weight differs from model.embed_tokens.weight",
    ),
    "pickled": (_pickled, "contains pytorch_model.bin, but no *.safetensors; pickled files can run code"),
    "adapter": (_adapter, "contains an adapter, not a model"),
    "adapter beside its base": (
        lambda d: (d / "adapter_config.json").write_text("{}"), "contains an adapter, not a model"
    ),
    "empty": (lambda d: (d / "model.safetensors").unlink(), "contains no *.safetensors"),
    "index of nothing": (_index(None), "has no weight_map"),
    "index names a lost file": (
        _index({"model.norm.weight": "gone.safetensors"}), "gone.safetensors is missing"
    ),
    "index names a lost tensor": (
        _index({"model.lost": "model.safetensors"}), "names model.lost, which is in none of its files"
    ),
    "index leads outside": (_index({"model.norm.weight": "../x.safetensors"}), "not a plain file name"),
    "no directory": (shutil.rmtree, "does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_is_one_error_that_names_it(tmp_path: Path, run: RunDir, fault: str) -> None:
    damage, message = FAULTS[fault]
    publish(tmp_path / "base")
    config = configuration(str(tmp_path / "base"))
    open_weights(config, run)  # control: it is good without the fault
    damage(tmp_path / "base")
    with pytest.raises(WeightsError) as caught:
        open_weights(config, run)
    assert message in str(caught.value)
    assert str(tmp_path / "base") in str(caught.value)
    assert not run.path.exists()


@pytest.mark.parametrize("damage", [_cut, lambda d: (d / "model.safetensors").write_bytes(b"x" * 100)])
def test_a_damaged_file_is_named(tmp_path: Path, run: RunDir, damage: Callable[[Path], None]) -> None:
    publish(tmp_path / "base")
    damage(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_weights(configuration(str(tmp_path / "base")), run)


def test_a_clone_without_git_lfs_is_named(tmp_path: Path, run: RunDir) -> None:
    """The directory's name has a space."""
    publish(tmp_path / "my base")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (tmp_path / "my base" / "model.safetensors").write_text(pointer)
    with pytest.raises(CheckpointError, match=r"my base/model\.safetensors: this is a pointer of Git LFS"):
        open_weights(configuration(str(tmp_path / "my base")), run)


def test_other_weights_than_the_run_began_with_are_refused(tmp_path: Path, run: RunDir) -> None:
    publish(tmp_path / "base", **LLAMA)
    config = configuration(str(tmp_path / "base"), LORA, **LLAMA)
    write_json(run.run, open_weights(config, run).origin)
    open_weights(config, run)  # control: unchanged weights are accepted
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"began with weights .* but .* now contains"):
        open_weights(config, run)


def test_another_run_can_be_a_base(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    other = RunDir(tmp_path / "runs" / "first")
    config = configuration("run:first")
    with pytest.raises(WeightsError, match="first does not exist; train it first"):
        open_weights(config, run)
    model = pretrained(other, dataset, step=20)
    opened = open_weights(config, run)
    assert opened.origin["base_step"] == 20
    assert opened.tokenizer == dataset / "tokenizer"
    for (name, a), (_, b) in zip(named_parameters(whole(config, run)), named_parameters(model), strict=True):
        assert torch.equal(a, b), name

    write_json(run.run, opened.origin)  # the run has begun; its base continues training
    newer = pretrained(other, dataset, step=40, seed=8)
    assert open_weights(config, run).origin == opened.origin
    fresh = RunDir(tmp_path / "runs" / "another")
    assert open_weights(config, fresh).origin["base_step"] == 40
    assert not torch.equal(newer.hf.model.embed_tokens.weight, model.hf.model.embed_tokens.weight)
    shutil.rmtree(other.checkpoints / "step-00000020")
    with pytest.raises(WeightsError, match=r"began with step 20 of first, which is gone \(newest: 40\)"):
        open_weights(config, run)


def test_a_damaged_checkpoint_of_the_base_run_is_skipped(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    other = RunDir(tmp_path / "runs" / "first")
    pretrained(other, dataset, step=20)
    pretrained(other, dataset, step=40)
    path = other.checkpoints / "step-00000040" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    said: list[str] = []
    assert open_weights(configuration("run:first"), run, say=said.append).origin["base_step"] == 20
    assert "step 40: step-00000040/rank-00000.safetensors: its content does not match its digest" in said[0]
    assert path.exists()  # another run's files are only read


def test_runs_that_cannot_be_a_base_are_refused(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    pretrained(RunDir(tmp_path / "runs" / "wide"), dataset, hidden_size=128)
    with pytest.raises(WeightsError, match=r"run:wide: hidden_size is 128 there, model\.hidden_size is 64"):
        open_weights(configuration("run:wide"), run)
    publish(tmp_path / "base")
    adapted(RunDir(tmp_path / "runs" / "lora"), configuration(str(tmp_path / "base"), LORA), dataset)
    with pytest.raises(WeightsError, match=r"run:lora trained adapters, .* yard checkpoint export lora --merge"):
        open_weights(configuration("run:lora"), run)
