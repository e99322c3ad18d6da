"""Steps in a bucket: whole or absent, committed once, read by every command. The servers are versitygw and moto."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.parts import moto, versitygw
from tests.parts.gomodule import CannotBuild
from tests.training.checkpoint.ranks import put
from tests.training.checkpoint.values import assert_holds
from tools import cli
from training.checkpoint.copy import commit, copy
from training.checkpoint.copy import put as put_files
from training.checkpoint.errors import CheckpointError, UnreachableError
from training.checkpoint.layout import MANIFEST
from training.checkpoint.read import open_checkpoint
from training.checkpoint.s3 import PART, Bucket
from training.checkpoint.store import Store
from training.checkpoint.tier import Directory
from training.checkpoint.write import Snapshot
from training.run.directory import RunDir
from training.run.signing import KEY_FILE

PLACE = "s3://checkpoints/team/tiny"


@pytest.fixture(params=["versitygw", "moto"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A client of a new bucket on each server."""
    if request.param == "moto":
        with moto.server() as url:
            yield _opened(url, monkeypatch, tmp_path)
        return
    try:
        program = versitygw.built()
    except CannotBuild as reason:
        pytest.skip(str(reason))
    if program is None:
        pytest.skip("versitygw is not built: make test-storage builds it")
    with versitygw.server(program, tmp_path / "served") as url:
        yield _opened(url, monkeypatch, tmp_path, versitygw.KEY, versitygw.SECRET)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[moto.Faulty]:
    app = moto.Faulty()
    with moto.server(app) as url:
        _opened(url, monkeypatch, tmp_path)
        app.requests.clear()
        yield app


def _opened(url: str, patch: pytest.MonkeyPatch, tmp_path: Path, *keys: str) -> Any:
    moto.use(url, patch, tmp_path, *keys)
    client = boto3.client("s3")
    client.create_bucket(Bucket="checkpoints")
    for item in client.list_objects_v2(Bucket="checkpoints").get("Contents", []):  # moto's state is the process's
        client.delete_object(Bucket="checkpoints", Key=item["Key"])
    return client


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "tiny")
    store = Store(run.checkpoints)
    for step in (10, 20):
        put(store, step, sharded=False)
    return run


def objects() -> list[str]:
    found = boto3.client("s3").list_objects_v2(Bucket="checkpoints").get("Contents", [])
    return [item["Key"].removeprefix("team/tiny/") for item in found]


def test_a_step_goes_there_and_comes_back_bit_for_bit(bucket: Any, run: RunDir, tmp_path: Path) -> None:
    there = Bucket(PLACE)
    assert there.steps() == []
    for step in (10, 20):
        assert copy(Directory(run.checkpoints), there, step)
    assert not copy(Directory(run.checkpoints), there, 20), "it is there already"
    assert there.steps() == [10, 20]
    back = tmp_path / "back" / "checkpoints"
    assert copy(Bucket(PLACE), Directory(back), 20)
    for name in (MANIFEST, "rank-00000.safetensors", "rank-00000.json"):
        path = Path("step-00000020", name)
        assert (back / path).read_bytes() == (run.checkpoints / path).read_bytes()
    assert_holds(open_checkpoint(back / "step-00000020"), 20)


def test_a_large_file_goes_in_parts_whose_checksums_are_compared(bucket: Any, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "large")

    def write(directory: Path) -> None:
        (directory / "large").write_bytes(bytes(range(256)) * (2 * PART // 256) + b"rest")

    Store(run.checkpoints).save(Snapshot(1, {}, files=write))
    there = Bucket("s3://checkpoints/large")
    copy(Directory(run.checkpoints), there, 1)
    (key,) = [item["Key"] for item in bucket.list_objects_v2(Bucket="checkpoints", Prefix="large/")["Contents"]
              if item["Key"].endswith("/large")]  # fmt: skip
    assert bucket.head_object(Bucket="checkpoints", Key=key, PartNumber=1)["PartsCount"] == 3
    there.check_contents(there.sealed(1).manifest())


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("k" * 32)
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "key"))


def test_of_two_writers_exactly_one_commits(bucket: Any, tmp_path: Path, signed: None) -> None:
    """Eight writers have a step each of their own; the losers leave nothing behind."""
    stores = [RunDir(tmp_path / f"writer-{number}" / "tiny").checkpoints for number in range(8)]
    for directory in stores:
        put(Store(directory), 30, sharded=False)

    def write(directory: Path) -> str:
        source, target = Directory(directory), Bucket(PLACE)
        found = source.sealed(30)
        manifest = found.manifest()
        attempt = target.begin(manifest)
        try:
            put_files(source, target, attempt, manifest, manifest.files)
            commit(found, target, attempt)
        except CheckpointError as error:
            return str(error)
        finally:
            target.abandon(attempt)
        return "committed"

    with ThreadPoolExecutor(len(stores)) as pool:
        told = list(pool.map(write, stores))
    assert sorted(told) == ["committed", *["step-00000030: another writer committed it meanwhile"] * 7]
    assert len(objects()) == 4, "the manifest, its signature and two files"
    there = Bucket(PLACE)
    there.check_contents(there.sealed(30).manifest())


def test_a_file_that_is_not_the_manifests_is_never_committed(bucket: Any, run: RunDir) -> None:
    path = run.checkpoints / "step-00000020" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors: its content does not match its digest"):
        copy(Directory(run.checkpoints), Bucket(PLACE), 20)
    assert objects() == []


