"""What `import trainyard` saves for a script: whole, verified, without pickle, in the trainer's format."""

from __future__ import annotations

import enum
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trainyard  # type: ignore[import-untyped]

from training import checkpoints
from training.agent import api
from training.agent.state import join, split
from training.checkpoint.errors import CheckpointError
from training.checkpoint.tier import Directory
from training.run import signing
from training.run.directory import RunDir
from training.run.failure import CODES


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory, and a process that has not used it yet."""
    monkeypatch.setenv("TRAINYARD_RUN", str(tmp_path / "run"))
    monkeypatch.setenv(signing.KEY_FILE, "")
    for name in ("RANK", "WORLD_SIZE", "JOB_NAME", "TRAINYARD_DRAIN_FILE"):
        monkeypatch.delenv(name, raising=False)
    fresh(monkeypatch)
    monkeypatch.setattr(api.Session, "listen", lambda _: None)  # the handler of signals is pytest's own
    return RunDir(tmp_path / "run")


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the session, as a process that starts again."""
    monkeypatch.setattr(api, "_session", None)


class Colour(enum.IntEnum):
    RED = 3


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def test_a_state_comes_back_as_it_was(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained()
    state = {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "nothing": torch.empty(0, 3),
        "values": [1, -2.5, True, None, "é\n", (), [[]], {}, math.inf, math.nan, 2**70, Colour.RED],
        7: {"python": random.getstate(), "numpy": np.random.default_rng(1).bit_generator.state},
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
    }
    own = {"rng": torch.get_rng_state(), "scalar": torch.tensor(4.0)}
    assert trainyard.latest() is None
    assert trainyard.save(state, 3, own=own) == run.checkpoints / "step-00000003"
    fresh(monkeypatch)
    found = trainyard.latest()
    assert found is not None
    assert (found.step, found.files) == (3, None)
    assert same(state, found.state)
    assert same(own, found.own)
    monkeypatch.setenv("RANK", "1")
    fresh(monkeypatch)
    more = trainyard.latest()
    assert more is not None
    assert (more.step, more.own) == (3, None), "a rank that did not save has no state of its own"
    again, other = trained()
    again.load_state_dict(found.state["model"])
    other.load_state_dict(found.state["optimizer"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [object()]}, "state/a/0: a value of type object cannot be saved"),
        ({(1, 2): 3}, "state: a key of type tuple"),
        ({"x": np.zeros(100_000)}, "state/x: an array of 100000 float64; give it as a tensor"),
        (torch.zeros(2, dtype=torch.complex64), "dtype torch.complex64 cannot be stored"),
        ({"a": {"b": torch.zeros(1)}, "a/b": torch.zeros(1)}, "state/a/b: two values have this name"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_its_place(value: Any, said: str, run: RunDir) -> None:
    with pytest.raises(CheckpointError, match=said.replace("(", r"\(")):
        trainyard.save(value, 1)
    assert not run.checkpoints.exists() or list(run.checkpoints.iterdir()) == []


def test_deep_or_damaged_states_are_one_error() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(CheckpointError, match="nested more than 100 times"):
        split(deep, {}, "state")
    for damaged in ([], ["code", "x"], ["dict", 3], ["dict", [[1]]], ["array", "O", [1], [1]], ["list"]):
        with pytest.raises(CheckpointError, match="damaged"):
            join(damaged, lambda name: name)


def write_two(target: Path) -> None:
    (target / "a").mkdir()
    (target / "a/weights.bin").write_bytes(b"123")
    (target / "notes.txt").write_text("hello")
    (target / "model.safetensors").write_text("any content, also under this name")


def test_files_of_the_script_are_verified_too(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        trainyard.save(None, step, write=write_two)
    listed = checkpoints.verified(Directory(run.checkpoints), None)["checkpoints"]
    assert [(one["step"], one["problem"], one["file_count"]) for one in listed] == [
        (1, None, 5),
        (2, None, 5),
    ]
    path = run.checkpoints / "step-00000002/files/a/weights.bin"
    path.write_bytes(b"124")
    fresh(monkeypatch)
    found = trainyard.latest()
    assert found is not None
    assert found.step == 1
    assert found.files is not None
    assert (found.files / "a/weights.bin").read_bytes() == b"123"
    assert (run.checkpoints / "step-00000002.bad").is_dir()


def test_a_link_in_place_of_a_directory_of_files_is_refused(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are right, but what the link leads to may change after the check."""
    trainyard.save(None, 1, write=write_two)
    directory = run.checkpoints / "step-00000001"
    (directory / "files").rename(tmp_path / "elsewhere")
    (directory / "files").symlink_to(tmp_path / "elsewhere")
    fresh(monkeypatch)
    assert trainyard.latest() is None


@pytest.mark.parametrize("kind", ["link", "fifo", "error"])
def test_a_write_that_fails_leaves_nothing(kind: str, run: RunDir) -> None:
    def write(target: Path) -> None:
        if kind == "error":
            raise KeyError("mine")
        if kind == "fifo":
            os.mkfifo(target / "x")
        else:
            (target / "x").symlink_to(__file__)

    trainyard.save({"a": 1}, 1)
    with pytest.raises(CheckpointError):
        trainyard.save({"a": 2}, 2, write=write)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["LATEST", "step-00000001"]


def test_a_damaged_tensor_is_never_taken(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        trainyard.save({"w": torch.full((4,), float(step))}, step)
    path = run.checkpoints / "step-00000002/rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    fresh(monkeypatch)
    found = trainyard.latest()
    assert found is not None
    assert found.state["w"].tolist() == [1.0] * 4


def test_the_newest_ones_are_kept(run: RunDir) -> None:
    for step in range(1, 7):
        trainyard.save({}, step, keep=3)
    assert [one["step"] for one in checkpoints.listed(Directory(run.checkpoints))["checkpoints"]] == [4, 5, 6]
    with pytest.raises(CheckpointError, match="at least 2"):
        trainyard.save({}, 7, keep=1)


def test_with_a_signing_key_an_unsigned_checkpoint_is_refused(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainyard.save({"a": 1}, 1)
    (tmp_path / "key").write_text("k" * 40)
    monkeypatch.setenv(signing.KEY_FILE, str(tmp_path / "key"))
    fresh(monkeypatch)
    with pytest.raises(CheckpointError, match="no checkpoint is signed with this job's key"):
        trainyard.latest()
    trainyard.save({"a": 2}, 2)
    found = trainyard.latest()
    assert found is not None
    assert found.state == {"a": 2}


def test_a_request_to_stop_ends_the_process_after_the_save(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_DRAIN_FILE", str(tmp_path / "drain"))
    assert not trainyard.stopping()
    trainyard.save({"a": 1}, 1)
    (tmp_path / "drain").touch()
    assert trainyard.stopping()
    with pytest.raises(trainyard.Drained) as stopped:
        trainyard.save({"a": 2}, 2)
    assert (stopped.value.code, stopped.value.step) == (CODES["drained"], 2)
    assert isinstance(stopped.value, SystemExit)
    assert [one["step"] for one in checkpoints.listed(Directory(run.checkpoints))["checkpoints"]] == [1, 2]


def test_ranks_that_have_not_met_and_a_missing_directory_are_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each rank would believe that it is alone, and write the same step."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for call in (trainyard.latest, trainyard.stopping, lambda: trainyard.save({}, 1)):
        with pytest.raises(CheckpointError, match="there are 2 ranks: call torch"):
            call()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("TRAINYARD_RUN")
    fresh(monkeypatch)
    trainyard.report(1, loss=2.0)
    assert not trainyard.stopping()
    with pytest.raises(CheckpointError, match="TRAINYARD_RUN is not set"):
        trainyard.latest()


@pytest.mark.parametrize(
    ("variables", "group", "rank"),
    [({}, None, 0), ({"SLURM_PROCID": "2"}, None, 2), ({}, 1, 1), ({"RANK": "0"}, 3, 3)],
)
def test_a_rank_that_a_script_spawns_is_that_of_its_process_group(
    variables: dict[str, str], group: int | None, rank: int, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `torch.multiprocessing.spawn`. In a pod, RANK may be the number of the pod."""
    trainyard.save({"step": 1}, np.int64(1), own={"rng": torch.zeros(1)})
    saved = trainyard.latest()
    begun: list[int] = []
    monkeypatch.setattr("training.run.heartbeat.begin", lambda _, number: begun.append(number))
    monkeypatch.setattr("training.run.heartbeat.enter", lambda *_: None)
    monkeypatch.setattr(api.Session, "record_exceptions", lambda _: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if group is not None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: group)
    trainyard.report(np.int64(4), loss=np.float32(0.5))
    monkeypatch.setattr(api.Session, "store", lambda _: SimpleNamespace(latest=lambda: saved._checkpoint))
    found = trainyard.latest()
    assert (begun, found.own is None) == ([rank], rank > 0)
    written = run.metrics.read_text() if run.metrics.exists() else ""
    assert ('"step": 4' in written and '"loss": 0.5' in written) == (rank == 0)


def test_ranks_that_meet_after_a_first_question_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    session = api.Session()
    alone = session.peers()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("training.checkpoint.peers._cpu_group", lambda: None)
    assert session.peers() is not alone


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'safe'"):
        trainyard.safe  # noqa: B018
