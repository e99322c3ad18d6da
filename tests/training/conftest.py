"""A tiny model, a tiny corpus, and real runs of the trainer on them."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from training.config import Config, apply_override, load_texts

MODEL = """
model: {{architecture: llama, vocab_size: 512, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}}
sequence_length: 32
data: {{source: {source}, heldout_fraction: 0.1}}
train: {{seed: 7, steps: 20, global_batch_size: 8, learning_rate: 1.0e-2, warmup_steps: 2, eval_every: 10,
        eval_sequences: 8}}
"""
HARDWARE = "device: {type: cpu, precision: fp32, attention: eager, compile: 'off'}\n"
CELL = "parallel: {micro_batch_size: 2, sharding: ddp}\ncheckpoint: {every: 5, keep: 2}\n"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """A second thread gains nothing on matrices this small, and waits for its turn on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_CPUS", "1")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 documents of seeded sentences."""
    directory = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(200)]
    for index in range(120):
        lines = (" ".join(draw.choices(words, k=12)) + "." for _ in range(draw.randint(2, 9)))
        (directory / f"{index:03d}.txt").write_text("\n".join(lines), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def texts(corpus: Path) -> dict[str, tuple[str, str]]:
    """The tiny configuration as `{layer: (file name, text)}`."""
    model = MODEL.format(source=corpus)
    return {
        "model": ("model.yaml", model),
        "hardware": ("hardware.yaml", HARDWARE),
        "cell": ("cell.yaml", CELL),
    }


class Job:
    """One run of the trainer under the real torchrun, with its files."""

    def __init__(self, run: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.run, self.process, self.output = run, process, output
        self.behind_entrypoint = "training.entrypoint" in str(process.args)

    def wait(self, timeout: float = 120) -> int:
        return self.process.wait(timeout)

    def records(self) -> list[dict]:
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records()]

    def failures(self) -> list[dict]:
        return [json.loads(p.read_text()) for p in sorted((self.run / "failures").glob("*.json"))]

    def until(self, condition: Callable[[], bool], timeout: float = 90) -> None:
        """Poll for a condition; fail with the job's output if the job ends or the time is up first."""
        end = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"the job ended first:\n{self.text()}"
            assert time.monotonic() < end, f"not in {timeout} s:\n{self.text()}"
            time.sleep(0.02)

    def workers(self) -> list[int]:
        """Process ids of the job's ranks."""
        agents = self._children(self.process.pid) if self.behind_entrypoint else [self.process.pid]
        started = [pid for agent in agents for pid in self._children(agent)]
        servers = [pid for pid in started if b"multiprocessing.forkserver" in _command(pid)]
        return [pid for server in servers for pid in self._children(server)] if servers else started

    def _children(self, pid: int) -> list[int]:
        path = Path(f"/proc/{pid}/task/{pid}/children")
        return sorted(map(int, path.read_text().split())) if path.exists() else []

    def end(self) -> dict:
        return json.loads((self.run / "end.json").read_text())

    def text(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]


def _command(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


@functools.cache
def own_network() -> list[str]:
    """Return the command prefix that gives a command its own loopback; empty if this account may not.

    torchrun chooses a port about ten seconds before rank 0 listens on it. On a shared network another test
    sometimes takes it meanwhile.
    """
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "own-network"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return words if done.returncode == 0 else []


@pytest.fixture
def start(texts: dict[str, tuple[str, str]], data_root: Path, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start the trainer: `start(name, nproc=2, overrides=(...))`. Every job is ended afterwards.

    With `entrypoint` it starts as in a pod, else by `launcher`. With `alone` it has its own loopback, if that
    is possible. `variables` are added to its environment.
    """
    jobs: list[Job] = []

    def starter(
        name: str,
        *,
        nproc: int = 1,
        overrides: tuple[str, ...] = (),
        restarts: int = 0,
        module: str = "training.pretrain",
        entrypoint: bool = False,
        launcher: str = "torch.distributed.run",
        alone: bool = True,
        **variables: str,
    ) -> Job:
        own = dict(texts)
        for override in overrides:
            own = apply_override(own, override)
        config = tmp_path / f"{name}-config-{len(jobs)}"
        config.mkdir()
        for layer, (_, text) in own.items():
            (config / f"{layer}.yaml").write_text(text)
        output = tmp_path / f"{name}-{len(jobs)}.log"
        first = ["training.entrypoint", "torchrun"] if entrypoint else [launcher]
        command = [
            sys.executable, "-m", *first, "--standalone", f"--nproc-per-node={nproc}",
            f"--max-restarts={restarts}", "-m", module, "--config", str(config),
        ]  # fmt: skip
        environment = {
            **os.environ,
            "TRAINYARD_RUN": str(tmp_path / name),
            "TRAINYARD_DATA": str(data_root),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # as in base/pytorchjob
            "TRAINYARD_CPUS": "1",
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*(own_network() if alone else []), *command],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        jobs.append(Job(tmp_path / name, process, output))
        return jobs[-1]

    yield starter
    for job in jobs:
        for pid in job.workers():
            os.kill(pid, signal.SIGKILL)
        if job.process.poll() is None:
            job.process.kill()
        job.process.wait(30)


@pytest.fixture(scope="session")
def config(texts: dict[str, tuple[str, str]]) -> Config:
    return load_texts(texts)
