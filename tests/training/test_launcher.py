"""Ranks that are forked from one process with the trainer imported: their names, parents and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from training.pod import forked_rank, launcher
from training.run import failure, heartbeat
from training.run.directory import RunDir
from training.run.failure import CODES, Failure

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

LONG = ("train.steps=4000",)
UNFORKABLE = {
    "starts_a_thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    ),
    "sets_up_cuda": "import torch\ntorch._C._cuda_getDeviceCount()",
    "does_not_parse": "def",
}
TASKS = "import training.pretrain, training.finetune, training.bert"
EARLY = """
import os, signal
from training.pod import fork_server, preload
os.kill(os.getpid(), signal.SIGTERM)  # the server lives
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    print("before", flush=True)
    fork_server.set_up()
    print("after", flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
PROBE = "import sys; from training.pod.fork_server import *; m = sys.argv[1]; print(start_server(m) or probe(m))"


def test_a_restarted_rank_is_forked_from_the_same_server(start: Callable) -> None:
    """Its death is recorded. A SIGTERM right after the restart is a drain, not the earlier death's result."""
    job = start("struck", nproc=2, overrides=LONG, restarts=1, entrypoint=True)
    job.until(lambda: len(job.records()) >= 12)
    before = job.workers()
    servers = {_parent(pid) for pid in before}
    assert [Path(f"/proc/{pid}/comm").read_text().strip() for pid in before] == ["rank 0", "rank 1"]
    os.kill(before[0], signal.SIGKILL)
    job.until(lambda: any(one["class"] == "killed" for one in job.failures()))
    assert [one["pid"] for one in job.failures() if one["class"] == "killed"] == [before[0]]
    job.until(lambda: set(job.workers()).isdisjoint(before) and len(job.workers()) == 2)
    assert {_parent(pid) for pid in job.workers()} == servers
    known = len(job.records())
    job.until(lambda: len(job.records()) > known + 5 and _all_step(job.run))
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == CODES["drained"], job.text()
    assert "Warning" not in job.output.read_text()


def test_sigterm_for_all_processes_loses_no_step(start: Callable) -> None:
    """As `kill -TERM -PGID` sends it: the server that has forked the ranks lives until they have saved."""
    job = start("asked", nproc=2, overrides=LONG, entrypoint=True)
    job.until(lambda: len(job.records()) >= 12)
    below = psutil.Process(job.process.pid).children(recursive=True)
    server = psutil.Process(_parent(job.workers()[0]))
    assert server in below
    server.terminate()  # first, so that its end would come before the ranks have saved
    for process in (*below, job.process):
        process.send_signal(signal.SIGTERM)
    assert job.wait() == CODES["drained"], job.text()
    last = job.records()[-1]["step"]
    assert f"step {last}, which is saved" in job.text()
    assert (job.run / f"checkpoints/step-{last:08d}/MANIFEST.json").exists()


def test_a_sigterm_before_a_forked_rank_is_set_up_ends_it() -> None:
    """Ignored, it would be lost: torchrun would wait 30 s for the rank before it killed it."""
    child = os.environ | {"TRAINYARD_TASK": "json", "RANK": "0"}
    found = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=120, env=child, check=True
    )
    assert found.stdout.split() == ["before", str(-signal.SIGTERM)]


@pytest.mark.long
def test_a_server_that_is_killed_is_started_again(start: Callable) -> None:
    job = start("orphaned", nproc=2, overrides=LONG, restarts=1, entrypoint=True)
    job.until(lambda: len(job.records()) >= 12)
    before = job.workers()
    server = _parent(before[0])
    os.kill(server, signal.SIGKILL)
    job.until(lambda: len(job.workers()) == 2 and set(job.workers()).isdisjoint(before))
    assert _parent(job.workers()[0]) != server
    known = len(job.records())
    job.until(lambda: len(job.records()) > known + 5)


@pytest.mark.long
def test_nothing_outlives_a_killed_launcher(start: Callable) -> None:
    """Without the entrypoint, which would also end them."""
    job = start("killed", nproc=2, overrides=LONG, launcher="training.pod.launcher")
    job.until(lambda: len(job.records()) >= 12)
    left = [*job.workers(), _parent(job.workers()[0])]
    os.kill(_parent(left[-1]), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]


