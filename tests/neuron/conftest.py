"""Runs of the trainer in the environment with torch_xla, and the data that they share."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.neuron import environment
from tests.parts import venv
from training.config import apply_override, load_texts
from training.run.directory import RunDir

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "kernel",
    "tensor",
    "graph",
    "device",
    "compile",
    "cache",
    "lazy",
    "step",
    "loss",
    "rank",
    "world",
]
SMALL = {
    "model.vocab_size": 512, "model.hidden_size": 64, "model.intermediate_size": 128,
    "model.num_hidden_layers": 2, "sequence_length": 64, "train.global_batch_size": 8,
    "parallel.micro_batch_size": 4, "train.steps": 24, "train.warmup_steps": 4, "train.eval_every": 1000,
    "train.eval_sequences": 8, "checkpoint.every": 8, "sample.prompts": "[]", "device.precision": "fp32",
    "device.log_every": 4, "data.heldout_fraction": 0.2,
}  # fmt: skip
OF_MODEL: dict[str, dict[str, Any]] = {
    "llama-tiny": {},
    "bert-tiny": {"model.bert.max_position_embeddings": 64, "masking.most": 10},
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that need the large environment unless they are named."""
    if "neuron" in (config.option.markexpr or ""):
        return
    reason = "takes minutes, and an environment with torch_xla: make test-neuron"
    for item in items:
        if item.get_closest_marker("neuron"):
            item.add_marker(pytest.mark.skip(reason=reason))


class Ended(NamedTuple):
    """One finished run of the trainer."""

    code: int
    output: str
    run: RunDir


Trainer = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the environment with torch_xla."""
    found = venv.python(environment.XLA)
    if found is None:
        pytest.fail("the environment with torch_xla is not made: python -m tests.neuron.environment")
    return found


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    rng = random.Random(1)
    for number in range(40):
        sentences = (" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(60))
        (directory / f"{number}.txt").write_text(". ".join(sentences) + ".\n")
    return directory


def cell_texts(model: str, *overrides: str) -> dict[str, tuple[str, str]]:
    """Return the configuration of a trn1 cell with some keys changed."""
    sources = {
        "model": ROOT / f"overlays/model/{model}/model.yaml",
        "hardware": ROOT / "overlays/hardware/trn1/hardware.yaml",
        "cell": ROOT / f"overlays/trn1/{model}/cell.yaml",
    }
    texts = {layer: (str(path), path.read_text()) for layer, path in sources.items()}
    for override in overrides:
        texts = apply_override(texts, override)
    return texts


def write_config(directory: Path, model: str, text: Path, given: Mapping[str, Any]) -> Path:
    """Write the trn1 cell of `model`, made small, with the keys in `given`; return the directory."""
    values = {**SMALL, **OF_MODEL[model], "data.source": text, **given}
    texts = cell_texts(model, *(f"{key}={value}" for key, value in values.items()))
    load_texts(texts)
    directory.mkdir(parents=True, exist_ok=True)
    for layer, (_, content) in texts.items():
        (directory / f"{layer}.yaml").write_text(content)
    return directory


@pytest.fixture(scope="session")
def start(python: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Start the trainer: `start(run, model, ranks=1, **environment, given={...})`."""
    root = tmp_path_factory.mktemp("neuron")

    def started(
        run: Path, model: str, ranks: int = 1, given: Mapping[str, Any] | None = None, **extra: str
    ) -> subprocess.Popen[str]:
        config = write_config(run.with_suffix(".config"), model, text, given or {})
        module = "training.bert" if model.startswith("bert") else "training.pretrain"
        launcher = [str(python)]
        if ranks > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        outside = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environ = {
            **outside, "PJRT_DEVICE": "CPU", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
            "TRAINYARD_RUN": str(run), "TRAINYARD_DATA": str(root / "data"), "TRAINYARD_CPUS": str(ranks),
            **extra,
        }  # fmt: skip
        return subprocess.Popen(
            [*launcher, "-m", module, "--config", str(config)],
            cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return started


@pytest.fixture(scope="session")
def train(start: Trainer) -> Callable[..., Ended]:
    """Run the trainer to its end. The arguments are those of `start`."""

    def trained(run: Path, *arguments: Any, **options: Any) -> Ended:
        process = start(run, *arguments, **options)
        try:
            output, _ = process.communicate(timeout=800)
        finally:
            process.kill()
        return Ended(process.returncode, output, RunDir(run))

    return trained
