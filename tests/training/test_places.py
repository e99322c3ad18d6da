"""A run with several places for its checkpoints: it continues from each of them, and refuses what cannot work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.parts import moto
from tests.training.inprocess import StopAfter, Texts, losses, run
from training.checkpoint.s3 import Bucket
from training.config import ConfigError, apply_override, load_texts

PLACE = "s3://places/team"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    with moto.server() as url:
        moto.use(url, monkeypatch, tmp_path)
        client = boto3.client("s3")
        client.create_bucket(Bucket="places")
        for item in client.list_objects_v2(Bucket="places").get("Contents", []):  # moto's state is the process's
            client.delete_object(Bucket="places", Key=item["Key"])
        yield client


def keys(tmp_path: Path) -> tuple[str, ...]:
    local = f"checkpoint.tiers.local={{every: 1, path: {tmp_path / 'memory'}}}"
    return ("checkpoint.every=4", local, "checkpoint.tiers.s3={every: 8, to: " + PLACE + "}", "train.steps=12")


def test_a_run_continues_from_memory_and_from_the_bucket_bit_for_bit(
    texts: Texts, data_root: Path, tmp_path: Path, bucket: Any
) -> None:
    whole = run(texts, ("checkpoint.every=4", "train.steps=12"), tmp_path / "whole", data_root)
    stopped = run(texts, keys(tmp_path), tmp_path / "tiny", data_root, StopAfter(10))
    assert sorted(path.name for path in stopped.checkpoints.glob("step-*")) == ["step-00000008", "step-00000010"]
    assert Bucket(f"{PLACE}/tiny").steps() == [8]
    for step in (8, 10):  # only the memory has step 10 now
        shutil.rmtree(stopped.checkpoints / f"step-{step:08d}")
    done = run(texts, keys(tmp_path), tmp_path / "tiny", data_root)
    assert losses(done) == losses(whole)
    assert Bucket(f"{PLACE}/tiny").steps() == [8, 12]

    shutil.rmtree(tmp_path / "memory")
    shutil.rmtree(done.checkpoints)
    more = tuple(each.replace("steps=12", "steps=14") for each in keys(tmp_path))
    longer = run(texts, more, tmp_path / "tiny", data_root)
    assert losses(longer)[:12] == losses(whole), "step 12 came from the bucket"
    assert len(losses(longer)) == 14


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("checkpoint.tiers.local={every: 3, path: /x}",
         "checkpoint.tiers.local.every 3 does not divide checkpoint.every 4; nearest value: 2"),
        ("checkpoint.tiers.local={every: 0, path: /x}",
         "checkpoint.tiers.local.every is 0: input should be greater than 0; nearest value: 1"),
        ("checkpoint.tiers.s3={every: 0, to: s3://bucket/x}", "input should be greater than 0; nearest value: 4"),
        ("checkpoint.tiers.s3={every: '9', to: s3://bucket/x}", "is '9': a whole number is needed; nearest value: 8"),
        ("checkpoint.tiers.local={every: 2, path: /x/../y}", "is not an absolute path; nearest value: /y"),
        ("checkpoint.tiers.local={every: 2, path: x}", "'x' is not an absolute path; nearest value: /x"),
        ("checkpoint.tiers.s3={every: 6, to: s3://bucket/x}",
         "checkpoint.tiers.s3.every 6 is not a multiple of checkpoint.every 4; nearest value: 8"),
        ("checkpoint.tiers.s3={every: 8, to: s3://bucket/x, keep_every: 12}",
         "checkpoint.tiers.s3.keep_every 12 is not a multiple of checkpoint.tiers.s3.every 8; nearest value: 16"),
        ("checkpoint.tiers.s3={every: 8, to: s3://bucket/runs/..}", "is not a prefix in a bucket"),
        ("checkpoint.tiers.s3={every: 8, to: bucket}", "'bucket' is not a prefix in a bucket (whose name"),
        ("checkpoint.tiers.s3={every: 8, to: 'https://My_bucket/x'}", "; nearest value: s3://my-bucket/x"),
    ],
)  # fmt: skip
def test_a_wrong_place_is_one_error_with_the_nearest_value(texts: Texts, change: str, message: str) -> None:
    texts = apply_override(texts, "checkpoint.every=4")
    with pytest.raises(ConfigError) as refused:
        load_texts(apply_override(texts, change))
    assert message in str(refused.value)


def test_a_place_that_cannot_be_written_ends_the_run_before_its_first_step(
    texts: Texts, data_root: Path, tmp_path: Path, bucket: Any
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for change, message in (
        (f"checkpoint.tiers.local={{every: 1, path: {tmp_path / 'file'}}}", r"tiers\.local\.path is .*/dev/shm"),
        ("checkpoint.tiers.s3={every: 8, to: s3://no-such-bucket/x}", r"tiers\.s3\.to is .*there is no such bucket"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(texts, ("checkpoint.every=4", change), tmp_path / "run", data_root)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
