"""Exported models: the public libraries load them and compute the trainer's logits."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, BertForPreTraining, GenerationConfig

from tests.training.chats import chat, chatml_tokenizer
from tests.training.weights.bases import (
    LLAMA,
    LORA,
    QWEN2,
    adapted,
    commit,
    configuration,
    logits,
    pretrained,
    publish,
    token_ids,
    trainers,
)
from tools.cli import invoke
from training.checkpoint.errors import CheckpointError
from training.config import load_texts
from training.data.examples.prepare_examples import ExampleSettings, prepare_examples
from training.export import ExportError, export_run, main
from training.models import bert
from training.run.directory import RunDir
from training.weights import WeightsError, open_weights
from training.weights.card import card

SAVED = {**LORA, "modules_to_save": ["embed_tokens", "norm"]}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "mine")


@dataclass(frozen=True)
class Case:
    """An exported directory, its base, and how close its logits must be to the trainer's."""

    directory: Path
    base: Path | None
    logits: torch.Tensor
    within: float


def _cases(root: Path, dataset: Path) -> dict[str, Case]:
    """One export of each kind."""
    cases = {}
    for name, model in (("llama", LLAMA), ("qwen2", QWEN2)):
        base = root / f"{name}-base"
        publish(base, torch.bfloat16 if name == "qwen2" else torch.float32, **model)
        run = RunDir(root / "runs" / f"{name}-lora")
        trained = adapted(run, configuration(str(base), SAVED if name == "qwen2" else LORA, **model), dataset)
        export_run(run.path, root / f"{name}-adapter")
        export_run(run.path, root / f"{name}-merged", merge=True, shard_bytes=40_000)
        ours = logits(trained, token_ids())
        cases[f"{name} merged"] = Case(root / f"{name}-merged", None, ours, 1e-5)
        cases[f"{name} adapter"] = Case(root / f"{name}-adapter", base, ours, 0)
        whole = RunDir(root / "runs" / f"{name}-whole")
        config = configuration(str(base), **model)
        tuned = trainers(config, whole)
        with torch.no_grad():
            tuned.hf.model.norm.weight.add_(0.1)
        commit(whole, config, tuned, dataset, **open_weights(config, whole).origin)
        export_run(whole.path, root / f"{name}-tuned", shard_bytes=60_000)
        cases[f"{name} tuned"] = Case(root / f"{name}-tuned", None, logits(tuned, token_ids()), 0)
    begun = pretrained(RunDir(root / "runs" / "begun"), dataset)
    export_run(root / "runs" / "begun", root / "begun")
    cases["pre-trained"] = Case(root / "begun", None, logits(begun, token_ids()), 0)
    run = RunDir(root / "runs" / "tuned")
    trained = adapted(run, configuration("run:begun", {**LORA, "modules_to_save": ["norm"]}), dataset)
    export_run(run.path, root / "before it moved", shard_bytes=60_000)
    (root / "before it moved").rename(root / "of-a-run")
    cases["an adapter with its base"] = Case(root / "of-a-run", None, logits(trained, token_ids()), 0)
    return cases


def test_a_clean_process_gives_the_trainers_logits_and_generates(tmp_path: Path, dataset: Path) -> None:
    cases = _cases(tmp_path, dataset)
    wanted = [
        {
            "directory": str(case.directory), "base": case.base and str(case.base),
            "ids": token_ids().tolist(), "out": str(tmp_path / f"{name}.safetensors"),
        }
        for name, case in cases.items()
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("reload.py")), json.dumps(wanted)],
        capture_output=True, text=True, timeout=150, check=False, cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for name, case in cases.items():
        theirs = load_file(tmp_path / f"{name}.safetensors")["logits"]
        assert theirs.dtype == torch.float32, name
        apart = (theirs - case.logits).abs().max().item()
        assert apart <= case.within, f"{name}: {apart}"
    plain = load_file(tmp_path / "llama tuned.safetensors")["logits"]  # control: the cases do differ
    assert (plain - cases["llama merged"].logits).abs().max() > 0.01


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", [LLAMA, QWEN2], ids=["llama", "qwen2"])
def test_weights_that_were_imported_are_exported_byte_for_byte(
    tmp_path: Path, run: RunDir, dataset: Path, model: dict[str, Any], dtype: str
) -> None:
    publish(tmp_path / "base", getattr(torch, dtype), **model)
    config = configuration(str(tmp_path / "base"), **model)
    opened = open_weights(config, run)
    commit(run, config, trainers(config, run), dataset, **opened.origin)
    written = export_run(run.path, tmp_path / "out", dtype=dtype)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "out"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8)), name
    assert written.digest == opened.digest
    said, says = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("base", "out"))
    assert says == said
    assert (tmp_path / "out" / "generation_config.json").exists()
    names = {path.name for path in (dataset / "tokenizer").iterdir()}
    assert names < {path.name for path in (tmp_path / "out").iterdir()}


