"""A run with two checkpoints, what an attacker makes of it, and the proof that the older one is taken."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.values import assert_holds, snapshot
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import MANIFEST, canonical
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store
from training.run import signing

OLD, NEW = "step-00000001", "step-00000002"
LIMIT_S, LIMIT_BYTES = 10, 100 << 20


def put(store: Store, step: int) -> None:
    store.save(snapshot(step))


def filled(run: Path) -> Path:
    """The checkpoint directory of a run with steps 1 and 2, saved with the present key, if any."""
    store = Store(run / "checkpoints", log=lambda line: None)
    put(store, 1)
    put(store, 2)
    return run / "checkpoints"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    return filled(tmp_path / "job")


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End a test that waits for a FIFO; no key unless a test gives one."""
    monkeypatch.delenv("JOB_NAME", raising=False)
    monkeypatch.setenv(signing.KEY_FILE, "")

    def late(*_: object) -> None:
        raise TimeoutError("a read of a hostile file did not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Give this process these keys, the first one to sign with; none takes them away."""

    def give(*keys: bytes) -> None:
        path = tmp_path / "signing-key"
        path.write_bytes(b"\n".join(keys) + b"\n")
        monkeypatch.setenv(signing.KEY_FILE, str(path) if keys else "")

    return give


def content_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    del content["digest"]
    return content


def seal(directory: Path, content: Any) -> None:
    """Write a manifest with a matching digest, as an attacker can."""
    digest = hashlib.sha256(canonical(content)).hexdigest()
    (directory / MANIFEST).write_bytes(canonical({**content, "digest": digest}) + b"\n")


def assert_older(steps: Path) -> list[str]:
    """Readers and trainers take step 1; return what the trainer was told."""
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        open_checkpoint(steps / NEW)
    beside = newest(steps)
    assert beside is not None
    assert beside.step == 1
    told: list[str] = []
    found = Store(steps, log=told.append).latest()
    assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES
    tracemalloc.stop()
    assert found is not None
    assert_holds(found, 1)
    assert "step 2 is refused" in told[0]
    return told


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any, *, drop: bool = False) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    node: Any = changed
    for key in path[:-1]:
        node = node[key]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


def replaced(make: Callable[[Path], None], name: str = MANIFEST) -> Callable[[Path], None]:
    def replace(directory: Path) -> None:
        (directory / name).unlink()
        make(directory / name)

    return replace


ODD: list[Callable[[Path], None]] = [
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("loop-" + path.name),
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to(f"../../elsewhere/{path.name}"),
]
