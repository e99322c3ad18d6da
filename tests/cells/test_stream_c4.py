"""A Llama cell with the feature stream-c4 needs nothing on the volume, and trains from the hub alone."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts import tree
from tests.parts.webserver import WebServer, serving
from tools.cells import knobs as cells_knobs
from tools.cells import kustomize, locate
from tools.cells.knobs import Knobs
from tools.cells.trainer_config import load_config
from tools.core import repo
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse
from tools.preflight.evaluate import evaluate
from tools.stage import look
from tools.workload import kinds
from training.config import PRETRAIN
from training.config.data import C4

FEATURE = "overlays/feature/stream-c4"
LLAMAS = [name for name in locate.cells() if "/llama-" in name and not name.endswith("-lora")]
FILES, STEPS = 8, 12
KEYS = (
    f"train.steps={STEPS}",
    "train.warmup_steps=2",
    "train.global_batch_size=16",
    "sequence_length=64",
    "train.eval_sequences=16",
    "checkpoint.every=4",
    "device.compile=off",
    "sample.max_new_tokens=2",
    "data.stream.first_mb=1",
    "data.stream.shuffle_buffer=20",
)


def streamed(cell: str) -> Manifests:
    return parse(kustomize.with_component(repo.root() / cell, FEATURE), cell)


@pytest.mark.parametrize("cell", LLAMAS)
def test_every_llama_that_pretrains_takes_it(cell: str) -> None:
    plain, found = load_config(parse(_rendered(cell), cell), repo.root()), streamed(cell)
    config = load_config(found, repo.root())
    assert config is not None
    assert plain is not None
    assert config.task == PRETRAIN
    assert (config.data.source, config.data.stream is not None) == (C4, True)
    assert config.model.vocab_size >= 32_000 or cell.endswith("llama-tiny"), "the tokenizer fits"
    assert list(look.needed(found, config)) == []
    assert evaluate(found).of(State.FAIL) == []
    needs = [need.value for need in look.needed(parse(_rendered(cell), cell), plain)]
    assert bool(needs) is not cell.endswith("llama-tiny"), "the control: without it they need the volume"


def test_a_setting_of_data_reaches_the_file_of_the_feature() -> None:
    knobs = Knobs(settings=("data.tokenizer=/shared/models/own", "train.steps=2000"), name="b", features=("stream-c4",))
    found = cells_knobs.rendered("p5/llama-3-1-8b", None, knobs)
    config = load_config(found, repo.root())
    assert config is not None
    assert (config.data.tokenizer, config.train.steps, config.data.source) == ("/shared/models/own", 2000, C4)
    assert evaluate(found).of(State.FAIL) == []


def _rendered(cell: str) -> str:
    return kustomize.ensure(repo.root(), print).build(repo.root() / cell)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[WebServer]:
    """C4's files and a small tokenizer under the names that the feature has."""
    from training.data import tokenizer

    c4 = tmp_path / "site/hub/allenai/c4/en"
    words = tmp_path / "site/hub/hf-internal-testing/llama-tokenizer"
    c4.mkdir(parents=True)
    sources = sorted(Path(json.__file__).parents[1].glob("*.py"))[:80]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    for number in range(1024):
        path = c4 / f"c4-train.{number:05d}-of-01024.json.gz"
        if number >= FILES:
            path.hardlink_to(c4 / f"c4-train.{number % FILES:05d}-of-01024.json.gz")
            continue
        rows = [{"text": f"{number} {text[at : at + 2000]}"} for text in texts for at in (0, 2000 * number)]
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0))
    words.parent.mkdir(parents=True)
    tokenizer.train(iter(texts), 1000).write(words)
    with serving(tmp_path / "site") as server:
        yield server


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_tiny_cell_trains_from_the_hub_and_continues_exactly(hub: WebServer, tmp_path: Path) -> None:
    checkout = tree.copy(tmp_path / "checkout")
    cell = _cell(checkout, hub)
    whole = _yard(checkout, cell, "whole")
    assert whole.wait(400) == 0, _log(checkout, "whole")
    killed = _yard(checkout, cell, "killed")
    run = checkout / "local/runs/cpu-llama-tiny-train-killed"
    deadline = time.monotonic() + 400
    while len(_losses(run)) < 6:
        assert killed.poll() is None, _log(checkout, "killed")
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(_losses(run)) < STEPS, "the control: it was killed before its end"
    again = _yard(checkout, cell, "killed")
    assert again.wait(400) == 0, _log(checkout, "killed")
    expected = _losses(checkout / "local/runs/cpu-llama-tiny-train-whole")
    assert len(expected) == STEPS
    assert _losses(run) == expected, "bit for bit"
    assert any("/datasets/allenai/c4/resolve/" in one.path for one in hub.asked)
    assert any("/hf-internal-testing/llama-tokenizer/resolve/" in one.path for one in hub.asked)


def _cell(checkout: Path, hub: WebServer) -> Path:
    """The tiny cell with the feature, in smaller bites, whose pods ask the hub of this test."""
    found = cells_knobs.rendered("cpu/llama-tiny", None, Knobs(settings=KEYS, features=("stream-c4",)))
    (container,) = kinds.job_of(found).training_containers()
    container["env"] += [
        {"name": "HF_ENDPOINT", "value": hub.url},
        {"name": "HF_HOME", "value": str(checkout / "hf")},
    ]
    path = checkout / "cell.json"
    path.write_text(found.as_list())
    return path


def _yard(checkout: Path, cell: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "run", "-f", str(cell), "--name", name],
        cwd=checkout,
        stdout=(checkout / f"{name}.log").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    )


def _log(checkout: Path, name: str) -> str:
    return (checkout / f"{name}.log").read_text()[-3000:]


def _losses(run: Path) -> dict[int, float]:
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    steps = [json.loads(line) for line in lines if line.endswith("}")]
    return {line["step"]: line["loss"] for line in steps if "loss" in line}
