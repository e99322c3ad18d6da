"""What real ranks do with checkpoints in several places; `ranks.py` calls these functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.training.checkpoint.ranks import rank_and_world
from tests.training.checkpoint.values import held, same, state, whole, zeroed
from training.checkpoint.attempt import Log
from training.checkpoint.keep import Rules
from training.checkpoint.node import Nodes, Spread
from training.checkpoint.peers import Peers
from training.checkpoint.read import Checkpoint, open_checkpoint
from training.checkpoint.s3 import Bucket
from training.checkpoint.store import Store
from training.checkpoint.tiers import Remote, Tiers
from training.checkpoint.write import Snapshot
from training.run import bucket as run_bucket


def _on_nodes(home: str, nodes: int) -> Nodes:
    rank, world = rank_and_world()
    name = f"node-{rank * nodes // world}"
    return Nodes(Path(home) / "nodes", "tiny", name, Peers(None), keep=2, log=lambda line: None)


def save_on_nodes(home: str, nodes: int, steps: list[int], sharded: bool) -> None:
    """Save some steps in the memory of `nodes` nodes."""
    rank, world = rank_and_world()
    there = _on_nodes(home, nodes)
    for step in steps:
        there.save(Snapshot(step, held(whole(step), rank, world, sharded=sharded), state(step, rank)))


def load_from_nodes(home: str, nodes: int, sharded: bool) -> dict[str, Any]:
    """Load the newest whole step of the nodes, and compare it with what was saved."""
    rank, world = rank_and_world()
    found = _on_nodes(home, nodes).newest()
    assert found is not None
    equal = _loads(found, held(whole(found.step), rank, world, sharded=sharded))
    states = [found.rank_state(each) == state(found.step, each) for each in range(found.world_size)]
    return {"step": found.step, "equal": equal and all(states)}


def _tiers(home: str, bucket: str, asked: list[str]) -> Tiers:
    """Nodes every 2 steps, the volume every 4, the bucket every 8; `asked` gets each request of S3."""
    store = Store(Path(home) / "tiny" / "checkpoints")
    return _with_nodes(home, store, _remote(store, bucket, asked), print)


def _with_nodes(home: str, store: Store, remote: Remote | None, say: Log) -> Tiers:
    nodes = _on_nodes(home, rank_and_world()[1])
    return Tiers(store, every=4, steps=8, nodes=nodes, nodes_every=2, remote=remote, log=say, say=say)


def _remote(store: Store, bucket: str, asked: list[str]) -> Remote:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    os.environ.update({**keys, "AWS_ENDPOINT_URL_S3": bucket, "AWS_EC2_METADATA_DISABLED": "true"})
    run_bucket.ATTEMPTS = 1
    there = Bucket("s3://tiers/tiny")
    there._client.meta.events.register("before-send.s3", lambda **_: asked.append("asked"))
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return Remote(there, store, Peers(group), every=8, keep=Rules(), log=print, say=print)


def train_on_tiers(home: str, bucket: str, steps: int) -> dict[str, Any]:
    """Save each step wherever it is due; return the steps of each place."""
    rank, world = rank_and_world()
    tiers = _tiers(home, bucket, [])
    for step in range(1, steps + 1):
        if tiers.due(step):
            tensors = held(whole(step), rank, world, sharded=True)
            tiers.save(Snapshot(step, tensors, state(step, rank)), must=False)
    return {"volume": tiers.store.steps(), "bucket": Bucket("s3://tiers/tiny").steps()}


def stop_on_tiers(home: str) -> dict[str, Any]:
    """Stops right after a save, before and after a rollback; return what was written, said and loaded."""
    rank, world = rank_and_world()
    told: list[str] = []
    tiers = _with_nodes(home, Store(Path(home) / "tiny" / "checkpoints", log=lambda line: None), None, told.append)
    written = []

    def save(step: int, values: int, *, must: bool) -> None:
        tensors = held(whole(values), rank, world, sharded=True)
        written.append(tiers.save(Snapshot(step, tensors, state(step, rank), {"position": values}), must=must))

    save(2, 2, must=False)
    save(2, 2, must=True)
    save(4, 4, must=False)
    save(4, 4, must=True)
    dist.barrier()
    if rank == 0:
        for path in Path(home).rglob("step-00000004/rank-00000.safetensors"):
            path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    dist.barrier()
    back = tiers.latest(lambda _: None, again=True)
    save(2, 2, must=True)
    save(4, 40, must=True)
    found = tiers.latest(lambda _: None, again=True)
    assert back is not None
    assert found is not None
    wanted = held(whole(40), rank, world, sharded=True)
    on_volume = open_checkpoint(tiers.store.directory / "step-00000004")
    loaded = [found.step, _loads(found, wanted), _loads(on_volume, wanted)]
    return {"written": written, "told": told, "back": back.step, "loaded": loaded}


def load_from_tiers(home: str, bucket: str, again: bool) -> dict[str, Any]:
    """Load the newest step; say where it came from, and how often S3 was asked."""
    rank, world = rank_and_world()
    asked: list[str] = []
    found = _tiers(home, bucket, asked).latest(lambda _: None, again=again)
    assert found is not None
    equal = _loads(found, held(whole(found.step), rank, world, sharded=True))
    place = "nodes" if isinstance(found, Spread) else "volume"
    return {"step": found.step, "equal": equal, "from": place, "asked": len(asked)}


def _loads(checkpoint: Checkpoint, wanted: dict[str, Any]) -> bool:
    found = zeroed(wanted)
    checkpoint.load(found)
    return same(found, wanted)
