"""A key refuses forged checkpoints: a signature is for one run and one step."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.hostile import NEW, OLD, assert_older, content_of, filled, put, replaced, seal
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import SIGNATURE, committed_steps
from training.checkpoint.read import open_checkpoint
from training.checkpoint.store import Store
from training.run import signing

pytestmark = pytest.mark.usefixtures("bounded")

KEY, OTHER = b"k" * 44, b"o" * 44


def forge(directory: Path) -> None:
    """Other weights with the right digests: everything that a writer without the key can do."""
    path = directory / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + b"\x01" * 8)
    content = content_of(directory)
    content["files"][path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    seal(directory, content)


def test_rewritten_weights(steps: Path, tmp_path: Path, give: Callable[..., None]) -> None:
    forge(steps / NEW)
    control = Store(steps).latest()
    assert control is not None
    assert control.step == 2, "without a key, digests alone decide"
    give(KEY)
    signed = filled(tmp_path / "signed")
    forge(signed / NEW)
    told = assert_older(signed)
    assert "is not signed with this job's key" in told[0]
    assert (signed / NEW).is_dir(), "the key may be the wrong one, so that nothing is moved"


def drop(signed: Path, other: Path) -> None:
    (signed / NEW / SIGNATURE).unlink()


def of_other_run(signed: Path, other: Path) -> None:
    shutil.rmtree(signed / NEW)
    shutil.copytree(other / NEW, signed / NEW)


def renamed(signed: Path, other: Path) -> None:
    of_other_run(signed, other)
    text = (signed / NEW / SIGNATURE).read_text()
    (signed / NEW / SIGNATURE).write_text(text.replace('"other"', '"signed"'))


def of_other_step(signed: Path, other: Path) -> None:
    shutil.rmtree(signed / NEW)
    shutil.copytree(signed / OLD, signed / NEW)


def only_signature(signed: Path, other: Path) -> None:
    shutil.copy(signed / OLD / SIGNATURE, signed / NEW / SIGNATURE)


def nonsense(signed: Path, other: Path) -> None:
    (signed / NEW / SIGNATURE).write_bytes(b'{"run":"signed","signature":"\xc3\xa9"}')


def fifo(signed: Path, other: Path) -> None:
    replaced(os.mkfifo, SIGNATURE)(signed / NEW)


@pytest.mark.parametrize("attack", [drop, of_other_run, renamed, of_other_step, only_signature, nonsense, fifo])
def test_a_signature_is_for_one_run_and_one_step(
    attack: Callable[[Path, Path], None], tmp_path: Path, give: Callable[..., None]
) -> None:
    give(KEY)
    signed, other = filled(tmp_path / "signed"), filled(tmp_path / "other")
    attack(signed, other)
    assert_older(signed)


def test_only_unsigned_checkpoints_end_the_run(steps: Path, give: Callable[..., None]) -> None:
    """A start from scratch beside them would hide a lost key, or an attack."""
    give(KEY)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no checkpoint is signed with this job's key for run job"):
            Store(steps, log=lambda line: None).latest()
    assert committed_steps(steps) == [1, 2]


def test_keys_are_replaced_one_by_one(tmp_path: Path, give: Callable[..., None]) -> None:
    give(KEY)
    signed = filled(tmp_path / "signed")
    give(OTHER, KEY)
    put(Store(signed), 3)
    assert open_checkpoint(signed / NEW).step == 2
    give(OTHER)
    assert open_checkpoint(signed / "step-00000003").step == 3
    with pytest.raises(CheckpointError, match="not signed with this job's key"):
        open_checkpoint(signed / NEW)
    give()
    assert open_checkpoint(signed / NEW).step == 2


def test_a_signature_serves_one_purpose() -> None:
    signature = signing.sign(KEY, "a", b"data")
    assert signing.verify((OTHER, KEY), "a", b"data", signature)
    assert not signing.verify((KEY,), "b", b"data", signature)
    assert not signing.verify((KEY,), "a", b"datum", signature)
    assert not signing.verify((), "a", b"data", signature)
    assert KEY.hex() not in signature


@pytest.mark.parametrize("content", [None, b"", b"secret", b"\n", b"s" * 32 + b"\nsecret", b"secret" * 1000])
def test_an_unusable_key_file(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(signing.KEY_FILE, str(path))
    with pytest.raises(signing.SigningError) as error:
        Store(tmp_path / "job" / "checkpoints")
    assert str(path) in str(error.value)
    assert "secret" not in str(error.value)


def test_verify_says_who_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str], give: Callable[..., None]) -> None:
    give(KEY)
    run = filled(tmp_path / "signed").parent
    checkpoints.main(["verify", f"--run={run}"])
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [each["signed_by"] for each in found] == [signing.key_id(KEY)] * 2
    give()
    checkpoints.main(["verify", f"--run={run}"])
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["signed_by"] is None
