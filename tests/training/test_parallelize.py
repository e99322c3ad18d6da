"""When FSDP holds a model."""

from __future__ import annotations

from typing import Any, cast

import pytest

from training.config import Config, Lora
from training.distributed.ranks import Ranks
from training.trainer.parallelize import _splits

GROUP = cast(Any, object())  # of processes


@pytest.mark.parametrize(
    ("world", "adapters", "changes", "split"),
    [
        (1, True, {"sharding": "fsdp"}, False),
        (1, True, {"sharding": "fsdp", "offload": "cpu"}, True),  # FSDP keeps the weights on the host
        (1, False, {"sharding": "fsdp"}, True),
        (2, True, {"sharding": "fsdp"}, True),
        (2, False, {"sharding": "ddp"}, False),
    ],
)
def test_one_rank_with_adapters_shares_nothing(
    config: Config, world: int, adapters: bool, changes: dict[str, str], split: bool
) -> None:
    lora = Lora(rank=2, alpha=4, target_modules=("q_proj",)) if adapters else None
    given = config.model_copy(update={"lora": lora, "parallel": config.parallel.model_copy(update=changes)})
    assert _splits(given, Ranks(0, world, 0, GROUP)) is split
    assert not _splits(given, Ranks(0, 1, 0, None)), "a process without a group cannot share"
