"""Steps on the nodes, on the volume and in a bucket: the newest whole one, from the nearest place that has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.parts import moto
from training.checkpoint.node import neighbours

Ranks = Callable[..., list[Any]]
HERE = "tests.training.checkpoint.tier_ranks"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    with moto.server() as url:
        moto.use(url, monkeypatch, tmp_path)
        boto3.client("s3").create_bucket(Bucket="tiers")
        for item in boto3.client("s3").list_objects_v2(Bucket="tiers").get("Contents", []):
            boto3.client("s3").delete_object(Bucket="tiers", Key=item["Key"])
        yield url


def test_each_rank_has_its_copy_on_the_next_node() -> None:
    assert neighbours([0, 1]) == [1, 0]
    assert neighbours([0, 0, 1, 1]) == [2, 3, 0, 1]
    assert neighbours([0, 0, 1]) == [2, 2, 0]
    assert neighbours([0, 0]) == [0, 1], "a single node has no neighbour"


@pytest.mark.parametrize("sharded", [True, False])
def test_one_lost_node_loses_nothing(ranks: Ranks, tmp_path: Path, sharded: bool) -> None:
    """Four ranks on two nodes; the memory of each node is lost in turn, and one file of the other is damaged."""
    where = {"home": tmp_path, "nodes": 2, "sharded": sharded}
    ranks(f"{HERE}:save_on_nodes", 4, steps=[2, 4, 6], **where)
    kept = sorted(path.name for path in (tmp_path / "nodes" / "tiny" / "node-0").iterdir())
    assert kept == ["step-00000004", "step-00000006"]
    for lost in ("node-0", "node-1"):
        shutil.move(tmp_path / "nodes" / "tiny" / lost, tmp_path / lost)
        found = ranks(f"{HERE}:load_from_nodes", 4, **where)
        assert found == [{"step": 6, "equal": True}] * 4, lost
        shutil.rmtree(tmp_path / "nodes" / "tiny" / lost)
        shutil.move(tmp_path / lost, tmp_path / "nodes" / "tiny" / lost)
    assert ranks(f"{HERE}:load_from_nodes", 3, home=tmp_path, nodes=3, sharded=sharded)[0]["equal"], "another world"
    path = tmp_path / "nodes" / "tiny" / "node-0" / "step-00000006" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert ranks(f"{HERE}:load_from_nodes", 4, **where) == [{"step": 6, "equal": True}] * 4, "its copy is used"
    (path.parent.parent.parent / "node-1" / "step-00000006" / "rank-00000.safetensors").unlink()
    assert ranks(f"{HERE}:load_from_nodes", 4, **where) == [{"step": 4, "equal": True}] * 4, "step 6 is not whole"


def test_the_newest_step_comes_from_the_nearest_place(ranks: Ranks, bucket: str, tmp_path: Path) -> None:
    """Steps 2 to 8 on the nodes, 4 and 8 on the volume, 8 in the bucket: places are lost one after the other."""
    where = {"home": tmp_path, "bucket": bucket}
    told = ranks(f"{HERE}:train_on_tiers", 2, steps=8, **where)
    assert told[0] == {"volume": [4, 8], "bucket": [8]}
    found = ranks(f"{HERE}:load_from_tiers", 2, again=True, **{**where, "bucket": "http://127.0.0.1:9"})
    assert found == [{"step": 8, "equal": True, "from": "nodes", "asked": 0}] * 2
    for path in (tmp_path / "nodes" / "tiny").glob("*/step-00000008/rank-00000.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    found = ranks(f"{HERE}:load_from_tiers", 2, again=True, **where)
    assert [(each["step"], each["from"]) for each in found] == [(8, "volume")] * 2, "newer than step 6 on the nodes"
    shutil.rmtree(tmp_path / "nodes")
    assert [each["from"] for each in ranks(f"{HERE}:load_from_tiers", 2, again=False, **where)] == ["volume"] * 2
    shutil.rmtree(tmp_path / "tiny" / "checkpoints")
    found = ranks(f"{HERE}:load_from_tiers", 2, again=False, **where)
    assert [(each["step"], each["equal"], each["from"]) for each in found] == [(8, True, "volume")] * 2
    assert (tmp_path / "tiny" / "checkpoints" / "step-00000008").is_dir(), "fetched from the bucket"


def test_a_stop_writes_only_where_its_state_is_missing(ranks: Ranks, tmp_path: Path) -> None:
    """After step 2 the nodes have it and the volume gets it; after step 4 both have it, until a rollback."""
    for found in ranks(f"{HERE}:stop_on_tiers", 2, home=tmp_path):
        assert found["written"] == [True, True, True, False, False, True], "False: nothing was written"
        assert (found["back"], found["loaded"]) == (2, [4, True, True]), "step 4 of the second course"
        said = [line for line in found["told"] if "not written again" in line]
        assert ["nodes" in line for line in said] == [True, True, False, True], "step 2, step 4 twice, step 2 again"