def test_damage_in_the_bucket_is_named_and_not_fetched(bucket: Any, run: RunDir, tmp_path: Path) -> None:
    there = Bucket(PLACE)
    copy(Directory(run.checkpoints), there, 20)
    (name,) = [name for name in objects() if name.endswith(".safetensors")]
    whole = bucket.get_object(Bucket="checkpoints", Key=f"team/tiny/{name}")["Body"].read()
    bucket.put_object(Bucket="checkpoints", Key=f"team/tiny/{name}", Body=whole[:-1] + b"\x7f")
    back = tmp_path / "back" / "checkpoints"
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors: its content does not match its digest"):
        copy(there, Directory(back), 20)
    assert not back.parent.exists()
    bucket.delete_object(Bucket="checkpoints", Key=f"team/tiny/{name}")
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors: No such file"):
        there.check_sizes(there.sealed(20).outline())


def test_commands_read_a_bucket(bucket: Any, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    for step in ("10", "20"):
        assert cli.invoke(["checkpoint", "copy", str(run.path), "--to", PLACE, "--step", step]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{PLACE}/step-00000020: step 20 copied and verified, ")
    assert cli.invoke(["checkpoint", "list", PLACE]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["step", "10"], ["step", "20"]]
    assert cli.invoke(["checkpoint", "show", PLACE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 20
    assert cli.invoke(["checkpoint", "verify", PLACE]) == 0
    assert cli.invoke(["checkpoint", "quarantine", PLACE, "--step", "10", "--yes"]) == 0
    assert Bucket(PLACE).steps() == [20]
    capsys.readouterr()
    assert cli.invoke(["checkpoint", "prune", PLACE, "--keep-bad-days", "0", "--yes"]) == 0
    assert capsys.readouterr().out == f"{PLACE}: deleted 1; kept steps: 20\n"
    assert {name.partition("/")[0] for name in objects()} == {"step-00000020"}
    assert cli.invoke(["checkpoint", "list", "s3://checkpoints/team"]) == 2
    assert "has no checkpoint itself, but runs; add one of tiny" in capsys.readouterr().err
    assert cli.invoke(["checkpoint", "list", "s3://no-such-bucket/x"]) == 2
    assert "there is no such bucket" in capsys.readouterr().err


def test_what_was_set_aside_goes_without_the_step_that_replaced_it(bucket: Any, signed: None, run: RunDir) -> None:
    there = Bucket(PLACE)
    copy(Directory(run.checkpoints), there, 20)
    refused = there.quarantine(20)
    shutil.rmtree(run.checkpoints / "step-00000020")
    put(Store(run.checkpoints), 20, sharded=False)
    copy(Directory(run.checkpoints), there, 20)
    there.delete(refused)
    there.check_contents(there.sealed(20).manifest())
    assert len(objects()) == 4, "the manifest, its signature and two files"


def test_prune_keeps_the_newest_milestones_and_the_best(bucket: Any, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "tiny")
    there = Bucket(PLACE)
    for step in (10, 20, 30, 40, 50):
        put(Store(run.checkpoints), step, sharded=False)
        copy(Directory(run.checkpoints), there, step)
    there.tell_losses({10: 3.0, 20: 1.0, 30: 2.0})
    words = ["checkpoint", "prune", PLACE, "--keep", "2", "--keep-every", "30", "--keep-best", "1", "--yes"]
    assert cli.invoke(words) == 0
    assert there.steps() == [20, 30, 40, 50]


def test_a_busy_server_is_retried_and_a_dead_one_commits_nothing(
    faulty: moto.Faulty, run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.run.bucket.ATTEMPTS", 3)
    faulty.unavailable = 2
    assert copy(Directory(run.checkpoints), Bucket(PLACE), 10)
    assert faulty.sent()[-1] == MANIFEST, "the commit comes last"
    faulty.forever = "rank-00000.json"
    with pytest.raises(UnreachableError, match=r"cannot write rank-00000\.json: .*503"):
        copy(Directory(run.checkpoints), Bucket(PLACE), 20)
    assert {name.partition("/")[0] for name in objects()} == {"step-00000010"}, "nothing of step 20 is left"
    assert cli.invoke(["checkpoint", "copy", str(run.path), "--to", PLACE]) == 3
    assert "503" in capsys.readouterr().err


def test_an_answer_that_is_lost_is_no_other_writer(
    faulty: moto.Faulty, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 commits, its answer is lost, and the retry finds the manifest there: it is this writer's own."""
    monkeypatch.setattr("training.run.bucket.READ_SECONDS", 5)
    faulty.forgets = MANIFEST
    assert copy(Directory(run.checkpoints), Bucket(PLACE), 20)
    assert Bucket(PLACE).steps() == [20]


def test_a_broken_part_breaks_the_copy_and_leaves_no_upload(
    faulty: moto.Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.run.bucket.ATTEMPTS", 2)
    run = RunDir(tmp_path / "runs" / "tiny")
    Store(run.checkpoints).save(Snapshot(1, {}, files=lambda own: _large(own)))
    faulty.forever = "partNumber=2"
    with pytest.raises(CheckpointError, match="cannot write files/large"):
        copy(Directory(run.checkpoints), Bucket(PLACE), 1)
    assert objects() == []
    assert "Uploads" not in boto3.client("s3").list_multipart_uploads(Bucket="checkpoints")


def _large(directory: Path) -> None:
    (directory / "large").write_bytes(b"x" * (PART + 1))


def test_a_lost_manifest_is_no_step_and_the_next_copy_commits_again(bucket: Any, run: RunDir, tmp_path: Path) -> None:
    there = Bucket(PLACE)
    copy(Directory(run.checkpoints), there, 20)
    bucket.delete_object(Bucket="checkpoints", Key=f"team/tiny/step-00000020/{MANIFEST}")
    assert there.steps() == []
    shutil.rmtree(run.checkpoints / "step-00000020")
    put(Store(run.checkpoints), 20, sharded=False)
    assert copy(Directory(run.checkpoints), there, 20)
    there.check_contents(there.sealed(20).manifest())
