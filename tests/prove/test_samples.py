"""Which tensor of a call holds the samples."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from training.prove.probe import samples
from training.prove.probe.batches import Forwards

TOKENS, ONES = torch.arange(12).reshape(3, 4), torch.ones(3, 4, dtype=torch.long)
MASK = torch.ones(3, 4, dtype=torch.bool)


@dataclass
class Batch:
    """A batch with names, as a script may define it."""

    padding_mask: torch.Tensor
    tokens: torch.Tensor


class Nested:
    """Images with a mask, as models for detection take them."""

    def __init__(self, mask: torch.Tensor, tensors: torch.Tensor) -> None:
        self.mask, self.tensors = mask, tensors


CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "one tensor": ([TOKENS, MASK], {}),
    "a known name": ([], {"labels": ONES, "input_ids": TOKENS}),
    "a mask before an unknown name": ([], {"attention_mask": ONES, "tokens": TOKENS}),
    "a mapping with a label first": ([OrderedDict(label=torch.ones(3), image=TOKENS)], {}),
    "a mask as the first argument": ([MASK, TOKENS], {}),
    "a nested mapping": ([[{"lengths": ONES, "data": {"position_ids": ONES, "tokens": TOKENS}}]], {}),
    "a dataclass": ([Batch(ONES, TOKENS)], {}),
    "an object with tensors": ([Nested(MASK, TOKENS)], {}),
    "a module and a tensor": ([torch.nn.Linear(2, 2), TOKENS], {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_samples_are_found_beside_masks_and_labels(name: str) -> None:
    """A mask may be equal on all ranks, which read other samples."""
    found = samples.main(torch, *CALLS[name])
    assert found is TOKENS


def test_what_is_left_is_taken() -> None:
    assert samples.main(torch, [MASK], {}) is MASK
    assert samples.main(torch, ["text", 7, None], {}) is None


@pytest.mark.parametrize(
    ("sizes", "indices", "rows"),
    [([4], 2, [4]), ([2], 2, [2]), ([5, 4, 2], 2, [0, 0, 0]), ([5], 0, [5]), ([1], 2, [1])],
    ids=["views", "samples", "nodes of graphs", "unknown places", "packed"],
)
def test_rows_that_are_parts_of_samples_tell_nothing(sizes: list[int], indices: int, rows: list[int]) -> None:
    """Two views of each sample are samples. Where one batch has an odd number of rows, no batch has samples as rows."""
    forwards = cast(Forwards, SimpleNamespace(finer=False, torch=torch))
    places = [str(one) for one in range(indices)]
    found = [Forwards._rows(forwards, places, torch.arange(3.0 * size).reshape(size, 3)) for size in sizes]
    assert [len(digests) for _, digests in found] == rows
    assert [len(known) for known, _ in found] == [indices * (forwards.finer or size == indices) for size in sizes]


@pytest.mark.parametrize(
    ("args", "keywords", "equal"),
    [([TOKENS], {"labels": ONES}, False), ([TOKENS, ONES], {}, False), ([TOKENS], {"labels": MASK}, True)],
)
def test_what_a_call_has_beside_its_samples(args: list[Any], keywords: dict[str, Any], equal: bool) -> None:
    left, right = (
        samples.beside(torch, TOKENS, [factor * one if one is ONES else one for one in args],
                       {name: factor * one if one is ONES else one for name, one in keywords.items()})
        for factor in (1, 2)
    )  # fmt: skip
    assert left
    assert (left == right) is equal
    assert samples.beside(torch, TOKENS, [TOKENS], {}) == ""