def test_an_exported_chat_model_stops_where_its_template_ends_a_turn(tmp_path: Path, run: RunDir) -> None:
    """`generate` and vLLM read generation_config.json: the base's tokens stay, and the turn's end joins them."""
    tokenizer = chatml_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(chat("hi", text)) + "\n" for text in ("the cat", "a mat")))
    settings = ExampleSettings(
        str(tmp_path / "rows.jsonl"), "text", 0.2, str(tokenizer), "auto", 515, 32, True, "truncate", "error"
    )
    chats = prepare_examples(settings, tmp_path / "data", lambda line: None)
    own = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    eos, end = own.token_to_id("<|end_of_text|>"), own.token_to_id("<|im_end|>")
    publish(tmp_path / "base")
    for given, wanted in ((7, [7, eos, end]), ([end, eos], [end, eos])):
        said = json.dumps({"eos_token_id": given, "temperature": 0.6})
        (tmp_path / "base" / "generation_config.json").write_text(said)
        adapted(run, configuration(str(tmp_path / "base"), LORA), chats)
        export_run(run.path, tmp_path / "out", merge=True)
        says = json.loads((tmp_path / "out" / "generation_config.json").read_text())
        assert says == {"eos_token_id": wanted, "temperature": 0.6}
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(run.path)
    pretrained(run, chats)
    export_run(run.path, tmp_path / "out")
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [eos, end]


