"""Failing, competing and dead writers, and pruning."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.checkpoint.values import assert_holds, snapshot, whole
from training.checkpoint import attempt as attempts
from training.checkpoint import read
from training.checkpoint import store as stores
from training.checkpoint.attempt import Attempt, quarantine
from training.checkpoint.disk import HashedFile
from training.checkpoint.errors import CheckpointError
from training.checkpoint.keep import Rules
from training.checkpoint.layout import committed_steps, step_name
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.shards import Shard, shards_of
from training.checkpoint.store import Store
from training.checkpoint.tier import Directory
from training.checkpoint.write import Snapshot

Call = Callable[..., list[Any]]


def put(store: Store, step: int, values_of: int | None = None) -> Path:
    store.save(snapshot(step, whole(values_of or step)))
    return store.directory / step_name(step)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_every_rank_gets_the_error_of_one_full_disk(checkpoints: Path, ranks_status: Call) -> None:
    """RLIMIT_FSIZE stops one rank's file: the save fails on all ranks with rank, file and reason."""
    before = names(checkpoints)
    answers = ranks_status("save_with_limit", 2, directory=checkpoints, step=3, victim=1, limit=100)
    assert [answer["kind"] for answer in answers] == ["CheckpointError"] * 2
    assert answers[0]["error"] == answers[1]["error"]
    assert answers[0]["error"].startswith("rank 1: step-00000003.")
    assert answers[0]["error"].endswith("/rank-00001.safetensors: File too large")
    assert names(checkpoints) == before
    found = Store(checkpoints).latest()
    assert found is not None
    assert_holds(found, 2)


def test_control_with_room_the_same_save_works(checkpoints: Path, ranks: Call) -> None:
    ranks("save_with_limit", 2, directory=checkpoints, step=3, victim=1, limit=1 << 20)
    assert Store(checkpoints).steps() == [2, 3]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    target = tmp_path / "disk"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(target)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root; the file size limit above covers the same path")
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here ({mounted.stderr.strip()}); the file size limit covers the path")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_disk_full(small_disk: Path) -> None:
    """ENOSPC in the middle of a file: nothing of the save is left, and smaller saves still work."""
    store = Store(small_disk)
    put(store, 1)

    def own(directory: Path) -> None:
        with HashedFile(directory / "own") as file:
            file.write(b"x" * 400_000)

    with pytest.raises(CheckpointError, match=r"rank 0: .*own: No space left on device"):
        store.save(Snapshot(2, {}, files=own))
    assert names(small_disk) == ["LATEST", "step-00000001"]
    put(store, 3)
    found = store.latest()
    assert found is not None
    assert_holds(found, 3)


def test_too_little_space_is_known_before_a_save_begins(small_disk: Path) -> None:
    """What was set aside makes room first; a checkpoint that cannot fit leaves nothing."""
    told: list[str] = []
    store = Store(small_disk, log=told.append)
    for step in (1, 2):
        store.save(Snapshot(step, shards_of([("x", torch.zeros(20_000))])))
    quarantine(small_disk / "step-00000002")
    put(store, 3)
    assert told == []
    store.save(Snapshot(4, shards_of([("x", torch.zeros(30_000))])))
    assert told == ["step-00000002.bad: removed, because its space is needed"]
    with pytest.raises(CheckpointError, match=r"bytes are free, a checkpoint needs 800,000; lower checkpoint.keep"):
        store.save(Snapshot(5, shards_of([("x", torch.zeros(200_000))])))
    assert not any(name.endswith(".tmp") for name in names(small_disk))


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/checkpoints: Not a directory"):
        Store(tmp_path / "file" / "checkpoints")


def test_a_committed_step_is_not_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = put(store, 1)
    manifest = (path / "MANIFEST.json").read_bytes()
    assert put(store, 1, values_of=5) == path
    assert (path / "MANIFEST.json").read_bytes() == manifest
    assert_holds(open_checkpoint(path), 1)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({}, False),
        ({"meta": {"config_digest": "a", "commit": "b"}}, False),
        ({"meta": {"config_digest": "b"}}, True),
        ({"run_state": {"tokens": 999}}, True),
    ],
)
def test_a_step_of_another_course_is_set_aside(tmp_path: Path, change: dict[str, Any], again: bool) -> None:
    """Another writer's step stays if it has the same run state and configuration."""
    first = replace(snapshot(1), meta={"config_digest": "a"})
    assert Store(tmp_path).save(first)
    path = tmp_path / "step-00000001"
    kept = (path / "MANIFEST.json").read_bytes()
    told: list[str] = []
    other = replace(first, tensors=snapshot(1, whole(5)).tensors, **change)
    assert Store(tmp_path, log=told.append).save(other) == again
    assert ((path / "MANIFEST.json").read_bytes() != kept) == again
    assert torch.equal(open_checkpoint(path).full("model.norm"), whole(5 if again else 1)["model.norm"])
    aside = ["step 1 is there with another run state or configuration", "step 1 is kept as step-00000001.bad"]
    assert told == (aside if again else ["step 1 is there already: not written again"])
    assert not again or (tmp_path / "step-00000001.bad" / "MANIFEST.json").read_bytes() == kept


