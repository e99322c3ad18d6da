"""What the probe knows of a DataLoader: whether its sampler draws all samples, and which data set it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

from training.prove.probe.loaders import draws_all, name_of

_ROWS: Any = range(24)


def _batches(sampler: Any) -> Any:
    return torch_data.BatchSampler(sampler, 4, False)


class _Part(torch_data.BatchSampler):
    """Divides the batches itself, as a framework's does."""


@pytest.mark.parametrize(
    ("how", "whole"),
    [
        ({"shuffle": True, "batch_size": 4}, True),
        ({"batch_size": None}, True),
        ({"batch_sampler": _batches(torch_data.RandomSampler(_ROWS))}, True),
        ({"batch_sampler": _Part(torch_data.RandomSampler(_ROWS), 4, False)}, False),
        ({"sampler": torch_data.RandomSampler(_ROWS, replacement=True)}, False),
        ({"sampler": torch_data.RandomSampler(_ROWS, num_samples=12)}, False),
        ({"sampler": torch_data.DistributedSampler(_ROWS, num_replicas=2, rank=0)}, False),
    ],
)
def test_whether_a_sampler_draws_all_is_known(how: dict[str, Any], whole: bool) -> None:
    assert draws_all(torch_data, torch_data.DataLoader(_ROWS, **how)) is whole


@pytest.mark.parametrize(
    "part",
    [
        lambda rank: torch_data.Subset(torch_data.TensorDataset(torch.arange(16)), range(rank, 16, 2)),
        lambda rank: SimpleNamespace(file=Path(f"part-{rank}.txt")),
        lambda rank: SimpleNamespace(names={f"{rank}", "a"}),
    ],
    ids=["a range", "a path", "a set"],
)
def test_parts_of_a_data_set_have_names_of_their_own(part: Callable[[int], Any]) -> None:
    first, again, second = (name_of(torch, part(rank)) for rank in (0, 0, 1))
    assert first == again != second
