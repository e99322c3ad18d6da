"""Pre-training that writes how many all-gathers and reductions each step of rank 0 does, into gathers.json.

`ahead` is the number of all-gathers before the first module of the step is called.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.modules.module import register_module_forward_pre_hook

from training import pretrain
from training.trainer import main

loop: Any = importlib.import_module("training.trainer.loop")
GATHER = torch.ops.c10d._allgather_base_
_counts: list[dict[str, int]] = []


def _counted(step: Any) -> Any:
    def counted(*given: Any) -> Any:
        ahead: list[int] = []
        with CommDebugMode() as mode:
            hook = register_module_forward_pre_hook(lambda *_: ahead.append(mode.get_comm_counts()[GATHER]))
            result = step(*given)
        hook.remove()
        if os.environ["RANK"] == "0":
            counts = {str(name): count for name, count in mode.get_comm_counts().items()}
            _counts.append({**counts, "ahead": ahead[0]})
            Path(os.environ["TRAINYARD_RUN"], "gathers.json").write_text(json.dumps(_counts))
        return result

    return counted


TASK = pretrain.TASK

if __name__ == "__main__":
    loop._step = _counted(loop._step)
    main.main(TASK, __doc__)
