"""A model and a hardware of one's own: from a config.json and a node of the cluster to steps on that node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Nodes
from tests.cluster.kube import Kube
from tests.cluster.training import Training, start
from tests.parts import tree

CONFIG = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
SETTINGS = (
    "data.source=python-stdlib", "data.tokenizer=train", "train.steps=60", "train.warmup_steps=5",
    "train.global_batch_size=32", "train.eval_every=30", "device.compile=off",
)  # fmt: skip
NOTHING = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nothing"}}'
JOB = "own-mini-train-first"
SECONDS = 900.0


@pytest.fixture
def team(kube: Kube, nodes: Nodes) -> Iterator[str]:
    """A namespace for the job, which ends with the test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kube.make_namespace(name, enforce="restricted")
    yield name
    kube.call("delete", "pytorchjobs", "--all", f"--namespace={name}", "--wait=false")
    kube.delete_namespace(name)


def test_a_model_and_a_hardware_of_ones_own_train(
    kube: Kube, team: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of the road, in a copy of the checkout."""
    checkout = tree.copy(tmp_path / "trainyard")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    kept = {name: kube.environment[name] for name in ("PATH", "KUBECONFIG")}

    def yard(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tools.cli", *words],
            cwd=checkout,
            env={**os.environ, **kept, "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    (node, *_) = (
        one["metadata"]["name"]
        for one in kube.list("nodes")
        if "trainyard/fake" not in (one["metadata"].get("labels") or {}) and "cpu" in one["status"]["allocatable"]
    )
    # The nodes of the test are one machine, so a pod takes less than the node shows.
    less = ("--cpus", "1600m", "--memory", "5Gi", "--select", f"kubernetes.io/hostname={node}")
    yard("new", "hardware", "own", "--node", node, *less)
    said = yard("new", "model", "mini", "--from", str(tmp_path / "config.json"), "--hardware", "own")
    assert "cell overlays/own/mini: 1 x own, " in said
    changes = [word for one in SETTINGS for word in ("--set", one)]
    assert "will it train: PASS" in yard("preflight", "own/mini", *changes)
    training = start(kube, team, NOTHING)
    job = Training(kube, team, training.volume, JOB)
    said = yard("job", "submit", "own/mini", "-n", team, "--name", "first", *changes, "--timeout", "600")
    assert "training: step" in said
    job.wait_step(60)
    assert job.pod(0)["spec"]["nodeName"] == node
    assert sorted(job.losses()) == list(range(1, 61))
    assert job.losses()[60] < job.losses()[1]
    assert "own/mini" in yard("job", "show", JOB, "-n", team)