def test_a_store_holds_the_state_that_it_committed_or_loaded_last(tmp_path: Path) -> None:
    store = Store(tmp_path, log=lambda line: None)
    assert store.holds(1) is None
    path = put(store, 1)
    digest = store.holds(1)
    assert digest == hashlib.sha256((path / "MANIFEST.json").read_bytes()).hexdigest()
    quarantine(path)
    assert store.holds(1) is None, "it was set aside"
    put(store, 1)
    assert store.holds(1) not in (None, digest)
    put(store, 2)
    assert (store.holds(1), store.holds(2) is None) == (None, False), "training has gone further"
    (tmp_path / "step-00000002" / "rank-00000.json").write_text("{}")
    assert store.holds(2) is None, "its size is wrong"
    found = store.latest()
    assert found is not None
    assert found.step == 1
    assert store.holds(1) is not None, "it was loaded"
    assert Store(tmp_path).holds(1) is None, "another store knows nothing"


def test_a_step_whose_name_was_not_synced_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO right after the rename: the save fails, and the next one of this step syncs the name, or fails too."""
    store = Store(tmp_path)
    broken, synced = [True, True, False], []

    def sync(directory: Path) -> None:
        if directory == tmp_path:
            synced.append(directory)
            if broken.pop(0):
                raise CheckpointError("Input/output error")

    monkeypatch.setattr(attempts, "sync_directory", sync)
    monkeypatch.setattr(stores, "sync_directory", sync)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="Input/output error"):
            put(store, 1)
    assert store.steps() == [1], "the rename was done"
    put(store, 1)
    assert len(synced) == 3


def test_a_broken_step_is_written_again(tmp_path: Path) -> None:
    told: list[str] = []
    store = Store(tmp_path, log=told.append)
    path = put(store, 1)
    (path / "rank-00000.json").unlink()
    assert put(store, 1) == path
    assert_holds(open_checkpoint(path), 1)
    assert told == ["step 1 is kept as step-00000001.bad"]


def test_quarantined_steps_are_pruned_after_their_age(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=Rules(bad_days=1.0), log=lambda line: None)
    for step in (1, 2):
        put(store, step)
    (tmp_path / "step-00000002" / "rank-00000.json").write_text("{}")
    assert store.latest() is not None
    kept = (tmp_path / "step-00000002.bad").exists
    for step in (3, 4):
        put(store, step)
    assert kept()
    assert Directory(tmp_path).aged(1.0) == []
    put(Store(tmp_path, keep=Rules(bad_days=0.0)), 5)
    assert not kept()
    assert store.steps() == [4, 5]


def test_the_rules_choose_the_newest_milestones_and_the_best() -> None:
    losses = {10: 3.0, 20: 1.0, 30: 1.0, 40: 2.0, 60: 9.0}
    steps = range(10, 81, 10)
    assert Rules(2).chosen(steps, losses) == {70, 80}
    assert Rules(2, every=30).chosen(steps, losses) == {30, 60, 70, 80}
    assert Rules(2, best=1).chosen(steps, losses) == {30, 70, 80}, "of equal losses the newer one"
    assert Rules(3, every=40, best=2).chosen(steps, losses) == {20, 30, 40, 60, 70, 80}
    for rules in (Rules(2), Rules(3, every=20), Rules(2, every=30, best=3)):
        longest = max(len(rules.chosen(range(10, last + 1, 10), losses)) for last in steps)
        assert longest <= rules.most(80, 10)


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({"rank_state": {"x": object()}}, "rank_state is not JSON"),
        ({"run_state": {"loss": math.nan}}, "run_state is not JSON"),
        ({"meta": {"x": b"bytes"}}, "meta is not JSON"),
    ],
)
def test_states_that_are_not_json(tmp_path: Path, states: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        Store(tmp_path).save(Snapshot(1, {}, **states))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        (Shard(torch.zeros(2, 2), (4, 2), 0, False), "rows 2 to 4 are held by no rank"),
        (Shard(torch.zeros(2, 2), (4, 2), 3, False), "is not in"),
        (Shard(torch.zeros(2, 2), (4, 2), 0, True), "rows 2 to 4 are held by no rank"),
        (
            Shard(torch.zeros(2, dtype=torch.complex64), (2,), 0, True),
            "dtype torch.complex64 cannot be stored",
        ),
    ],
)
def test_inconsistent_shards(tmp_path: Path, shard: Shard, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"tensor 'odd': .*{reason}"):
        Store(tmp_path).save(Snapshot(1, {"odd": shard}))
    assert names(tmp_path) == []


def test_ranks_that_disagree(tmp_path: Path, ranks_status: Call) -> None:
    answers = ranks_status("save_with_own_run_state", 2, directory=tmp_path)
    assert {answer["error"] for answer in answers} == {"run_state of rank 1 differs from that of rank 0"}
    assert names(tmp_path) == []


def test_two_writers_commit_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second job commits the step right before the first one renames: the first fails without a mixture."""
    first = Store(tmp_path)
    real = os.rename
    raced: list[str] = []

    def rename(source: Path, target: Path) -> None:
        if not raced:
            raced.append(Path(source).name)
            second = Store(tmp_path, log=raced.append)
            put(second, 1, values_of=1)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(CheckpointError, match="step-00000001: another writer committed it meanwhile"):
        put(first, 1, values_of=5)
    assert raced[1] == f"{raced[0]}: kept, because another process is writing it"
    assert names(tmp_path) == ["LATEST", "step-00000001"]
    found = first.latest()
    assert found is not None
    assert_holds(found, 1)


