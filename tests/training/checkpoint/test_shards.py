"""Shards of plain tensors and of FSDP2's DTensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint.errors import CheckpointError
from training.checkpoint.shards import chunk_rows, shards_of

Call = Callable[..., list[Any]]


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 7, 8, 9])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8])
def test_rows_are_those_of_torch_chunk(rows: int, parts: int) -> None:
    chunks = torch.chunk(torch.arange(rows), parts) if rows else ()
    expected = [(int(chunk[0]), len(chunk)) for chunk in chunks] + [(rows, 0)] * (parts - len(chunks))
    assert [chunk_rows(rows, parts, index) for index in range(parts)] == expected


def test_plain_tensors_are_shared_and_whole() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    shard = shards_of([("weight", parameter)])["weight"]
    assert (shard.global_shape, shard.row_offset, shard.replicated) == ((3, 2), 0, True)
    assert shard.tensor.data_ptr() == parameter.data_ptr()
    with pytest.raises(CheckpointError, match="tensor 'weight' is given twice"):
        shards_of([("weight", parameter), ("weight", parameter)])


def test_fully_sharded_model_and_optimizer(tmp_path: Path, ranks: Call) -> None:
    """Uneven and empty rows, sharded moments and 0-d step counts are restored bit for bit."""
    answers = ranks("fsdp_round_trip", 2, directory=tmp_path)
    for answer in answers:
        assert (answer["before"], answer["after"], answer["full"]) == (False, True, True)
    rows = {name: [answer["rows"][name] for answer in answers] for name in answers[0]["rows"]}
    assert rows["model.0.weight"] == rows["optimizer.0.weight.exp_avg"] == [[0, 3, False], [3, 2, False]]
    assert rows["model.1.weight"] == [[0, 1, False], [1, 0, False]]
    assert rows["optimizer.0.weight.step"] == [[0, 1, True], [0, 1, True]]


def test_other_layouts_are_refused(tmp_path: Path, ranks_status: Call) -> None:
    answers = ranks_status("refused_layout", 2, directory=tmp_path)
    assert {answer["kind"] for answer in answers} == {"CheckpointError"}
    assert all(answer["error"].startswith("tensor 'columns': laid out as (Shard(dim=1)") for answer in answers)