@pytest.mark.long
def test_if_forking_is_not_safe_each_rank_imports_for_itself(start: Callable, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(UNFORKABLE["starts_a_thread"])
    job = start("alone", nproc=2, entrypoint=True, PYTHONPATH=str(tmp_path))
    job.until(lambda: len(job.workers()) == 2)
    (agent,) = job.agents()
    below = [" ".join(one.cmdline()) for one in psutil.Process(agent).children()]
    assert not [words for words in below if "multiprocessing.forkserver" in words], "a server with nothing to fork"
    assert job.wait() == 0, job.text()
    assert "each rank imports for itself: importing has started 1 threads" in job.text()
    assert len(job.losses()) == 20


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("starts_a_thread", "importing has started 1 threads"),
        ("sets_up_cuda", "CUDA was set up while importing"),
        ("does_not_parse", "does_not_parse could not be imported"),
        ("is_not_there", "is_not_there could not be imported"),
    ],
)
def test_unsafe_forking_is_detected(module: str, reason: str, tmp_path: Path) -> None:
    if module == "sets_up_cuda" and torch.version.cuda is None:
        pytest.skip("needs a build of torch with CUDA (no GPU): pip install torch, not its +cpu build")
    for name, text in UNFORKABLE.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, module],
        env={**os.environ, **paths}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == reason, done.stderr


def test_the_trainers_own_tasks_are_safe_to_fork(tmp_path: Path) -> None:
    """Also with a long temporary directory: `yard run` gives each pod one, and a socket's path is short."""
    (tmp_path / "every_task.py").write_text(TASKS)
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}", "TMPDIR": str(deep)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "every_task"],
        env={**os.environ, **paths}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "", done.stderr


@pytest.mark.parametrize(
    ("words", "forked"),
    [
        ("torchrun -m training.pretrain --config d", True),
        ("/opt/venv/bin/torchrun --nproc-per-node=2 --module training.bert --config d", True),
        ("torchrun -m theirs.train", False),
        ("torchrun train.py", False),
        ("python -m torch.distributed.run -m training.pretrain", False),
        ("hyperpodrun -m training.pretrain", False),
    ],
)
def test_only_torchrun_with_a_task_of_the_trainer_forks(words: str, forked: bool) -> None:
    assert launcher.suits(words.split()) is forked


def test_torchruns_options_are_kept() -> None:
    words = launcher.forking(["--nnodes=2", "-m", "training.bert", "--config", "d"])
    assert words[:3] == ["--start-method=forkserver", "--nnodes=2", "--run-path"]
    assert words[3].endswith("training/pod/forked_rank.py")
    assert words[4:] == ["training.bert", "--config", "d"]


def test_a_failure_before_a_ranks_next_step_is_not_the_cause(tmp_path: Path) -> None:
    """However recent it is; the control is the same heartbeat before its first step."""
    run, now = RunDir(tmp_path), time.time()
    failure.write(Failure("killed", 1, "h", 9, 7, "was killed", "", now - 0.2), run)
    failure.write(Failure("nan", 2, "h", 8, 9, "not finite", "", now), run)
    kinds = []
    heartbeat.Heartbeat(run.heartbeat, 1).enter("joining")
    kinds.append([one.kind for one in failure.incident(run, now - 100)])
    heartbeat.Heartbeat(run.heartbeat, 1).enter("training", 7)
    kinds.append([one.kind for one in failure.incident(run, now - 100)])
    assert kinds == [["killed", "nan"], ["nan"]]


@pytest.mark.parametrize(
    ("kind", "restarts", "waits"),
    [("config", 0, True), ("config", 2, False), ("error", 0, False), ("lost peer", 2, True)],
)
def test_a_rank_waits_to_be_ended(kind: str, restarts: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torchrun would start it again in vain, and where another rank is the cause: SIGTERM ends the wait."""
    values = {
        "TRAINYARD_ENTRYPOINT": "1",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": "2",
    }
    for name, value in {**values, "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        forked_rank.wait_to_be_ended(CODES[kind])
        assert (signal.SIGTERM not in signal.sigpending()) == waits
    finally:
        signal.sigtimedwait({signal.SIGTERM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _all_step(run: Path) -> bool:
    beats = [heartbeat.read(path) for path in (run / "heartbeat").glob("rank-*.json")]
    return all(beat is not None and beat.step is not None for beat in beats)
