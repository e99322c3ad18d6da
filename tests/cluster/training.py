"""A training job on the cluster's real nodes, followed through the files of its run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.cluster.api import Object
from tests.cluster.kube import Kube, condition
from tests.cluster.storage import directory_of
from tests.parts import tree

JOB = "cpu-llama-tiny-train"
TRAINJOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
STEPS = 100
# The model of the cell, in smaller and more frequent bites: a fault must meet a run at work. Two megabytes of
# text are enough for it, and take seconds to prepare. Key of the configuration: what the cell says, and this.
SHORT = {
    "data.source": ("python-stdlib", f"{sysconfig.get_path('stdlib')}/[a-d]*.py"),
    "sequence_length": ("256", "64"),
    "train.steps": ("160", str(STEPS)),
    "sample.max_new_tokens": ("48", "4"),
    "checkpoint.every": ("50", "20"),
    "device.compile": ("auto", "off"),
}
VOLUME_SECONDS = 120
STEP_SECONDS = 900
END_SECONDS = 1200
REFERENCE_SECONDS = 1800


@dataclass(frozen=True)
class Training:
    """The job of one namespace, and the directory of this machine behind its claim."""

    kube: Kube
    namespace: str
    volume: Path
    name: str = JOB
    kind: str = "pytorchjob"

    @property
    def run(self) -> Path:
        return self.volume / "runs" / self.name

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics written so far, one entry a step."""
        path = self.run / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.metrics() if "loss" in line}

    def last_step(self) -> int:
        """Return the newest step, 0 before the first."""
        return max(self.losses(), default=0)

    def wait_step(self, step: int, seconds: float = STEP_SECONDS) -> float:
        """Wait until the step is done and return the seconds it took."""
        return self.kube.wait(f"step {step}", lambda: self.last_step() >= step, seconds)

    def succeeded(self) -> bool:
        return any(condition(self.job(), kind) for kind in ("Succeeded", "Complete"))

    def wait_end(self) -> None:
        """Wait for success. Raises AssertionError with the pods' last output when the job failed."""

        def ended() -> bool:
            assert condition(self.job(), "Failed") is None, self.last_words()
            return self.succeeded()

        try:
            self.kube.wait("the job's end", ended, END_SECONDS)
        except TimeoutError as problem:
            raise AssertionError(f"{problem}\n{self.last_words()}") from None

    def job(self) -> Object:
        return self.kube.get(self.kind, self.name, self.namespace) or {}

    def pod(self, index: int) -> Object:
        """Return worker `index`, or nothing. Those of a TrainJob end with random characters; the newest counts."""
        if self.kind == "pytorchjob":
            return self.kube.get("pod", f"{self.name}-worker-{index}", self.namespace) or {}
        selector = f"{TRAINJOB_LABEL}={self.name},batch.kubernetes.io/job-completion-index={index}"
        pods = self.kube.list("pods", self.namespace, selector)
        return max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"], default={})

    def beats(self) -> dict[int, Object]:
        found = {}
        for path in sorted((self.run / "heartbeat").glob("rank-*.json")):
            with contextlib.suppress(OSError):  # it is being replaced
                beat = json.loads(path.read_text(encoding="utf-8"))
                found[int(beat["rank"])] = beat
        return found

    def restarts(self, index: int) -> int:
        """Return how often the kubelet has restarted the container of worker `index`."""
        statuses = (self.pod(index).get("status") or {}).get("containerStatuses") or []
        return sum(status["restartCount"] for status in statuses)

    def created(self) -> float:
        """Return when the job was created, in seconds since 1970."""
        return datetime.fromisoformat(self.job()["metadata"]["creationTimestamp"]).timestamp()

    def uid(self, index: int) -> str | None:
        """Return the UID of worker `index`, or None."""
        return (self.pod(index).get("metadata") or {}).get("uid")

    def weights(self) -> dict[str, str]:
        """Return the digest of every rank's tensors (weights and moments) in the last checkpoint."""
        newest = max((self.run / "checkpoints").glob("step-????????"))
        assert (newest / "MANIFEST.json").exists()
        files = sorted(newest.glob("rank-*.safetensors"))
        return {f"{newest.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def last_words(self) -> str:
        where = f"--namespace={self.namespace}"
        parts = [self.kube.call("get", "pods", where, "-o", "wide").out]
        parts.append(self.kube.call("get", "events", where).out[-2000:])
        names = [pod["metadata"]["name"] for index in (0, 1) if (pod := self.pod(index))]
        parts += [self.kube.call("logs", name, where, "--tail=25").out for name in names]
        return "\n".join(parts)


def start(
    kube: Kube, namespace: str, manifest: str | Path, warm: Path | None = None, kind: str = "pytorchjob"
) -> Training:
    """Apply the committed claim and a cell (a manifest or a directory), and return the training.

    `warm` is a volume whose prepared data is copied first.
    """
    where = ("apply", "--server-side", f"--namespace={namespace}", "-k")
    kube.run(*where, "base/storage/default-class")
    kube.wait("the claim bound", lambda: _volume(kube, namespace) is not None, VOLUME_SECONDS)
    training = Training(kube, namespace, directory_of(_volume(kube, namespace) or {}), kind=kind)
    if warm is not None:
        copy_data(warm, training.volume)
    if isinstance(manifest, Path):
        kube.run(*where, str(manifest))
    else:
        kube.apply(manifest, namespace)
    return training


def short(rendered: str, steps: int = STEPS) -> str:
    """Return the cell's manifest with smaller steps and without compilation."""
    lines = {f"{key.rpartition('.')[2]}: ": values for key, values in SHORT.items()}
    words = {line + old: line + new for line, (old, new) in lines.items()}
    return changed(rendered, words | {f"steps: {SHORT['train.steps'][0]}": f"steps: {steps}"})


def short_to_submit(rendered: str, steps: int) -> str:
    """As `short`, with the text that the cell names: submit refuses files that no volume of the pods has."""
    own, of_image = SHORT["data.source"]
    return short(rendered, steps).replace(of_image, own)


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Return a manifest with words replaced. Each of them must exist."""
    for old, new in changes.items():
        assert old in text, f"the cell no longer says {old!r}"
        text = text.replace(old, new)
    return text


def copy_data(source: Path, target: Path) -> None:
    """Copy the prepared data of one volume to another, owned by the account of the trainer's pods."""
    shutil.copytree(source / "data", target / "data", dirs_exist_ok=True)
    for path in (target / "data", *(target / "data").rglob("*")):
        shutil.chown(path, 1000, 1000)


def trained_here(training: Training, cell: str, root: Path, *settings: str) -> Training:
    """Train the same cell on the same data by `yard run`, in a copy of the tree; return that training.

    `settings` are its further words. AssertionError with what it says where it fails.
    """
    tree.copy(root)
    copy_data(training.volume, root / "local")
    local = Training(training.kube, "", root / "local")
    if (training.run / "cache").exists():  # compiled once
        shutil.copytree(training.run / "cache", local.run / "cache")
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", "run", cell, "--port", str(_free_port()), *settings],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=REFERENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return local


def _free_port() -> int:
    """Return a free port, because another run may use the default one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _volume(kube: Kube, namespace: str) -> Object | None:
    """Return the volume bound to the team's claim."""
    claim = kube.get("pvc", "trainyard", namespace) or {}
    bound = (claim.get("status") or {}).get("phase") == "Bound"
    return kube.get("pv", claim["spec"]["volumeName"]) if bound else None
