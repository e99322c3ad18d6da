"""Real training from a stream: killed under torchrun, continued bit for bit and on more ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.inprocess import losses, run
from training.data.errors import DataError

STEPS = 40
KEYS = (
    "data.stream={shuffle_buffer: 20}",
    "train.global_batch_size=8",
    f"train.steps={STEPS}",
    "checkpoint.every=4",
)


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(900)
def test_a_killed_run_continues_bit_for_bit_and_on_another_number_of_ranks(
    start: Callable[..., Any],
    serve: Callable[..., Any],
    texts: dict[str, tuple[str, str]],
    data_root: Path,
    tmp_path: Path,
) -> None:
    server = serve(share=0.2, seed=4)
    keys = (*KEYS, f"data.source={server.pattern}")
    whole = losses(run(texts, keys, tmp_path / "whole", data_root))
    killed = start("killed", overrides=keys, alone=False)
    killed.until(lambda: len(killed.records()) >= 6, timeout=200)
    for pid in killed.workers():
        os.kill(pid, signal.SIGKILL)
    assert killed.wait() != 0
    assert len(killed.records()) < STEPS, "the control: it was killed before its end"
    assert losses(run(texts, keys, killed.run, data_root)) == whole, "bit for bit"
    assert server.faults()
    two = start("whole", nproc=2, overrides=(*keys, f"train.steps={STEPS + 2}"), alone=False)
    assert two.wait(400) == 0, two.text()
    assert f"continuing from step {STEPS}" in two.text(), "two ranks continue one rank's checkpoint"
    assert losses(run(texts, (*keys, f"train.steps={STEPS + 2}"), killed.run, data_root)) == pytest.approx(
        two.losses(), rel=1e-4
    ), "and two ranks read the same global batches"


def test_a_dead_source_ends_the_run_with_its_url(
    serve: Callable[..., Any], texts: dict[str, tuple[str, str]], data_root: Path, tmp_path: Path
) -> None:
    server = serve()
    del server.files["/shard-03.jsonl.gz"]
    with pytest.raises(DataError, match=rf"{server.url}/shard-03\.jsonl\.gz: the server has no such file"):
        run(texts, (*KEYS, f"data.source={server.pattern}"), tmp_path / "dead", data_root)
    assert not (tmp_path / "dead" / "metrics.jsonl").exists()