def test_an_exported_model_is_a_base_again(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    pretrained(RunDir(tmp_path / "runs" / "first"), dataset)
    written = export_run(tmp_path / "runs" / "first", tmp_path / "out", shard_bytes=60_000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {0o644}
    assert open_weights(configuration(str(tmp_path / "out")), run).digest == written.digest
    assert open_weights(configuration("run:first"), run).digest == written.digest


def test_a_card_tells_origin_recipe_losses_and_use(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a|<b>`run")
    run.path.mkdir()
    run.metrics.write_text('{"step": 4, "loss": 3.25}\n{"step": 9, "loss": 2.0}\n{"st')
    run.heldout.write_text('{"step": 0, "loss": 9.5}\n{"step": 4, "loss": "nan"}\n')
    meta = {"commit": "c0ffee", "dataset": "d1gest", "config_digest": "f00", "versions": {"torch": "2.12"}}
    text = card(run, 5, meta, configuration("org/base@rev"), "adapter", "float32")
    front, _, body = text.removeprefix("---\n").partition("---\n")
    assert yaml.safe_load(front) == {
        "library_name": "peft", "pipeline_tag": "text-generation", "tags": ["trainyard", "llama"],
        "base_model": "org/base",
    }  # fmt: skip
    for line in ("| training loss | `3.2500 nats a prediction after step 4` |", "| commit | `c0ffee` |",
                 "| data | `d1gest` |", "| torch | `2.12` |", "# a/[b>'run"):  # fmt: skip
        assert line in body.splitlines()
    assert "held-out" not in body, "a loss that is not a number is not told"
    assert "from transformers import pipeline  # needs peft" in body
    assert "is loaded from the Hugging Face hub" in body
    other = card(run, 5, meta, configuration("/shared/models/base"), "adapter", "float32")
    assert "`/shared/models/base`, is not in this directory" in other
    assert "is in this directory" in card(run, 5, meta, configuration("run:base"), "adapter", "float32", True)
    plain = card(run, 5, {}, configuration(str(tmp_path / "base")), "model", "bfloat16")
    assert "base_model" not in plain
    assert 'pipeline("text-generation", ".")' in plain


def test_berts_export_has_both_heads_and_the_trainers_logits(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    """Also without a tokenizer, as with shards of masked samples."""
    text = (Path(__file__).parents[3] / "overlays/model/bert-tiny/model.yaml").read_text()
    hardware, cell = "device: {type: cpu}", "parallel: {micro_batch_size: 2}\ncheckpoint: {every: 5}"
    config = load_texts({"model": ("m", text), "hardware": ("h", hardware), "cell": ("c", cell)})
    trained = bert.build_on_meta(config, "eager")
    bert.initialise(trained, config, torch.device("cpu"))
    bare = tmp_path / "data" / "shards"
    bare.mkdir(parents=True)
    (bare / "index.json").write_text("{}")
    commit(run, config, trained, bare)
    assert export_run(run.path, tmp_path / "out").loader == "AutoModelForPreTraining"
    assert isinstance(AutoModelForPreTraining.from_pretrained(tmp_path / "out"), BertForPreTraining)
    loaded = BertForPreTraining.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    ids = torch.randint(0, 4096, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = trained.hf.eval()(ids), loaded(ids)
    assert torch.equal(ours.prediction_logits, theirs.prediction_logits)
    assert torch.equal(ours.seq_relationship_logits, theirs.seq_relationship_logits)
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    assert not (tmp_path / "out" / "generation_config.json").exists()


def test_merging_needs_the_same_base(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    publish(tmp_path / "base")
    adapted(run, configuration(str(tmp_path / "base"), LORA), dataset)
    publish(tmp_path / "base", hidden_size=64, dtype=torch.bfloat16)
    with pytest.raises(WeightsError, match="began with weights"):
        export_run(run.path, tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()
    assert export_run(run.path, tmp_path / "adapter").kind == "adapter"  # it contains nothing of the base


def test_a_model_is_exported_without_a_dataset_that_is_gone(tmp_path: Path, run: RunDir) -> None:
    pretrained(run, tmp_path / "gone")
    done = export_run(run.path, tmp_path / "out")
    assert [line for line in done.skipped if line.startswith("exported without a tokenizer: the run's dataset gone")]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.vocab_size == 515


def test_refused_exports_leave_no_files(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    with pytest.raises(CheckpointError, match="no committed checkpoint"):
        export_run(run.path, tmp_path / "out")
    pretrained(run, dataset)
    with pytest.raises(ExportError, match="nothing to merge"):
        export_run(run.path, tmp_path / "out", merge=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    with pytest.raises(ExportError, match="is not empty"):
        export_run(run.path, tmp_path / "full")
    with pytest.raises(ExportError, match="is not a directory"):
        export_run(run.path, tmp_path / "full" / "note")
    with pytest.raises(ExportError, match="cannot write"):
        export_run(run.path, tmp_path / "full" / "note" / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "runs"]
    assert (tmp_path / "full" / "note").read_text() == "mine"
    export_run(run.path, tmp_path / "full" / "out")  # control


def test_a_failed_export_leaves_no_files(
    tmp_path: Path, run: RunDir, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills when the third file is written."""
    pretrained(run, dataset)
    calls: list[int] = []

    def full(*arguments: Any, **more: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save_file(*arguments, **more)

    monkeypatch.setattr("training.export.save_file", full)
    with pytest.raises(ExportError, match=r"cannot write .*out: No space left on device"):
        export_run(run.path, tmp_path / "out", shard_bytes=60_000)
    assert len(calls) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_a_file_that_safetensors_cannot_write_is_one_error(tmp_path: Path, run: RunDir, dataset: Path) -> None:
    """Its own error is no OSError. A limit of file sizes stands in for a full disk."""
    pretrained(run, dataset)
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ExportError, match=r"cannot write .*out: .*File too large"):
            export_run(run.path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_the_command_line_says_what_was_written(
    tmp_path: Path, run: RunDir, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrained(run, dataset)
    main(["--run", str(run.path), "--to", str(tmp_path / "out")])
    said = json.loads(capsys.readouterr().out)
    assert said["directory"] == str(tmp_path / "out")
    assert (said["kind"], said["step"], said["tensors"]) == ("model", 20, 20)
    assert said["skipped"] == []
    newest = run.checkpoints / "step-00000020"
    copy = shutil.copytree(newest, run.checkpoints / "step-00000030")
    assert invoke(["checkpoint", "export", str(run.path), "--to", str(tmp_path / "older")]) == 0
    told = capsys.readouterr()
    assert "of step 20" in told.out
    assert "step 30 is skipped: " in told.err, "step 20 is not taken for the newest"
    shutil.rmtree(copy)
    with pytest.raises(SystemExit) as left:
        main(["--run", str(run.path), "--to", str(tmp_path / "out")])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
