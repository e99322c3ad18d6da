"""The environments of `make test-neuron`: `python -m tests.neuron.environment` makes them.

One has torch 2.9 with torch_xla and the trainer's other packages, about 7 GiB with the CUDA libraries that
torch's own package asks for; one has torchx. A minute once, where packages come fast.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.parts import venv

HERE = Path(__file__).resolve().parent
XLA, TORCHX = HERE / "requirements.lock", HERE / "torchx.lock"
PYTHON = (3, 11), (3, 13)  # torch_xla 2.9 has builds for these


def make() -> int:
    """Create the missing environments and return an exit code."""
    if sys.platform != "linux" or not PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]:
        print("error: torch_xla 2.9 needs Linux and Python 3.11 to 3.13", file=sys.stderr)
        return 2
    return venv.ensure(TORCHX, XLA)


if __name__ == "__main__":
    sys.exit(make())
