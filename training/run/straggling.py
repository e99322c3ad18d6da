"""What a step's line of metrics.jsonl says about stragglers: `stragglers`, only while there are some.

It imports nothing heavy. Other processes can write to a run directory, so its texts and numbers are checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_MOST = 16_384  # ranks


@dataclass(frozen=True)
class Straggling:
    """The ranks that are slow over the last `steps`: seconds of a step.

    `own_s` is the work of the slowest that waits for nothing, `wait_s` how long it waits for others. Beside them are
    the medians of all ranks.
    """

    ranks: list[int]
    steps: int
    own_s: float
    others_s: float
    wait_s: float
    others_wait_s: float

    @property
    def factor(self) -> float:
        """How many times as long as the others' the work of the slowest takes."""
        return self.own_s / self.others_s

    def __str__(self) -> str:
        return (
            f"own work {self.own_s:.3f} s a step, that of the others {self.others_s:.3f} s; waits {self.wait_s:.3f} s"
            f" for them, they {self.others_wait_s:.3f} s; means of {self.steps} steps"
        )


def read(value: Any) -> Straggling | None:
    """Return what a line says, None if it says nothing or nothing that can be."""
    try:
        found = Straggling(**value)
        numbers = (found.own_s, found.others_s, found.wait_s, found.others_wait_s)
        sound = (
            0 < len(found.ranks) <= _MOST
            and all(type(one) is int and 0 <= one < 2**31 for one in (*found.ranks, found.steps))
            and all(type(one) is float and math.isfinite(one) and 0 <= one < 2**31 for one in numbers)
            and found.others_s > 0
        )
    except (TypeError, ValueError):
        return None
    return found if sound else None
