"""Situations of failed programs: `why` must name the first failure, not its victims."""

from __future__ import annotations

from tests.job.corpus import TORCHRUN, situation
from tests.job.world import World


@situation("nan")
def loss_is_nan(world: World) -> None:
    world.end("Failed")
    text = "rank {n}: nan: the loss of rank 1 is not finite at step 88; nothing of this step was saved"
    for index in (0, 1):
        world.ended(index, 70, text.format(n=index), *TORCHRUN)
