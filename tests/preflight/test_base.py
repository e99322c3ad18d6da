"""`yard preflight --base`: the section `model` against its base's config.json, before a node is paid for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.cells import kustomize
from tools.cli import invoke
from tools.core import repo

# config.json of meta-llama/Llama-3.1-8B on the Hugging Face hub, in part.
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
CELL = "overlays/p5/llama-3-1-8b-lora"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, 0, "PASS config: a valid configuration"),
        ({"model_type": "mistral"}, 1, "model_type is mistral, model.architecture is llama"),
        (
            {"hidden_size": 2048, "rope_theta": 1e6},
            1,
            "hidden_size is 2048 there, model.hidden_size is 4096; "
            "rope_theta is 1000000.0 there, model.rope_theta is 500000.0",
        ),
        ({"vision_config": {"a": 1}, "model_type": "mllama"}, 2, "the model has a vision tower"),
    ],
)
def test_another_model_than_the_base_fails_with_its_keys(
    tmp_path: Path, capsys: Any, changes: dict[str, Any], code: int, message: str
) -> None:
    if kustomize.find(repo.root()) is None:
        pytest.skip("no kustomize or kubectl on PATH: install one of them")
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    assert invoke(["preflight", CELL, "-v", "--base", str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert message in printed.out + printed.err


def test_a_manifest_without_the_trainers_configuration_is_unknown(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    manifest = Path(__file__).parent / "corpus/good/worker-only-c10d.yaml"
    assert invoke(["preflight", "-f", str(manifest), "--base", str(tmp_path)]) == 3
    assert "CANNOT TELL config: no configuration of trainyard's trainer" in capsys.readouterr().out