def test_leftovers_of_dead_writers_are_removed_and_of_live_ones_kept(tmp_path: Path) -> None:
    alive = Attempt.begin(tmp_path, 7)
    dead = Attempt.begin(tmp_path, 8)
    os.close(dead._manifest)
    (tmp_path / "step-00000009.0a0b0c.tmp").mkdir()
    (tmp_path / "step-00000003.0a0b0c.deleting").mkdir()
    (tmp_path / "step-00000003.0a0b0c.deleting" / "MANIFEST.json").write_text("{}")
    (tmp_path / "LATEST.0a0b0c.tmp").write_text("step")
    (tmp_path / "notes.tmp").mkdir()
    told: list[str] = []
    store = Store(tmp_path, log=told.append)
    assert names(tmp_path) == sorted(["notes.tmp", alive.path.name])
    assert told == [
        f"{alive.path.name}: kept, because another process is writing it",
        f"{dead.path.name}: removed, because its writer died before committing it",
    ]
    assert store.steps() == []
    alive.close()
    assert names(tmp_path) == ["notes.tmp"]


def test_pruning_keeps_good_and_new_steps(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=Rules(3))
    for step in (1, 2, 3, 4):
        put(store, step)
    assert store.steps() == [2, 3, 4]
    (tmp_path / "step-00000003" / "MANIFEST.json").write_bytes(b"")
    put(store, 5)
    assert store.steps() == [2, 3, 4, 5], "a broken one does not count as kept"
    put(Store(tmp_path), 1)
    assert store.steps() == [1, 4, 5], "what was just committed stays, even behind newer ones"
    with pytest.raises(CheckpointError, match="keep is 1; a whole number of at least 2"):
        Store(tmp_path, keep=Rules(1))


def test_a_latest_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    told: list[str] = []
    store = Store(tmp_path, log=told.append)
    (tmp_path / "LATEST").mkdir()
    put(store, 1)
    assert told == [f"step 1 is committed, but LATEST could not be written: {told[0].split(': ', 1)[1]}"]
    assert_holds(open_checkpoint(tmp_path / "step-00000001"), 1)


def test_a_reader_lists_again_if_its_steps_were_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for step in (1, 2):
        put(store, step)
    listings: list[list[int]] = []

    def list_then_prune(directory: Path) -> list[int]:
        listings.append(committed_steps(directory))
        for step in (3, 4):
            put(store, step)
        return listings[-1]

    monkeypatch.setattr(read, "committed_steps", list_then_prune)
    found = newest(tmp_path)
    assert listings == [[1, 2], [3, 4]]
    assert found is not None
    assert_holds(found, 4)


def test_pruning_never_leaves_a_reader_without_a_checkpoint(tmp_path: Path, ranks: Call) -> None:
    """While two ranks commit and prune, 25 steps at a time, a concurrent reader always finds a valid checkpoint."""
    put(Store(tmp_path), 1)
    seen: list[int] = []
    for first in range(2, 502, 25):
        steps = list(range(first, first + 25))
        writer = threading.Thread(target=ranks, args=("save", 2), kwargs={"directory": tmp_path, "steps": steps})
        writer.start()
        while writer.is_alive():
            found = newest(tmp_path)
            assert found is not None, f"after {len(seen)} good looks"
            seen.append(found.step)
        writer.join()
        if len(set(seen)) > 3:  # the reader looked while steps came and went, at once except on a busy machine
            break
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert Store(tmp_path).steps() == steps[-2:]
    assert json.loads((tmp_path / f"step-{steps[-1]:08d}" / "MANIFEST.json").read_text())["world_size"] == 2
