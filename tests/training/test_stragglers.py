"""Stragglers: a slow rank is named within 20 steps, and training continues; the same ranks at full speed are not."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.inprocess import Texts
from tests.training.slowed import slowed
from training.config import load_texts
from training.device import resolve
from training.distributed.ranks import Ranks
from training.run import heartbeat
from training.run.straggling import Straggling, read
from training.trainer.parallelize import Parallel
from training.trainer.stragglers import Stragglers, Times

WORLD = 8


class Alone(Ranks):
    """Rank 0 of several, which hears nothing of the others."""

    def sum(self, values: list[float]) -> list[float]:
        return values


@pytest.fixture
def watch(texts: Texts) -> Stragglers:
    from training import pretrain

    config = load_texts(texts)
    model = pretrain.TASK.build(config, resolve(config))
    return Stragglers(Parallel(model, model, Alone(0, WORLD, 0, None)), resolve(config))


def times(draw: random.Random, slow: dict[int, float]) -> Times:
    """A step whose work varies by about ten percent; the others wait for the slowest."""
    own = [0.2 * draw.lognormvariate(0, 0.1) * slow.get(rank, 1.0) for rank in range(WORLD)]
    return Times(own, [max(own) - each for each in own], max(own) + 0.05)


@pytest.mark.parametrize(("slow", "within"), [({3: 2.0}, 10), ({3: 2.0, 6: 3.0}, 10), ({5: 1.35}, 60)])
def test_slow_ranks_are_named_in_time_and_only_they(watch: Stragglers, slow: dict[int, float], within: int) -> None:
    draw = random.Random(7)
    assert not any(watch.see(step, times(draw, {})) for step in range(1, 3000)), "a control"
    found = [watch.see(step, times(draw, slow)).get("stragglers") for step in range(3000, 3100)]
    first = next(at for at, one in enumerate(found, 1) if one)
    assert first <= within
    last = read(json.loads(json.dumps(found[-1])))
    assert last is not None
    assert last.ranks == list(slow)
    assert last.factor == pytest.approx(max(slow.values()), rel=0.1)
    assert last.others_wait_s > last.wait_s
    after = [watch.see(step, times(draw, {})) for step in range(3200, 3400)]
    assert not any(after[30:]), "it is forgotten"


GOOD: dict[str, Any] = {
    "ranks": [1], "steps": 10, "own_s": 2.0, "others_s": 1.0, "wait_s": 0.0, "others_wait_s": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("bad", [
    {"ranks": []}, {"ranks": 7}, {"ranks": ["\x1b[1m"]}, {"own_s": "nan"}, {"others_s": 0.0}, {"steps": True},
    {"own_s": 1e300}, {"more": 1},
])  # fmt: skip
def test_what_others_wrote_is_not_believed(bad: dict[str, Any]) -> None:
    assert read(GOOD) == Straggling(**GOOD)
    assert read({**GOOD, **bad}) is None
    others: list[Any] = [None, [], {}, {"ranks": [1]}, "x"]
    assert not any(map(read, others))


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_rank_that_is_slowed_is_named_while_training_continues(sharding: str, start: Callable) -> None:
    shape: tuple[str, ...] = (
        "train.global_batch_size=128",
        "parallel.micro_batch_size=16",
        f"parallel.sharding={sharding}",
    )
    shape = (*shape, "train.steps=5000", "train.eval_every=5000", "checkpoint.every=5000")
    job = start("slow", nproc=2, overrides=shape, TRAINYARD_NODE="node-7")

    def named() -> list[dict]:
        return [record for record in job.records() if record.get("stragglers", {}).get("ranks") == [1]]

    job.until(lambda: len(job.records()) > 40)
    quiet = job.records()
    assert sum("stragglers" in record for record in quiet) <= len(quiet) // 4, "a control: a busy machine slows both"
    beat = heartbeat.read(heartbeat.path_of(Path(job.run) / "heartbeat", 1))
    assert beat is not None
    with slowed(beat.pid, 0.1):  # less than its part of a busy machine
        before = job.records()[-1]["step"]
        job.until(lambda: bool(named()) and job.records()[-1]["step"] > before + 25)
    found = next(record for record in named() if record["step"] > before)
    assert found["step"] <= before + 22, "20 steps, and those that were under way"
    said = f"straggler: rank 1 on {socket.gethostname()} (node node-7): own work "
    job.until(lambda: said in job.output.read_text(errors="replace"))
    beats = [heartbeat.read(heartbeat.path_of(Path(job.run) / "heartbeat", rank)) for rank in (0, 1)]
    assert all(one is not None and one.own_s and one.wait_s is not None and one.node == "node-7" for one in beats)
