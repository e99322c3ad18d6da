"""Fine-tuning by the trainer: from a base, on examples, of adapters or of every weight."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.training.chats import chat, chatml_tokenizer, say
from tests.training.inprocess import StopAfter, Texts, losses, run, same, tensors
from training.config import ConfigError, apply_override, load_texts
from training.data.examples.example_dataset import ExampleDataset
from training.data.examples.prepare_examples import prepare_examples
from training.finetune import Finetune
from training.models.causal import build_on_meta, initialise
from training.prepare.examples import settings_of, show_example
from training.run.directory import RunDir, read_json
from training.sample import continuations

SHAPE = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
BASES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE, rms_norm_eps=1e-5, tie_word_embeddings=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, rms_norm_eps=1e-6, tie_word_embeddings=False)),
}
LORA = "lora={rank: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, v_proj, down_proj]}"
# Two matrices for each target in 2 layers: q 64 to 64, v 64 to 32, down 128 to 64.
ADAPTERS = 2 * 4 * ((64 + 64) + (64 + 32) + (128 + 64))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with two published bases and chats."""
    root = tmp_path_factory.mktemp("shared")
    for name, (kind, config) in BASES.items():
        torch.manual_seed(3)
        kind(config).save_pretrained(root / name)
        chatml_tokenizer(root / "tokenizer")
        shutil.copytree(root / "tokenizer", root / name, dirs_exist_ok=True)
        shutil.rmtree(root / "tokenizer")
    rows = [chat(say(1, n), say(2 + n % 7, n)) for n in range(90)]
    (root / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def _overrides(shared: Path, architecture: str, *more: str) -> tuple[str, ...]:
    special = {"llama": (), "qwen2": ("model.rms_norm_eps=1.0e-6", "model.tie_word_embeddings=false")}
    return (
        f"model.architecture={architecture}", f"model.weights={shared / architecture}",
        *special[architecture], f"data.source={shared / 'chats.jsonl'}", "data.tokenizer=base",
        "sequence_length=64", "train.steps=12", "sample.prompts=[the]", "sample.max_new_tokens=6",
        "sample.temperature=0", "train.learning_rate=3.0e-2", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def adapted(shared: Path, texts: Texts) -> RunDir:
    """12 steps of adapters without a stop."""
    return run(texts, _overrides(shared, "llama", LORA), shared / "runs/a", shared / "data", task=Finetune())


@pytest.mark.parametrize("architecture", BASES)
def test_adapters_are_trained_and_nothing_else(architecture: str, shared: Path, texts: Texts, tmp_path: Path) -> None:
    """They learn; the checkpoint holds only them; the report has the losses before and after."""
    done = run(texts, _overrides(shared, architecture, LORA), tmp_path / "runs/r", shared / "data", task=Finetune())
    saved = tensors(done, lambda name: name.startswith("model."))
    assert sum(tensor.numel() for tensor in saved.values()) == ADAPTERS
    assert all(".lora_A." in name or ".lora_B." in name for name in saved)
    whole = sum(p.numel() for p in BASES[architecture][0](BASES[architecture][1]).parameters())
    share = f"{100 * ADAPTERS / (whole + ADAPTERS):.2f} %"
    log = done.rank_log(0).read_text()
    assert f"{ADAPTERS:,} of {whole + ADAPTERS:,} parameters are trained ({share})" in log
    report = read_json(done.report)
    assert report["heldout_loss"] < report["heldout_loss_before"] - 0.2
    assert report["heldout_loss_before"] == pytest.approx(np.log(512), rel=0.05)
    (sample,) = report["samples"]
    assert sample["prompt"] == "the"
    assert sample["before"] != sample["text"]
    again = [text for _, text in continuations(done, ["the"], 6, 0.0, 7, base=True)]
    assert again == [sample["before"]]


def test_every_weight_is_trained_without_the_section_lora(
    shared: Path, texts: Texts, adapted: RunDir, tmp_path: Path
) -> None:
    done = run(texts, _overrides(shared, "llama"), tmp_path / "runs/r", shared / "data", task=Finetune())
    saved = tensors(done, lambda name: name.startswith("model."))
    base = LlamaForCausalLM.from_pretrained(shared / "llama")
    assert sum(tensor.numel() for tensor in saved.values()) == base.num_parameters()
    assert read_json(done.report)["heldout_loss"] < read_json(done.report)["heldout_loss_before"] - 0.5
    before = read_json(adapted.report)["heldout_loss_before"]
    assert read_json(done.report)["heldout_loss_before"] == pytest.approx(before, rel=1e-6)


def test_packed_examples_have_the_loss_that_they_have_alone(shared: Path, texts: Texts, tmp_path: Path) -> None:
    """Up to the order of sums in fp32, for eager and sdpa; without separate documents the loss differs."""
    # Large initial weights, so that attention matters.
    for override in _overrides(shared, "llama", "model.initializer_range=0.3"):
        texts = apply_override(texts, override)
    packed = settings_of(load_texts(texts), str(shared / "llama"))
    padded = settings_of(load_texts(apply_override(texts, "data.packing=false")), str(shared / "llama"))
    sets = [
        ExampleDataset.open(prepare_examples(settings, tmp_path, lambda line: None), "train", 64)
        for settings in (packed, padded)
    ]
    assert len(sets[0]) < len(sets[1]) / 1.5
    for attention in ("eager", "sdpa"):
        model = build_on_meta(load_texts(texts), attention)
        initialise(model, load_texts(texts), torch.device("cpu"))
        found = []
        for dataset in sets:
            batch = dataset.batch(range(len(dataset)))
            arrays = {name: torch.from_numpy(array) for name, array in batch.arrays().items()}
            with torch.no_grad():
                found.append((model(**arrays).item(), *batch.counts()))
            if dataset is sets[0]:
                arrays["document_ids"] = torch.zeros_like(arrays["document_ids"])
                with torch.no_grad():
                    mixed = model(**arrays).item()
        assert found[0][1] == found[1][1]
        assert found[0][0] == pytest.approx(found[1][0], rel=2e-6)
        assert mixed != pytest.approx(found[1][0], rel=1e-4)


def test_a_stopped_run_continues_bitwise(adapted: RunDir, shared: Path, texts: Texts, tmp_path: Path) -> None:
    """With dropout of adapters; the loss before the first step is kept."""
    overrides = _overrides(shared, "llama", LORA)
    directory = tmp_path / "runs/r"
    run(texts, overrides, directory, shared / "data", StopAfter(5), task=Finetune())
    resumed = run(texts, overrides, directory, shared / "data", task=Finetune())
    assert losses(resumed) == losses(adapted)
    assert same(tensors(resumed), tensors(adapted))
    first, again = read_json(adapted.report), read_json(resumed.report)
    for key in ("heldout_loss", "heldout_loss_before", "samples"):
        assert again[key] == first[key]


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.timeout(400)
def test_two_ranks_killed_and_sharded(shared: Path, texts: Texts, start: Callable) -> None:
    """DDP with a killed rank ends with the bits of an undisturbed run; FSDP has the same curve."""
    overrides = _overrides(shared, "llama", LORA.replace("dropout: 0.1", "dropout: 0.0"), "train.steps=16")
    jobs, killed_at = {}, random.Random(5).randint(6, 9)
    for name in ("calm", "struck", "fsdp"):
        sharding = f"parallel.sharding={'fsdp' if name == 'fsdp' else 'ddp'}"
        words = {"overrides": (*overrides, sharding), "module": "training.finetune"}
        jobs[name] = start(name, nproc=2, restarts=1, entrypoint=name == "struck", **words)
        if name == "struck":
            jobs[name].until(lambda job=jobs[name]: len(job.records()) >= killed_at)
            os.kill(jobs[name].workers()[1], signal.SIGKILL)
        assert jobs[name].wait() == 0, jobs[name].text()
    assert "continuing from step" in (jobs["struck"].run / "logs" / "rank-00000.log").read_text()
    calm, struck, sharded = (RunDir(jobs[name].run) for name in ("calm", "struck", "fsdp"))
    assert losses(struck) == losses(calm)
    assert same(tensors(struck), tensors(calm))
    assert losses(sharded) == pytest.approx(losses(calm), rel=1e-4)


def test_another_run_is_a_base_with_its_tokenizer(
    texts: Texts, corpus: Path, shared: Path, data_root: Path, tmp_path: Path
) -> None:
    """Pre-train, fine-tune, sample; an error without a base, and with data.tokenizer=train."""
    more = (
        "model.weights=run:base", f"data.source={shared / 'chats.jsonl'}", "sequence_length=64",
        "train.steps=5", "train.eval_every=5", LORA,
    )  # fmt: skip
    run_directory = tmp_path / "runs/tuned"
    with pytest.raises(ConfigError, match=r"model.weights: .*/runs/base does not exist; train it first"):
        run(texts, (*more, "data.tokenizer=base"), run_directory, data_root, task=Finetune())
    run(texts, ("train.steps=5", "train.eval_every=5"), tmp_path / "runs/base", data_root)
    with pytest.raises(ConfigError, match=r"data.tokenizer is train, but model.weights has a tokenizer"):
        run(texts, more, run_directory, data_root, task=Finetune())
    done = run(texts, (*more, "data.tokenizer=base"), run_directory, data_root, task=Finetune())
    base, tuned = (read_json(RunDir(tmp_path / "runs" / name).run) for name in ("base", "tuned"))
    own, theirs = (Path(meta["dataset_directory"]) / "tokenizer/tokenizer.json" for meta in (tuned, base))
    assert own.read_bytes() == theirs.read_bytes()
    assert read_json(done.report)["step"] == 5


def test_an_example_is_shown_with_what_is_learned(shared: Path, texts: Texts, tmp_path: Path) -> None:
    def shown(*more: str) -> str:
        own = texts
        for override in (*_overrides(shared, "llama"), *more):
            own = apply_override(own, override)
        return show_example(load_texts(own), RunDir(tmp_path / "runs/r"), print)

    asked, learned = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n", "[[the cat<|im_end|>]]\n"
    where = f"{shared}/chats.jsonl, line 1 (format messages, recognised by the field messages): 24 tokens"
    assert shown() == f"{where}, 3 of 24 are learned, in [[ ]]:\n{asked}{learned}"
    cut = shown("sequence_length=20", "data.overlong=split")
    assert cut.startswith(f"{where}, more than sequence_length 20 (data.overlong: split)\n\n0 of 20 are learned")
    assert cut.count("are learned") == 2
    assert cut.endswith("[[the cat<|im_end|>]]\n")


@pytest.mark.parametrize(
    "setting",
    ["data.packing=false", "data.overlong=drop", "data.bad_rows=skip", "data.chat_template=a.jinja"],
)
def test_keys_of_examples_are_for_fine_tuning(setting: str, texts: Texts) -> None:
    """Pre-training does not read them, so it refuses them."""
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key} is for fine-tuning only, but this is for training.pretr"):
        load_texts(apply_override(texts, setting))
    other = apply_override(apply_override(texts, setting), "model.weights=/models/x")
    assert load_texts(other).task == "training.finetune"
