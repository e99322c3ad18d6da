"""Jobs of the trainer under the real torchrun: a tiny configuration, a tiny corpus, and what a started job leaves."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from training.config import apply_override

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

Texts = Mapping[str, tuple[str, str]]


def tiny_texts(corpus: Path) -> dict[str, tuple[str, str]]:
    """Return the tiny configuration as `{layer: (file name, text)}`."""
    model = MODEL.format(source=corpus)
    return {
        "model": ("model.yaml", model),
        "hardware": ("hardware.yaml", HARDWARE),
        "cell": ("cell.yaml", CELL),
    }


def write_corpus(directory: Path) -> Path:
    """Write 120 documents of seeded sentences."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(200)]
    for index in range(120):
        lines = (" ".join(draw.choices(words, k=12)) + "." for _ in range(draw.randint(2, 9)))
        (directory / f"{index:03d}.txt").write_text("\n".join(lines), encoding="utf-8")
    return directory


class Job:
    """One start of a trainer under torchrun, with the files of its run."""

    def __init__(self, run: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.run, self.process, self.output = run, process, output
        self.behind_entrypoint = "training.entrypoint" in str(process.args)

    def wait(self, timeout: float = 170) -> int:
        return self.process.wait(timeout)

    def records(self) -> list[dict]:
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records()]

    def failures(self) -> list[dict]:
        return [json.loads(p.read_text()) for p in sorted((self.run / "failures").glob("*.json"))]

    def until(self, condition: Callable[[], object], timeout: float = 150) -> None:
        """Poll for a condition; fail with the job's output if the job ends or the time is up first."""
        end = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"the job ended first:\n{self.text()}"
            assert time.monotonic() < end, f"not in {timeout} s:\n{self.text()}"
            time.sleep(0.02)

    def agents(self) -> list[int]:
        """Process ids of torchrun."""
        return self._children(self.process.pid) if self.behind_entrypoint else [self.process.pid]

    def workers(self) -> list[int]:
        """Process ids of the job's ranks."""
        started = [pid for agent in self.agents() for pid in self._children(agent)]
        helpers = [pid for pid in started if b"from multiprocessing." in _command(pid)]
        forked = [pid for pid in helpers if b"multiprocessing.forkserver" in _command(pid)]
        own = [pid for pid in started if pid not in helpers]
        return own or [pid for server in forked for pid in self._children(server)]

    def _children(self, pid: int) -> list[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return sorted(child.pid for child in psutil.Process(pid).children())
        return []

    def end(self) -> dict:
        return json.loads((self.run / "end.json").read_text())

    def text(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill what is left of the job."""
        for pid in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):  # the process has ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


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


class Jobs:
    """Starts jobs in one directory, and ends them all with `close`."""

    def __init__(self, texts: Texts, data_root: Path, directory: Path) -> None:
        self._texts, self._data_root, self._directory = texts, data_root, directory
        self.started: list[Job] = []

    def start(
        self,
        name: str,
        *,
        nproc: int = 1,
        overrides: tuple[str, ...] = (),
        restarts: int = 0,
        module: str = "training.pretrain",
        entrypoint: bool = False,
        launcher: str = "torch.distributed.run",
        alone: bool = True,
        agent: Sequence[str] = ("--standalone",),
        prefix: Sequence[str] = (),
        **variables: str,
    ) -> Job:
        """Start the trainer in the run directory `name`.

        With `entrypoint` it starts as in a pod, else by `launcher`. With `alone` it has its own loopback, if that
        is possible. `agent` are torchrun's options for the rendezvous, `prefix` are words before the command, and
        `variables` are added to its environment.
        """
        own = dict(self._texts)
        for override in overrides:
            own = apply_override(own, override)
        config = self._directory / f"{name}-config-{len(self.started)}"
        config.mkdir()
        for layer, (_, text) in own.items():
            (config / f"{layer}.yaml").write_text(text)
        first = ["training.entrypoint", "torchrun"] if entrypoint else [launcher]
        command = [
            sys.executable, "-m", *first, *agent, f"--nproc-per-node={nproc}",
            f"--max-restarts={restarts}", "-m", module, "--config", str(config),
        ]  # fmt: skip
        return self.run(name, [*prefix, *command], alone=alone, **variables)

    def run(self, name: str, command: Sequence[str], *, alone: bool = True, **variables: str) -> Job:
        """Start a command as the job `name`."""
        output = self._directory / f"{name}-{len(self.started)}.log"
        environment = {
            **os.environ,
            "TRAINYARD_RUN": str(self._directory / name),
            "TRAINYARD_DATA": str(self._data_root),
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
        self.started.append(Job(self._directory / name, process, output))
        return self.started[-1]

    def close(self) -> None:
        for job in self.started:
            job.close()
