"""Pre-training that writes how many all-gathers and reductions each step of rank 0 does, into gathers.json."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from torch.distributed.tensor.debug import CommDebugMode

from training import pretrain
from training.trainer import main

loop: Any = importlib.import_module("training.trainer.loop")
_counts: list[dict[str, int]] = []


def _counted(step: Any) -> Any:
    def counted(*given: Any) -> Any:
        with CommDebugMode() as mode:
            result = step(*given)
        if os.environ["RANK"] == "0":
            _counts.append({str(name): count for name, count in mode.get_comm_counts().items()})
            Path(os.environ["TRAINYARD_RUN"], "gathers.json").write_text(json.dumps(_counts))
        return result

    return counted


TASK = pretrain.TASK

if __name__ == "__main__":
    loop._step = _counted(loop._step)
    main.main(TASK, __doc__)
