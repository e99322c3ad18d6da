"""The content of a rank's heartbeat, when it is written, and when a silent rank is late."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.training.inprocess import Texts, run
from training.data import token_shards
from training.device import cuda
from training.pod.hang_detector import HangDetector, Late, _reason
from training.run import heartbeat
from training.run.directory import RunDir
from training.run.hang_limits import Limits
from training.run.heartbeat import SETTLED, Beat, Heartbeat, path_of, read
from training.trainer import loop, metrics


def beat_with(phase: heartbeat.Phase = "training", beats: int = SETTLED, longest: float = 0.0) -> Beat:
    return Beat(0, phase, 7, time.time(), "here", os.getpid(), "", beats, longest, 1)


def test_a_heartbeat_is_written_on_a_change_or_once_a_second(tmp_path: Path) -> None:
    heart, began = Heartbeat(tmp_path, 3), time.monotonic()
    heart.enter("training", 0)
    for step in range(1, 200):
        heart.beat(step)
    early = read(path_of(tmp_path, 3))
    assert early is not None
    assert (early.rank, early.phase, early.pid) == (3, "training", os.getpid())
    assert early.beats >= SETTLED
    # On entering, once when settled, and at most each second since.
    assert early.count <= 3 + time.monotonic() - began
    with heart.during("saving"):
        saving = read(path_of(tmp_path, 3))
        assert saving is not None
        assert (saving.phase, saving.step) == ("saving", 199)
    after = read(path_of(tmp_path, 3))
    assert after is not None
    assert (after.phase, after.beats) == ("training", 199)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_heartbeat_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    heart = Heartbeat(tmp_path / "file" / "heartbeat", 0)
    heart.answer_with_stacks()
    heart.enter("training", 1)
    assert heart.phase == "training"
    assert read(tmp_path / "none.json") is None
    (tmp_path / "half.json").write_text('{"rank": 0, "pha')
    assert read(tmp_path / "half.json") is None


def test_links_to_another_run_are_neither_written_nor_read(tmp_path: Path) -> None:
    theirs, own, mixed = (tmp_path / name for name in ("theirs", "own", "mixed"))
    heart = Heartbeat(theirs)
    heart.answer_with_stacks()
    heart.enter("training", 5)
    own.symlink_to(theirs)
    mixed.mkdir()
    for path in [*theirs.iterdir(), theirs / "rank-00000.tmp"]:
        (mixed / path.name).symlink_to(path)
    before = {path.name: path.read_bytes() for path in theirs.iterdir()}
    for directory in (own, mixed):
        assert read(path_of(directory, 0)) is None
        linked = Heartbeat(directory)
        linked.answer_with_stacks()
        linked.enter("loading")
        assert linked.phase == "loading"
    assert {path.name: path.read_bytes() for path in theirs.iterdir()} == before


@pytest.mark.parametrize(
    ("beat", "limit"),
    [
        (beat_with(), 10),
        (beat_with("evaluating"), 10),
        (beat_with(beats=SETTLED - 1), 100),
        (beat_with("compiling"), 100),
        (beat_with("saving"), 100),
        (beat_with("preparing data"), 100),
        (beat_with(longest=4.0), 20),
        (beat_with("saving", longest=40.0), 200),
    ],
)
def test_how_long_a_phase_may_be_silent(beat: Beat, limit: float) -> None:
    assert Limits(step=10, long=100).for_(beat) == limit


def test_slow_steps_get_a_longer_limit_than_the_short_one(tmp_path: Path) -> None:
    """A run whose steps take longer than the limit does not hang: its first steps are measured."""
    heart = Heartbeat(tmp_path, 0)
    heart.enter("training", 0)
    for step in range(1, SETTLED + 1):
        for _ in range(10):
            heart.beat(part=True)
        time.sleep(0.2)
        heart.beat(step)
    found = read(path_of(tmp_path, 0))
    assert found is not None
    assert found.beats == SETTLED
    assert found.longest_s >= 0.2
    assert Limits(step=0.1, long=100).for_(found) >= 1.0


def test_dead_ranks_and_those_of_other_starts_are_not_late(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.heartbeat.mkdir()
    for rank, attempt, pid in ((0, "mine", os.getpid()), (1, "other", os.getpid()), (2, "mine", 4194303)):
        values = {**beat_with().__dict__, "rank": rank, "attempt": attempt, "pid": pid}
        path_of(run_dir.heartbeat, rank).write_text(json.dumps(values))
    detector = HangDetector(run_dir, "mine", Limits(step=0.05, long=100))
    assert [beat.rank for beat in detector.ranks()] == [0, 2]
    path_of(run_dir.heartbeat, 2).unlink()
    detector = HangDetector(run_dir, "mine", Limits(step=0.05, long=100))
    assert detector.late() == []
    time.sleep(0.2)
    assert [item.beat.rank for item in detector.late()] == [0]
    assert HangDetector(run_dir, "mine", Limits(step=0)).late() == []


STACK = """Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f0000000000 (most recent call first):
  File "{file}", line 10 in {name}
  File "/app/training/trainer/loop.py", line 200 in _step
"""


@pytest.mark.parametrize(
    ("file", "name", "waits"),
    [
        ("/venv/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/venv/torch/autograd/graph.py", "_engine_run_backward", True),
        ("/venv/torch/cuda/__init__.py", "synchronize", True),
        (metrics.__file__, "_row", True),
        (cuda.__file__, "synchronize", True),
        (loop.__file__, "evaluate", True),
        (loop.__file__, "_step", False),
        (token_shards.__file__, "read", False),
        ("/usr/lib/python3.11/socket.py", "readinto", False),
    ],
)
def test_a_rank_that_waits_for_others_is_not_the_cause(file: str, name: str, waits: bool) -> None:
    """The guard knows waiting by paths of stack frames, so the trainer's own are those of its modules."""
    reason = _reason(beat_with(), STACK.format(file=file, name=name))
    assert (reason is None) == waits
    if reason is not None:
        assert f"in {name}" in reason


def test_if_all_wait_the_one_furthest_behind_is_named_later(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.heartbeat.mkdir()
    detector = HangDetector(run_dir, "mine", Limits(step=10, long=100))
    waiting = STACK.format(file="/venv/torch/distributed/distributed_c10d.py", name="all_reduce")
    beats = [Beat(rank, "training", 9 - rank, 0.0, "h", os.getpid(), "mine", 5, 0.0, 1) for rank in (0, 1)]
    late = [Late(beat, 11.0, 10.0) for beat in beats]
    stacks = dict.fromkeys((0, 1), waiting)
    assert detector.evaluate(late, stacks) == []
    overdue = [Late(item.beat, 16.0, 10.0) for item in late]
    (record,) = detector.evaluate(overdue, stacks)
    assert (record.rank, record.kind, record.step) == (1, "hang", 8)
    assert "wait for each other" in record.message


def test_a_run_goes_through_its_phases(texts: Texts, data_root: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    real = Heartbeat._write

    def noting(self: Heartbeat) -> None:
        real(self)
        if not seen or seen[-1] != self.phase:
            seen.append(self.phase)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeat, "_write", noting)
        patch.setattr(heartbeat, "_own", Heartbeat(tmp_path / "heartbeat", 0))
        run(texts, ("train.steps=12", "train.eval_every=6"), tmp_path / "run", data_root)
    assert [phase for index, phase in enumerate(seen) if phase not in seen[:index]] == [
        "preparing data", "loading", "training", "saving", "evaluating", "sampling",
    ]  # fmt: skip
    last = read(path_of(tmp_path / "heartbeat", 0))
    assert last is not None
    assert last.step == 12
