"""A trainer whose first forward pass on rank 0 takes longer than a collective may, like slow compilation."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from torch import nn

from training.models.causal import CausalLM
from training.pretrain import Pretrain
from training.trainer import loop, main

COLLECTIVE_SECONDS, COMPILE_SECONDS = 10, 14


class SlowToCompile(Pretrain):
    """Pre-training with a model that is slow once, when it would be compiled, and is never compiled."""

    def build(self, *arguments: Any) -> Any:
        model = super().build(*arguments)
        if os.environ["RANK"] == "0":
            seconds = iter([COMPILE_SECONDS])
            model.register_forward_pre_hook(lambda *_: time.sleep(next(seconds, 0)))
        return model


if __name__ == "__main__":
    nn.Module.compile = lambda *_, **__: None  # type: ignore[method-assign]
    CausalLM.compile_outside = lambda self: None  # type: ignore[method-assign]
    loop.COLLECTIVE_TIMEOUT = timedelta(seconds=COLLECTIVE_SECONDS)
    main.main(SlowToCompile(), __doc__)
