"""Which files a cell needs of its volume, which command brings them, and what counts as staged."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tools.cells import kustomize
from tools.cells.trainer_config import config_texts, load_config
from tools.core import repo
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, parse
from tools.stage import look
from tools.stage.look import Need
from training.stage.present import present

NEEDS = {
    "cpu/llama-tiny": [],
    "cpu/llama-tiny-lora": [("run", "runs/cpu-llama-tiny-train")],
    "p5/llama-3-1-8b": [("data", "text"), ("tokenizer", "models/Llama-3.1-8B")],
    "g5/llama-3-1-8b-lora": [("data", "finetune"), ("weights", "models/Llama-3.1-8B")],
    "g5/deepseek-r1-distill-qwen-1-5b-alpaca": [],
}
COMMANDS = {
    ("p5/llama-3-1-8b", "data"): "yard stage SOURCE --to trainyard:text/NAME -n team",
    ("p5/llama-3-1-8b", "tokenizer"): "yard stage hf://meta-llama/Llama-3.1-8B"
    ' --include "tokenizer*" --to trainyard:models/Llama-3.1-8B -n team',
    ("g5/llama-3-1-8b-lora", "weights"): "yard stage hf://meta-llama/Llama-3.1-8B"
    " --to trainyard:models/Llama-3.1-8B -n team",
    ("cpu/llama-tiny-lora", "run"): "train cpu-llama-tiny-train first: this job starts from its checkpoint",
}


def rendered(cell: str) -> Manifests:
    path = repo.root() / "overlays" / cell
    return parse(kustomize.ensure(repo.root(), print).build(path), cell)


@pytest.mark.parametrize("cell", NEEDS)
def test_what_a_cell_needs(cell: str) -> None:
    manifests = rendered(cell)
    config = load_config(manifests, repo.root())
    assert config is not None
    needs = list(look.needed(manifests, config))
    assert [(need.kind, need.inside) for need in needs] == NEEDS[cell]
    model = config_texts(manifests, repo.root())["model"][1]
    for need in needs:
        if (cell, need.kind) in COMMANDS:
            assert look.command(need, model, "team") == COMMANDS[cell, need.kind]


@pytest.mark.parametrize(
    ("place", "include", "kind", "covered"),
    [
        ("trainyard:models/x", [], "weights", True),
        ("trainyard:models/x", ["tokenizer*"], "weights", False),
        ("trainyard:models/x", ["tokenizer*"], "tokenizer", True),
        ("other:models/x", [], "weights", False),
        ("trainyard:models", [], "weights", False),
        ("trainyard:models/x/deep", [], "weights", False),
        ("trainyard:models/x/deep", [], "data", True),
        ("trainyard:models/xy", [], "data", False),
        ("trainyard:models/x", [], "run", False),
    ],
)
def test_what_counts_as_staged(place: str, include: list[str], kind: str, covered: bool) -> None:
    entry = {"place": place, "include": include, "time": time.time(), "source": "s3://bucket"}
    need = Need(kind, "/shared/models/x", "trainyard", "models/x")
    assert look._covers(entry, need) is covered
    assert not look._covers({"place": place}, need), "a damaged entry counts for nothing"


def test_what_the_pod_says_of_a_volume(tmp_path: Path) -> None:
    weights, words = tmp_path / "models/weights", tmp_path / "models/words"
    for path in (weights, words, tmp_path / "text"):
        path.mkdir(parents=True)
    (words / "tokenizer.json").touch()
    (weights / "config.json").touch()
    (tmp_path / "text/a.txt").write_text("text")

    def there(kind: str, path: Path) -> bool:
        return bool(present(kind, str(path))["there"])

    assert there("tokenizer", words)
    assert there("tokenizer", words / "tokenizer.json")
    assert not there("tokenizer", weights)
    assert not there("weights", weights), "it has no safetensors yet"
    (weights / "model.safetensors").touch()
    assert there("weights", weights)
    (weights / "model.safetensors").rename(weights / ".metadata")
    assert there("weights", weights), "a DCP checkpoint of another trainer"
    assert there("data", tmp_path / "text")
    assert there("data", tmp_path / "text/*.txt")
    assert not there("data", tmp_path / "text/*.jsonl")
    assert "did you mean 'text'?" in present("data", str(tmp_path / "txt"))["why"]
    assert not there("run", tmp_path)


def test_without_the_right_to_look_the_job_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubectl whose user may nothing: one line says CANNOT TELL, and submit continues."""
    real = shutil.which("kubectl")
    if real is None:
        pytest.skip("no kubectl on PATH: install kubectl 1.31 or newer")
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *kustomize*|*version*) exec {real} "$@";; esac\n'
        "echo 'Error from server (Forbidden): jobs.batch is forbidden' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    said: list[str] = []
    look.check(Kubectl(None, "team"), rendered("p5/llama-3-1-8b"), said.append)
    assert said[-1].startswith(
        "CANNOT TELL whether the volume has /shared/text, /shared/models/Llama-3.1-8B: kubectl get: "
    )
    assert said[-1].endswith("; continuing")
