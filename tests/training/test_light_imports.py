"""The modules that tools and a pod's first process import load neither torch nor numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIGHT = (
    "training.checkpoint.layout",
    "training.checkpoints",
    "training.config",
    "training.entrypoint",
    "training.config.choices",
    "training.config.counting",
    "training.run.failure",
    "training.run.hang_limits",
)


def loaded(*modules: str) -> str:
    """Import modules in a child process; return the heavy modules that this loaded."""
    code = f"import sys, {', '.join(modules)}; print(*sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True).stdout


def test_light_modules_load_no_torch() -> None:
    assert loaded(*LIGHT) == "\n"
    assert loaded("training.data.sampler") == "numpy\n", "the control"
