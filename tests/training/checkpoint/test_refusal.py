"""A damaged checkpoint is refused by name before anything of it is used; the one before it is loaded."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.values import assert_holds
from training.checkpoint import disk, verify
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import canonical, decode_manifest, decode_outline, read_manifest
from training.checkpoint.read import newest, open_checkpoint
from training.checkpoint.store import Store

FILES = [
    "MANIFEST.json",
    "rank-00000.safetensors",
    "rank-00000.json",
    "rank-00001.safetensors",
    "rank-00001.json",
]
NEW, OLD = "step-00000002", "step-00000001"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << (position % 8)
    path.write_bytes(data)


def reseal(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and give it a matching digest, which no accident can do."""
    path = directory / "MANIFEST.json"
    content = json.loads(path.read_text())
    del content["digest"]
    change(content)
    digest = hashlib.sha256(canonical(content)).hexdigest()
    path.write_bytes(canonical({**content, "digest": digest}) + b"\n")


def assert_falls_back(directory: Path, named: str) -> None:
    """Step 2 is refused with `named` in the reason and kept as evidence; step 1 is loaded."""
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(directory / NEW)
    beside = newest(directory)
    assert beside is not None
    assert beside.step == 1
    assert (directory / NEW).exists(), "a reader beside the job changes nothing"
    told: list[str] = []
    checkpoint = Store(directory, log=told.append).latest()
    assert checkpoint is not None
    assert_holds(checkpoint, 1)
    assert "step 2 is refused" in told[0]
    assert named in told[0]
    assert told[1:] == [f"step 2 is kept as {NEW}.bad"]
    assert (directory / f"{NEW}.bad").is_dir()
    assert Store(directory).steps() == [1]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_bit(checkpoints: Path, name: str, where: str) -> None:
    size = (checkpoints / NEW / name).stat().st_size
    flip(checkpoints / NEW / name, {"first": 0, "middle": size // 2, "last": size - 1}[where])
    assert_falls_back(checkpoints, name)


def test_control_without_digests_a_flipped_bit_loads(checkpoints: Path) -> None:
    name = "rank-00000.safetensors"
    flip(checkpoints / NEW / name, (checkpoints / NEW / name).stat().st_size - 1)
    unverified = open_checkpoint(checkpoints / NEW, verify=False)
    with pytest.raises(AssertionError):
        assert_holds(unverified, 2)


def test_every_bit_of_the_manifest_matters(checkpoints: Path) -> None:
    data = (checkpoints / NEW / "MANIFEST.json").read_bytes()
    decode_manifest(data)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(ValueError, match=r"."):
            decode_manifest(bytes(flipped))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", ["half", "nothing", "no file", "one byte more"])
def test_another_size(checkpoints: Path, name: str, left: str) -> None:
    path = checkpoints / NEW / name
    data = path.read_bytes()
    if left == "no file":
        path.unlink()
    else:
        path.write_bytes({"half": data[: len(data) // 2], "nothing": b"", "one byte more": data + b"x"}[left])
    assert_falls_back(checkpoints, name)


@pytest.mark.parametrize("content", [b"{}", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"digest": 1}'])
def test_not_a_manifest(checkpoints: Path, content: bytes) -> None:
    (checkpoints / NEW / "MANIFEST.json").write_bytes(content)
    assert_falls_back(checkpoints, "MANIFEST.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"{}"])
def test_both_readers_say_that_the_digest_is_missing(content: bytes) -> None:
    for decode in (decode_manifest, decode_outline):
        with pytest.raises(ValueError, match=r"^it has no digest$"):
            decode(content)


def test_manifest_of_another_step(checkpoints: Path) -> None:
    shutil.copy(checkpoints / OLD / "MANIFEST.json", checkpoints / NEW / "MANIFEST.json")
    assert_falls_back(checkpoints, "MANIFEST.json: is the manifest of step 1")


def test_manifest_of_another_world_size(checkpoints: Path, ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    ranks("save", 3, directory=tmp_path / "other", steps=[2])
    shutil.copy(tmp_path / "other" / NEW / "MANIFEST.json", checkpoints / NEW / "MANIFEST.json")
    assert_falls_back(checkpoints, "rank-0000")


def test_files_of_another_rank(checkpoints: Path) -> None:
    one, other = (checkpoints / NEW / f"rank-0000{rank}.json" for rank in (0, 1))
    shutil.copy(one, other)
    assert_falls_back(checkpoints, "rank-00001.json: its content does not match its digest")


def claim_other_rows(content: dict[str, Any]) -> None:
    content["tensors"]["model.embedding"]["shards"][0]["rows"] = [0, 3]


def claim_other_world(content: dict[str, Any]) -> None:
    content["world_size"] = 1


def claim_other_format(content: dict[str, Any]) -> None:
    content["format"] = 99


def claim_file_outside(content: dict[str, Any]) -> None:
    content["files"]["../secret"] = content["files"].pop("rank-00001.json")


def claim_other_dtype(content: dict[str, Any]) -> None:
    content["tensors"]["model.embedding"]["dtype"] = "I32"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (claim_other_rows, "holds rows from 4, not from 3"),
        (claim_other_world, "it lists 4 files, world size 1 has 2"),
        (claim_other_format, "format 99 is not the format 1"),
        (claim_file_outside, "it lists 4 files"),
        (claim_other_dtype, "rank-00000.safetensors: header and manifest disagree on 'model.embedding'"),
    ],
)
def test_a_manifest_that_contradicts_itself_or_the_headers(
    checkpoints: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    reseal(checkpoints / NEW, change)
    assert_falls_back(checkpoints, reason)


def test_a_header_that_contradicts_the_manifest(checkpoints: Path) -> None:
    """The file's digest matches, but its header does not match the manifest."""
    path = checkpoints / NEW / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes().replace(b"model.bias", b"model.bogs"))

    def redigest(content: dict[str, Any]) -> None:
        content["files"][path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    reseal(checkpoints / NEW, redigest)
    assert_falls_back(checkpoints, "tensor 'model.bias' is missing in the header")


def test_without_a_good_checkpoint_there_is_nothing_to_load(checkpoints: Path) -> None:
    for step in (OLD, NEW):
        flip(checkpoints / step / "rank-00000.json", 3)
    told: list[str] = []
    assert newest(checkpoints, log=told.append) is None
    assert len(told) == 2
    store = Store(checkpoints, log=told.append)
    assert store.latest() is None
    assert store.steps() == []
    assert store.latest() is None
    assert newest(checkpoints / "never") is None


@pytest.mark.parametrize("content", [None, b"", b"step-00000001\n", b"\xff nonsense", b"step-99999999\n"])
def test_latest_file_does_not_matter(checkpoints: Path, content: bytes | None) -> None:
    (checkpoints / "LATEST").unlink() if content is None else (checkpoints / "LATEST").write_bytes(content)
    found = Store(checkpoints).latest()
    assert found is not None
    assert_holds(found, 2)


def test_all_ranks_agree(checkpoints: Path, ranks: Callable[..., list[Any]]) -> None:
    """Only one rank hashes the damaged file, but all fall back to the same step."""
    flip(checkpoints / NEW / "rank-00001.safetensors", 200)
    found = ranks("load", 3, directory=checkpoints)
    assert [answer["step"] for answer in found] == [1, 1, 1]
    assert all(answer["equal"] for answer in found)
    assert "rank-00001.safetensors: its content does not match its digest" in found[0]["told"][0]
    assert found[1]["told"] == found[2]["told"] == []


def test_a_step_that_one_rank_does_not_see_stays(
    checkpoints: Path, ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """All ranks take the step before, and the whole one is not set aside; the control is damaged on both."""
    other = Path(shutil.copytree(checkpoints, tmp_path / "other" / "checkpoints"))
    shutil.rmtree(other / NEW)
    found = ranks("load_where", 2, directories=[checkpoints, other], wait_s=0.3)
    assert [answer["step"] for answer in found] == [1, 1]
    assert "do all pods mount the same volume?" in found[0]["told"][1]
    assert (checkpoints / NEW).is_dir()
    flip(checkpoints / NEW / "rank-00000.safetensors", 200)
    found = ranks("load_where", 2, directories=[checkpoints, other], wait_s=0.3)
    assert [answer["step"] for answer in found] == [1, 1]
    assert (checkpoints / f"{NEW}.bad").is_dir()


def test_each_file_is_hashed_once(checkpoints: Path) -> None:
    manifest = read_manifest(checkpoints / NEW)
    for world in (1, 2, 3, 8):
        shares = [verify.share_of(manifest, rank, world) for rank in range(world)]
        assert sorted(name for share in shares for name in share) == sorted(manifest.files)


@pytest.mark.parametrize(("failures", "step"), [(2, 2), (3, 1)])
def test_a_transient_read_error_is_retried(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, failures: int, step: int
) -> None:
    """EIO of a network file system: three attempts, then the step counts as unreadable."""
    tries: list[Path] = []
    real = disk.file_digest

    def flaky(path: Path) -> str:
        if path.parent.name == NEW and path.name == "rank-00000.safetensors":
            tries.append(path)
            if len(tries) <= failures:
                error = OSError(errno.EIO, "Input/output error")
                raise CheckpointError(f"{path.name}: Input/output error") from error
        return real(path)

    monkeypatch.setattr(verify, "file_digest", flaky)
    monkeypatch.setattr(verify, "_WAITS", (0.0, 0.0))
    told: list[str] = []
    found = Store(checkpoints, log=told.append).latest()
    assert found is not None
    assert found.step == step
    assert len(tries) == 3
    assert bool(told) == (step == 1)
