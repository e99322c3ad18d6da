"""Hostile files of a run directory: records, heartbeats, published weights."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.security.hostile import LIMIT_BYTES, ODD
from training.checkpoint.errors import CheckpointError
from training.pod import hang_detector
from training.run import failure, heartbeat
from training.run.directory import RunDir, read_json
from training.weights.errors import WeightsError
from training.weights.tensors import SafetensorsDirectory

pytestmark = pytest.mark.usefixtures("bounded")


def deeply(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def nested(path: Path) -> None:
    path.write_bytes(b"{" + b'"a":' * 100_000)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


RECORDS: list[Callable[[Path], None]] = [
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    deeply,
    nested,
    sparse,
]


@pytest.mark.parametrize("make", RECORDS, ids=["fifo", "zero", "deep", "nested", "large"])
def test_hostile_records(tmp_path: Path, make: Callable[[Path], None]) -> None:
    run = RunDir(tmp_path)
    run.heartbeat.mkdir()
    run.failures.mkdir()
    beat, failed = heartbeat.path_of(run.heartbeat, 0), run.failures / "99999-rank-00000.json"
    for path in (beat, failed, run.metrics, run.end):
        make(path)
    assert heartbeat.read(beat) is None
    assert failure.since(run, 0) == []
    assert run.last_record() == {}
    with pytest.raises((OSError, ValueError)):
        read_json(run.end)


@pytest.mark.parametrize("pid", [-1, 0, 1, "7", 1.5, None, True])
def test_a_heartbeat_names_a_process(tmp_path: Path, pid: Any) -> None:
    heartbeat.begin(tmp_path, 0)
    path = heartbeat.path_of(tmp_path, 0)
    assert heartbeat.read(path) is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": pid}))
    assert heartbeat.read(path) is None


def test_a_heartbeat_kills_no_foreign_process() -> None:
    """A forged heartbeat names another process of this machine; the hang detector leaves it alone."""
    command = ["sh", "-c", "sleep 60 >/dev/null & echo $!"]
    foreign = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    with subprocess.Popen(["sleep", "60"]) as own:
        hang_detector.kill(own.pid)
        hang_detector.kill(foreign)
    assert own.returncode == -signal.SIGKILL
    os.kill(foreign, 0)  # it lives
    os.kill(foreign, signal.SIGTERM)


def safetensors(header: Any, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * 64


def tensor(first: Any, end: Any, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        safetensors({}, 2**63),
        safetensors({}, 2**64 - 1),
        safetensors(b"[" * 100_000),
        safetensors(b"[" + b"[]," * 2_000_000 + b"[]]"),
        safetensors({"a": tensor(0, 8), "b": tensor(4, 12)}),
        safetensors({"a": tensor(0, 2**62, shape=[2**60])}),
        safetensors({"a": tensor(-8, 0)}),
        safetensors({"a": tensor(0, 8, dtype=["F32"])}),
        safetensors({"a": tensor(0, 8, shape=[2.0])}),
        safetensors({"a": tensor(0, 8, shape="12")}),
        safetensors({"a": tensor("0", 8)}),
        safetensors({"a": tensor(0, 8, shape=[2**32, 2**32])}),
    ],
)
def test_hostile_weights(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    tracemalloc.start()
    with pytest.raises((CheckpointError, WeightsError)):
        SafetensorsDirectory(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES
    tracemalloc.stop()
    (tmp_path / "model.safetensors").write_bytes(save({"a": torch.zeros(2)}))
    assert list(SafetensorsDirectory(tmp_path).kinds) == ["a"]


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a\0b", "a\nb", "", "..", 7])
def test_a_hostile_index(tmp_path: Path, file: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(WeightsError):
        SafetensorsDirectory(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("make", ODD[:4], ids=["fifo", "directory", "zero", "dangling"])
def test_weights_that_are_no_file(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path / name)
    with pytest.raises((CheckpointError, WeightsError)):
        SafetensorsDirectory(tmp_path)
