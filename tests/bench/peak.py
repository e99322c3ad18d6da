"""The machine's products of matrices as a side of a row: the tokens/s of a model that trains at their best speed.

python -m tests.bench.peak CONFIGURATION OUT
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from training.config import load
from training.config.counting import flops_per_token
from training.device import resolve

STEP_SECONDS = 0.5


def main(directory: Path, out: Path) -> None:
    """Write one line a step: its end, and the tokens that its seconds allow at the peak measured in it."""
    config = load(directory)
    device = resolve(config)
    flops = flops_per_token(config.model, config.sequence_length, config.lora)
    with out.open("a", encoding="utf-8") as lines:
        for _ in range(config.train.steps):
            began = time.time()
            best = 0.0
            while time.time() - began < STEP_SECONDS:
                best = max(best, device.peak_flops()[0] or 0.0)
            now = time.time()
            lines.write(json.dumps({"tokens": best / flops * (now - began), "time": now}) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
