"""`yard new model`: the Component of a published config.json, its recipe and cell; errors write nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.training.weights.fake_hub import COMMIT, FakeHub
from tools import cli
from tools.cells import matrix, memory
from tools.cells.kustomize import Renderer
from tools.core import repo
from training.config.counting import parameters

# config.json of Qwen/Qwen3-0.6B and mistralai/Mixtral-8x7B-v0.1 on the Hugging Face hub, in part.
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "model_type": "qwen3", "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture
def root(whole_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(repo, "root", lambda: whole_checkout)
    monkeypatch.setattr(repo, "project", lambda: whole_checkout)
    return whole_checkout


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def write(directory: Path, values: dict[str, Any]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(values))
    return str(directory)


def yard(*arguments: str) -> int:
    return cli.invoke(["new", "model", *arguments])


def test_a_component_and_its_smallest_cell(root: Path, tmp_path: Path, renderer: Renderer, capsys: Any) -> None:
    source = write(tmp_path / "qwen", QWEN3)
    assert yard("qwen3-mine", "--from", source, "--hardware", "p5") == 0
    text = (root / "overlays/model/qwen3-mine/model.yaml").read_text()
    assert text.startswith("# qwen3-mine: 596,049,920 parameters.\n")
    assert f"config.json of {Path(source).name}.\n" in text
    assert "the nearest size, 0.76 billion, for 0.60 billion" in text
    cell = next(cell for cell in matrix.load(root) if cell.name == "p5/qwen3-mine")
    config = matrix.configuration(root, cell)
    assert parameters(config.model) == 596_049_920
    assert (config.model.head_dim, config.sequence_length) == (128, 4096)
    recipe = config.train
    assert (recipe.learning_rate, recipe.global_batch_size, recipe.warmup_steps) == (2.5e-4, 128, 715)
    assert cell.nodes == 1
    assert memory.of_cell(root, cell).fits
    assert not matrix.check(root).changes
    assert "kind: PyTorchJob" in renderer.build(root / "overlays/p5/qwen3-mine")
    assert "cell overlays/p5/qwen3-mine: 1 x p5." in capsys.readouterr().out


def test_a_model_that_only_the_largest_machine_holds_gets_that_one(root: Path, tmp_path: Path) -> None:
    assert yard("mixtral", "--from", write(tmp_path / "mixtral", MIXTRAL), "--hardware", "p5") == 0
    cell = next(cell for cell in matrix.load(root) if cell.name == "p5/mixtral")
    assert cell.instance is not None
    assert cell.instance.accelerator_memory_mib > 81920, "not the default machine of p5"
    assert memory.of_cell(root, cell).fits


def test_adapters_are_on_the_familys_layers_and_fine_tune(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "mixtral", MIXTRAL)
    assert yard("mixtral-lora", "--from", f"{source}/config.json", "--lora", "--hardware", "p5") == 0
    cell = next(cell for cell in matrix.load(root) if cell.name == "p5/mixtral-lora")
    config = matrix.configuration(root, cell)
    assert config.task == "training.finetune"
    assert config.lora is not None
    assert config.lora.target_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert config.model.weights == "/shared/models/mixtral-lora", "a pod has no directory of this machine"
    assert f"yard stage {source} --to trainyard:models/mixtral-lora brings them there" in capsys.readouterr().out
    assert config.model.router_aux_loss_coef == 0.02
    directory = root / "overlays/model/mixtral-lora"
    text = (directory / "model.yaml").read_text()
    assert "46,702,792,704 parameters, of which 12,879,925,248 process a token" in text
    assert "config.json of mixtral." in text
    assert str(tmp_path) not in text
    assert "value: training.finetune}" in (directory / "kustomization.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (("llama-tiny",), {}, "overlays/model/llama-tiny exists"),
        (("Upper",), {}, "'Upper' cannot be a model's name"),
        (("m", "--hardware", "p9"), {}, "no such hardware: p9"),
        (("m", "--hardware", "cpu"), {}, "cpu/m does not fit: "),
        (
            ("m",),
            {"model_type": "gemma3", "vision_config": {"a": 1}},
            "vision_config: the model has a vision",
        ),
        (("m",), {"hidden_size": 1000}, "hidden_size 1000 is not a multiple of num_attention_heads 16"),
        (("m",), {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "model.rope_scaling"),
        (("m",), {"rms_norm_eps": "\x1b[31m: {"}, "model.rms_norm_eps"),
    ],
)
def test_after_an_error_nothing_has_changed(
    root: Path, tmp_path: Path, capsys: Any, arguments: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    source = write(tmp_path / "a model\n#:", {**QWEN3, **changes})
    before = tree(root)
    assert yard(*arguments, "--from", source) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "\x1b" not in error
    assert "Traceback" not in error
    assert tree(root) == before


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    served = FakeHub(Path(write(tmp_path / "hub", QWEN3)))
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield served
    served.close()


def test_a_pinned_revision_of_the_hub(root: Path, hub: FakeHub) -> None:
    """A tag becomes the commit that it names now, in the comment and in model.weights."""
    assert yard("from-hub", "--from", "team/open@v1.0", "--lora") == 0
    text = (root / "overlays/model/from-hub/model.yaml").read_text()
    assert f"team/open on the Hugging Face hub, revision {COMMIT}" in text
    assert f"weights: team/open@{COMMIT}" in text
    assert {path.rpartition("/")[2] for _, path, _ in hub.log if "/resolve/" in path} == {"config.json"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("team/open", "team/open: without a revision"),
        ("team/open@v9", "team/open@v9: config.json cannot be read: "),
        ("team/gated@v1.0", "team/gated@v1.0: config.json cannot be read: "),
        ("nowhere", "nowhere: no such file or directory"),
    ],
)
def test_other_sources_are_one_error(root: Path, hub: FakeHub, capsys: Any, source: str, message: str) -> None:
    before = tree(root)
    assert yard("m", "--from", source) == 2
    assert message in capsys.readouterr().err
    assert tree(root) == before
