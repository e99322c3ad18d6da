"""Elastic jobs: the same samples and the same curve at every size, and agents that lose and regain their nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.parts.ports import free_port
from tests.training import elastic_runs
from tests.training.inprocess import Texts, losses, records
from tests.training.jobs import own_network
from training.config import ConfigError, apply_override, elastic, load_texts
from training.run.directory import RunDir, last_records

AGENT = ["-m", "training.entrypoint", "torchrun", "-m", "training.pretrain", "--config"]


def written(texts: Texts, directory: Path, *overrides: str) -> Path:
    directory.mkdir()
    for override in overrides:
        texts = apply_override(texts, override)
    for layer, (_, text) in texts.items():
        (directory / f"{layer}.yaml").write_text(text)
    return directory


@pytest.mark.parametrize(("overrides", "per_node", "said"), [
    (("nodes={min: 2, max: 4}",), 1, ""),
    (("nodes={min: 2, max: 4}",), 2, "nodes.max is 4, but 3 nodes cannot train: train.global_batch_size 8 has no micro "
                                     "batches of 2 for 6 ranks to share; nearest value: 2"),
    (("nodes={min: 5, max: 6}",), 1, "nodes.min is 5, but 5 nodes cannot train: .*; nearest value: 4"),
    (("nodes={min: 4, max: 6}", "parallel.sharding=fsdp", "parallel.reshard_after_forward=2",
      "train.global_batch_size=24"), 1, "nodes.max is 6, but 5 nodes cannot train: parallel.reshard_after_forward 2 is "
                                        "not a part of 5 ranks; nearest value: 4"),
    (("nodes={min: 3, max: 2}",), 1, "nodes.max 2 is below nodes.min 3; nearest value: 3"),
    (("nodes={min: 0, max: 2}",), 1, "nodes.min"),
    (("parallel.sharding=fsdp", "parallel.micro_batch_size=1"), 2, ""),
    (("parallel.sharding=fsdp", "parallel.micro_batch_size=1", "parallel.reshard_after_forward=3"), 2,
     "parallel.reshard_after_forward is 3, but 8 ranks share the model, .*; nearest value: 2"),
    (("parallel.sharding=hsdp", "parallel.micro_batch_size=1", "parallel.reshard_after_forward=2"), 2,
     "parallel.reshard_after_forward is 2, but 2 ranks share the model, .*; nearest value: true"),
    (("parallel.sharding=fsdp", "parallel.tensor=2", "model.tie_word_embeddings=false"), 1,
     "parallel.tensor 2 does not divide the 1 ranks of a node; nearest value: 1"),
])  # fmt: skip
def test_ranks_that_cannot_train_are_one_error(
    overrides: tuple[str, ...], per_node: int, said: str, texts: Texts
) -> None:
    def check() -> None:
        own = texts
        for override in overrides:
            own = apply_override(own, override)
        config = load_texts(own)
        elastic.check(config, per_node * (config.nodes.max if config.nodes else 4), per_node)

    with pytest.raises(ConfigError, match=said) if said else contextlib.nullcontext():
        check()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_run_of_changing_size_reads_the_same_samples_and_keeps_its_curve(
    sharding: str, texts: Texts, data_root: Path, tmp_path: Path
) -> None:
    shape = (f"parallel.sharding={sharding}", f"train.steps={elastic_runs.STEPS}", "checkpoint.every=10")
    configuration = written(texts, tmp_path / "configuration", *shape, "train.eval_every=1000")
    command = [sys.executable, elastic_runs.__file__, str(configuration), str(tmp_path), str(data_root)]
    done = subprocess.run([*own_network(), *command], capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    fixed, changed = RunDir(tmp_path / "fixed"), RunDir(tmp_path / "elastic")
    assert samples(changed) == samples(fixed)
    assert sorted(samples(fixed)) == list(range(8 * elastic_runs.STEPS))
    same = elastic_runs.SIZES[0][1]
    assert losses(changed)[:same] == losses(fixed)[:same], "bit for bit until the size first changes"
    assert losses(changed) == pytest.approx(losses(fixed), rel=1e-4)
    assert [one["tokens"] for one in records(changed)] == [one["tokens"] for one in records(fixed)]
    assert [len(one["rank_step_s"]) for one in records(changed)[::10]] == [4, 4, 2, 3, 4]


def samples(run: RunDir) -> dict[int, int]:
    """The sample at each data position, whichever rank read it; what a stop left untrained is read once more."""
    found: dict[int, int] = {}
    for path in run.path.glob("samples-*.jsonl"):
        for line in path.read_text().splitlines():
            places, chosen = json.loads(line)
            new = dict(zip((place for place in places if place >= 0), chosen, strict=True))
            assert all(found.get(place, one) == one for place, one in new.items())
            found |= new
    return found


class Agents:
    """The pods of an elastic job on this machine: process 1 of each, as the training operator starts it."""

    def __init__(self, configuration: Path, run: Path, data: Path) -> None:
        self._run, self._data, self._configuration = run, data, configuration
        self.port = free_port()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *numbers: int) -> None:
        for number in numbers:
            own = {
                "HOSTNAME": f"pod-{number}", "TRAINYARD_RUN": str(self._run), "TRAINYARD_DATA": str(self._data),
                "PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "1", "PET_RDZV_BACKEND": "c10d", "PET_MAX_RESTARTS": "5",
                "PET_RDZV_ENDPOINT": f"localhost:{self.port}", "PET_RDZV_CONF": "last_call_timeout=10",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TRAINYARD_CPUS": "1", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            with (self._run.parent / f"pod-{number}-{time.monotonic_ns()}.log").open("wb") as log:
                self.processes[number] = subprocess.Popen(
                    [sys.executable, *AGENT, str(self._configuration)], env={**os.environ, **own}, stdout=log,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip

    def kill(self, *numbers: int) -> None:
        """Kill process 1 of these pods: the kernel kills their ranks with it."""
        for number in numbers:
            self.processes[number].kill()
            self.processes[number].wait(60)

    def until(self, ranks: int, after: float, seconds: float) -> int:
        """Wait for a step with so many ranks later than a moment; return its number."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for one in reversed(last_records(self._run / "metrics.jsonl")):
                if one["time"] > after and len(one["rank_step_s"]) == ranks:
                    return int(one["step"])
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._run.parent.glob("pod-*.log"))
        raise AssertionError(f"no step of {ranks} ranks in {seconds} s:\n{logs}")


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in {seconds} s"
        time.sleep(0.2)


@pytest.fixture
def agents(texts: Texts, data_root: Path, tmp_path: Path) -> Iterator[Agents]:
    shape = ("nodes={min: 2, max: 4}", "train.steps=100000", "train.eval_every=100000", "checkpoint.every=20")
    found = Agents(written(texts, tmp_path / "configuration", *shape), tmp_path / "run", data_root)
    yield found
    for process in found.processes.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in found.processes.values():
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_agents_continue_without_two_nodes_and_take_them_back(agents: Agents) -> None:
    agents.start(0)  # the rendezvous is its
    until(lambda: answers(agents.port), 120)
    agents.start(1, 2, 3)
    before = agents.until(4, 0.0, 240)
    killed = time.time()
    agents.kill(2, 3)
    smaller = agents.until(2, killed, 180)
    assert smaller > before - 20, "what was lost is less than the steps between two checkpoints"
    returned = time.time()
    agents.start(2, 3)
    assert agents.until(4, returned, 240) > smaller
