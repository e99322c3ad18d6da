"""Text from a checkpoint: the trained weights, the run's tokenizer, the same text for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.training.inprocess import Texts, run
from training.checkpoint.errors import CheckpointError
from training.checkpoint.read import newest
from training.config import load_texts
from training.device import resolve
from training.distributed.ranks import Ranks
from training.models.causal import CausalLM
from training.pretrain import TASK
from training.run.directory import RunDir
from training.sample import continuations, load_model, main
from training.trainer.parallelize import parallelise


@pytest.fixture(scope="module")
def trained(texts: Texts, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    prompts = ("sample.prompts=[abc, '']", "sample.max_new_tokens=8")
    return run(texts, prompts, tmp_path_factory.mktemp("trained"), data_root)


def test_the_report_has_losses_and_samples(trained: RunDir) -> None:
    report = json.loads(trained.report.read_text())
    assert report["step"] == report["steps"] == 20
    assert report["heldout_loss"] < report["ln_vocab"]
    assert 0 < report["unigram_nats"] < report["ln_vocab"]
    assert [s["prompt"] for s in report["samples"]] == ["abc", ""]
    assert (trained.path / report["checkpoint"] / "MANIFEST.json").exists()


def test_sampling_uses_the_checkpoints_weights(trained: RunDir) -> None:
    checkpoint = newest(trained.checkpoints)
    assert checkpoint is not None
    model = load_model(checkpoint, trained)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, checkpoint.full(f"model.{name}")), name


def test_generation_with_a_cache_equals_the_trainers_logits(trained: RunDir, texts: Texts) -> None:
    """The sampler's logits over a whole prompt are those of the training model."""

    checkpoint = newest(trained.checkpoints)
    assert checkpoint is not None
    sampler = load_model(checkpoint, trained)
    config = load_texts(texts)
    trainer = parallelise(TASK, config, resolve(config), Ranks(0, 1, 0, None)).model
    assert isinstance(trainer, CausalLM)
    trainer.hf.load_state_dict(sampler.state_dict())
    ids = torch.randint(0, 500, (1, 20), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(20)[None]
    ours = trainer.logits(ids, positions, torch.zeros_like(ids))
    torch.testing.assert_close(sampler(ids).logits, ours, rtol=1e-4, atol=1e-4)


def test_the_same_seed_gives_the_same_text(trained: RunDir) -> None:
    first = list(continuations(trained, ["abc"], 12, 1.0, seed=3))
    assert first == list(continuations(trained, ["abc"], 12, 1.0, seed=3))
    assert first != list(continuations(trained, ["abc"], 12, 1.0, seed=4))


def test_no_checkpoint_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match="no committed checkpoint"):
        list(continuations(RunDir(tmp_path), ["a"], 4, 1.0, seed=0))
    with pytest.raises(SystemExit) as left:
        main(["--run", str(tmp_path), "--prompt", "a"])
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/checkpoints: no committed checkpoint yet\n"
