"""Hostile manifests and files of a checkpoint end in one error, and the older good step is taken."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.security.hostile import NEW, ODD, OLD, assert_older, changed, content_of, put, replaced, seal
from tests.training.checkpoint.values import assert_holds
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import MANIFEST, committed_steps, read_manifest
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store
from training.trainer import state as trainer_state

pytestmark = pytest.mark.usefixtures("bounded")

HOSTILE: list[Any] = [
    None, True, -1, 0, 1.5, 10**9, 2**63, 10**400, "", "x" * 100_000, "\0", "../x", "a\nb", "/etc/passwd",
    "F128", [], [[]], [-1], [2**62, 2**62], {}, {"x": {}}, [1, 2, 3],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of a JSON document; of equal list elements the first."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inner:
        if path not in (("meta",), ("run_state",)) and (path != ("tensors",) or key == "model.embedding"):
            yield from places(each, (*path, key))


def test_every_key_with_every_hostile_value(steps: Path) -> None:
    """Each resealed mutation is one CheckpointError, or it changed nothing that a reader believes."""
    good = content_of(steps / NEW)
    mutants = [changed(good, path, value) for path in places(good) for value in HOSTILE]
    mutants += [changed(good, path, None, drop=True) for path in places(good)]
    refused: list[str] = []
    for mutant in mutants:
        seal(steps / NEW, mutant)
        try:
            manifest = read_manifest(steps / NEW)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            free = ("meta", "run_state", "attempt", "sha256")
            same = json.loads(manifest.encode())
            del same["digest"]
            assert same == mutant
            assert all(same[key] == good[key] for key in good if key not in (*free, "files", "tensors"))
    assert len(refused) > 0.8 * len(mutants)
    assert [line[:200] for line in refused if len(line) > 600 or "\n" in line] == []


@pytest.mark.parametrize("value", [10**6, 10**9, 10**18, 2**63 - 1])
def test_a_manifest_of_very_many_ranks(steps: Path, value: int) -> None:
    seal(steps / NEW, changed(content_of(steps / NEW), ("world_size",), value))
    assert "world size" in assert_older(steps)[0]


@pytest.mark.parametrize(
    ("key", "value"), [("dtype", "F128"), ("shape", [2**31, 2**31, 4]), ("shape", [7, 2**40]), ("dtype", 7)]
)
def test_a_tensor_that_cannot_be(steps: Path, key: str, value: Any) -> None:
    seal(steps / NEW, changed(content_of(steps / NEW), ("tensors", "model.embedding", key), value))
    assert_older(steps)


def tiny_values(directory: Path) -> None:
    (directory / MANIFEST).write_bytes(b"[" + b"[]," * 600_000 + b"[]]")


def deep(directory: Path) -> None:
    (directory / MANIFEST).write_bytes(b'{"digest":' * 100_000 + b"1" + b"}" * 100_000)


def infinite(directory: Path) -> None:
    text = (directory / MANIFEST).read_text().replace('"run_state":{"tokens":2000}', '"run_state":{"tokens":NaN}')
    (directory / MANIFEST).write_text(text)


def twice(directory: Path) -> None:
    text = (directory / MANIFEST).read_text().replace('"world_size":1', '"world_size":2,"world_size":1')
    (directory / MANIFEST).write_text(text)


def large(directory: Path) -> None:
    os.truncate(directory / MANIFEST, 100 << 20)


@pytest.mark.parametrize("make", [tiny_values, deep, infinite, twice, large])
def test_a_manifest_that_is_a_bomb(steps: Path, make: Callable[[Path], None]) -> None:
    make(steps / NEW)
    assert_older(steps)


@pytest.mark.parametrize("name", [MANIFEST, "rank-00000.safetensors", "rank-00000.json"])
@pytest.mark.parametrize("make", ODD, ids=["fifo", "directory", "zero", "dangling", "loop", "link"])
def test_a_file_that_is_no_file(steps: Path, make: Callable[[Path], None], name: str) -> None:
    """A link is refused even if it leads to the right bytes: what it leads to may change."""
    shutil.copytree(steps / NEW, steps.parent / "elsewhere")
    replaced(make, name)(steps / NEW)
    assert_older(steps)


def test_a_state_that_is_no_json(steps: Path) -> None:
    """The digest is right and the content is not: reading it is an error, not a crash."""
    for text in (b"[" * 100_000, b"\xff", b"[]", b"NaN"):
        path = steps / NEW / "rank-00000.json"
        path.write_bytes(text)
        content = content_of(steps / NEW)
        content["files"][path.name] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        seal(steps / NEW, content)
        with pytest.raises(CheckpointError):
            open_checkpoint(steps / NEW).rank_state(0)


@pytest.mark.parametrize(
    "lie", [{}, {"counters": 3}, {"counters": {"step": 10**9, "tokens": 0}}, {"data": {"position": -1}}]
)
def test_a_state_that_the_trainer_cannot_restore(steps: Path, lie: dict[str, Any]) -> None:
    """A resealed state without a position, or of another step: the trainer takes the older one."""
    for step in (1, 2):
        good = {
            "schedule": {"last_epoch": step},
            "data": {"position": 8},
            "counters": {"step": step, "tokens": 9},
        }
        saved = good if step == 1 else {**good, **lie} if lie else {}
        directory = steps / f"step-{step:08d}"
        seal(directory, changed(content_of(directory), ("run_state",), saved))
    assert newest(steps).step == 2  # type: ignore[union-attr]
    found = Store(steps, log=lambda line: None).latest(partial(trainer_state.check, rank=0))
    assert found is not None
    assert found.step == 1


def test_names_that_are_no_steps(steps: Path) -> None:
    for name in ("step-٠٠٠٠٠٠٠٣", "step-000000003", "step-99999999999999999999", "step-00000003\n"):
        (steps / name).mkdir()
    (steps / "step-00000004").symlink_to(steps / NEW)
    (steps / "step-00000005").write_text("a file")
    assert committed_steps(steps) == [1, 2]
    store = Store(steps, log=lambda line: None)
    for step in (4, 5):  # what holds a step's name is moved aside
        put(store, step)
    found = store.latest()
    assert found is not None
    assert_holds(found, 5)
    assert [path.is_symlink() for path in steps.glob("step-00000004*")] == [False], "a link is not kept as evidence"


def test_nothing_outside_is_touched(steps: Path) -> None:
    """Links in the directory are removed or renamed; what they lead to stays."""
    outside = steps.parent / "outside"
    outside.mkdir()
    (outside / MANIFEST).write_text("mine")
    for name in ("step-00000007.aa.tmp", "step-00000007.aa.deleting", "step-00000000.bad", "LATEST.aa.tmp"):
        (steps / name).symlink_to(outside)
    (steps / f"{NEW}.bad").symlink_to("nowhere")
    (steps / "step-00000008.aa.tmp").mkdir()
    os.mkfifo(steps / "step-00000008.aa.tmp" / MANIFEST)
    (steps / NEW / MANIFEST).write_text("{}")
    assert_older(steps)
    for step in (3, 4):
        put(Store(steps, log=lambda line: None), step)
    assert (outside / MANIFEST).read_text() == "mine"
    assert [path.name for path in steps.iterdir() if path.is_symlink()] == []
    assert not list(steps.glob("*.tmp")) + list(steps.glob("*.deleting"))


def test_commands_end_in_one_line(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lies: dict[str, Any] = {"world_size": 10**9, "run_state": {"counters": []}, "meta": {"versions": 3}}
    for key, lie in lies.items():
        seal(steps / NEW, changed(content_of(steps / OLD), (key,), lie) | {"step": 2})
        for what in ("list", "show", "verify"):
            code = 0
            try:
                checkpoints.main([what, f"--run={steps.parent}"])
            except SystemExit as ended:
                code = int(ended.code or 0)
            printed = capsys.readouterr()
            assert (printed.err, printed.out.count("\n")) == ("", 1)
            assert (code == 2) == ("error" in json.loads(printed.out))
