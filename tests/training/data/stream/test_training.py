"""Real training from a stream under torchrun: killed, resumed bit for bit, and on another number of ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

KEYS = (
    "data.stream={shuffle_buffer: 20}",
    "train.global_batch_size=8",
    "train.steps=12",
    "checkpoint.every=4",
)


@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_bit_for_bit_and_on_another_number_of_ranks(
    start: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    server = serve(share=0.2, seed=4)
    keys = (*KEYS, f"data.source={server.pattern}")
    whole = start("whole", nproc=2, overrides=keys)
    assert whole.wait() == 0, whole.text()
    killed = start("killed", nproc=2, overrides=keys)
    killed.until(lambda: len(killed.records()) >= 6)
    for pid in killed.workers():
        os.kill(pid, signal.SIGKILL)
    assert killed.wait() != 0
    assert len(killed.records()) < 12, "the control: it was killed on its way"
    again = start("killed", nproc=2, overrides=keys)
    assert again.wait() == 0, again.text()
    assert "continuing from step" in again.text()
    assert again.losses() == whole.losses(), "bit for bit"
    assert server.faults()
    other = start("whole", nproc=1, overrides=(*keys, "train.steps=14"))
    assert other.wait() == 0, other.text()
    assert "continuing from step 12" in other.text(), "a checkpoint of two ranks goes on at one"
    assert len(other.losses()) == 14


def test_a_dead_source_ends_the_run_with_its_url(
    start: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    server = serve()
    del server.files["/shard-03.jsonl.gz"]
    run = start("dead", overrides=(*KEYS, f"data.source={server.pattern}", "data.stream.first_mb=1"))
    assert run.wait() != 0
    (failure,) = run.failures()
    assert failure["class"] == "data"
    assert failure["message"].startswith(f"{server.url}/shard-03.jsonl.gz: the server has no such file (404)")
    assert run.losses() == []
