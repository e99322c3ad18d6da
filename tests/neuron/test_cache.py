"""The compile cache's name and its claim: one job at a time, dead owners replaced, living ones named."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.neuron.conftest import cell_texts
from training.config import Config, ConfigError, load_texts
from training.neuron import cache as neuron_cache

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from training.neuron import cache as neuron_cache
with neuron_cache.claimed(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


def config(*overrides: str) -> Config:
    return load_texts(cell_texts("llama-tiny", *overrides))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "neuron" / "llama-12345678"


@pytest.fixture
def holder(cache: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the cache for the job `first`."""
    command = [sys.executable, "-c", HOLD, str(cache), "first"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_equal_graphs_have_one_cache_and_others_another() -> None:
    name = neuron_cache.cacheset(config())
    assert name.startswith("llama-")
    for same in ("train.learning_rate=1.0e-4", "train.steps=77", "checkpoint.every=5", "device.log_every=3"):
        assert neuron_cache.cacheset(config(same)) == name
    for other in ("sequence_length=128", "parallel.micro_batch_size=4", "device.precision=fp32"):
        assert neuron_cache.cacheset(config(other)) != name
    assert neuron_cache.cacheset(config("device.cacheset=mine")) == "mine"


def test_the_compiler_is_pointed_at_the_cachesets_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once or twice: a launcher does it before its ranks."""
    monkeypatch.setenv(neuron_cache.URL, "/shared/cache/neuron")
    for _ in range(2):
        assert neuron_cache.use(config("device.cacheset=mine")) == Path("/shared/cache/neuron/mine")
        assert os.environ[neuron_cache.URL] == "/shared/cache/neuron/mine"


@pytest.mark.parametrize(
    ("name", "value"),
    [(neuron_cache.URL, "s3://bucket/cache"), ("NEURON_CC_FLAGS", "--retry --cache_dir=/elsewhere")],
)
def test_a_cache_that_cannot_be_claimed_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        neuron_cache.use(config())


@pytest.mark.parametrize("name", ["Mine", "../other", "", "a" * 64])
def test_a_cachesets_name_is_one_directorys(name: str) -> None:
    with pytest.raises(ConfigError, match=r"device\.cacheset"):
        config(f'device.cacheset="{name}"')


def test_another_job_is_refused_with_the_owners_name(cache: Path, holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(ConfigError, match=rf"used by first .*process {holder.pid}, .*device\.cacheset"),
        neuron_cache.claimed(cache, "second"),
    ):
        pass


def test_a_rank_of_the_same_job_shares_the_claim(cache: Path, holder: subprocess.Popen[str]) -> None:
    """It does not release the claim when it ends."""
    with neuron_cache.claimed(cache, "first"):
        pass
    assert holder.poll() is None
    with pytest.raises(ConfigError), neuron_cache.claimed(cache, "second"):
        pass


def test_a_killed_owner_is_replaced_at_once(cache: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    began = time.monotonic()
    with neuron_cache.claimed(cache, "second"):
        assert time.monotonic() - began < neuron_cache.LEASE / 2
        with pytest.raises(ConfigError, match="used by second"), neuron_cache.claimed(cache, "third"):
            pass


def test_a_released_cache_is_free(cache: Path) -> None:
    for job in ("first", "second", "first"):
        with neuron_cache.claimed(cache, job):
            pass


def elsewhere(cache: Path, number: int, **changed: str) -> Path:
    """Write the claim of a process on another machine."""
    owner = {"job": "far", "host": "node-7", "pid": 1, "space": "there", "process": "5", "since": "then"}
    path = cache.parent / "claims" / cache.name / f"{number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"owner": {**owner, **changed}, "released": False}))
    return path


def test_an_owner_on_another_machine_lives_while_it_touches_its_claim(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner is alive as soon as it touches the claim. An owner that is silent for the lease's time is
    dead.
    """
    monkeypatch.setattr(neuron_cache, "LOOK", 0.01)
    path, over = elsewhere(cache, 3), threading.Event()

    def touching() -> None:
        while not over.wait(0.05):
            os.utime(path)

    toucher = threading.Thread(target=touching)
    toucher.start()
    try:
        with pytest.raises(ConfigError, match=r"used by far \(node-7"), neuron_cache.claimed(cache, "near"):
            pass
    finally:
        over.set()
        toucher.join()
    monkeypatch.setattr(neuron_cache, "LEASE", 0.3)
    with neuron_cache.claimed(cache, "near"):
        assert not path.exists()
        assert (path.parent / "4.json").exists()


def test_a_restarted_pod_replaces_its_former_self(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same name and another process name space: it does not wait."""
    monkeypatch.setenv("HOSTNAME", "near-worker-0")
    monkeypatch.setattr(neuron_cache, "_server_time", lambda _: 0)  # as if the claim were fresh for ever
    elsewhere(cache, 1, job="near", host="near-worker-0")
    with neuron_cache.claimed(cache, "near"):
        pass


def test_an_owner_that_slept_too_long_stops(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds a higher number than its own and stops. It does not take the claim back."""
    monkeypatch.setattr(neuron_cache, "BEAT", 0.05)
    stopped = threading.Event()
    monkeypatch.setattr(os, "kill", lambda _pid, _number: stopped.set())
    with neuron_cache.claimed(cache, "near"):
        taken = elsewhere(cache, 2)
        assert stopped.wait(60)
    assert json.loads(taken.read_text())["released"] is False


def _race(cache: str, job: str, queue: multiprocessing.Queue[str], over: Event) -> None:
    try:
        with neuron_cache.claimed(Path(cache), job):
            queue.put("got it")
            over.wait(600)
    except ConfigError:
        queue.put("refused")


def test_one_of_many_gets_a_dead_owners_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight jobs see the same dead claim at the same time."""
    path = elsewhere(cache, 1)
    os.utime(path, (1, 1))
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    over = context.Event()
    racers = [context.Process(target=_race, args=(str(cache), f"job-{n}", queue, over)) for n in range(8)]
    for racer in racers:
        racer.start()
    try:
        answers = [queue.get(timeout=300) for _ in racers]
    finally:
        over.set()
    for racer in racers:
        racer.join(timeout=180)
    assert sorted(answers) == ["got it"] + ["refused"] * 7
