"""The environment of the tests on XLA: `python -m tests.neuron.environment` makes it.

torch 2.9 with torch_xla, in the user's cache: about 7 GiB with the CUDA libraries that torch's own package
asks for, one environment for each content of requirements.lock. A minute once, where packages come fast.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCK = HERE / "requirements.lock"
PYTHON = (3, 11), (3, 13)  # torch_xla 2.9 has builds for these


def place() -> Path:
    """Return the environment's directory, whether it is there or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made_of = LOCK.read_bytes() + sys.version.encode() + sys.base_prefix.encode()
    return cache / "trainyard" / "neuron" / hashlib.sha256(made_of).hexdigest()[:16]


def python() -> Path | None:
    """Return the environment's interpreter, or None where it has not been made."""
    found = place() / "bin" / "python"
    return found if (place() / "ready").exists() and found.exists() else None


def make() -> int:
    """Make the environment where it is not there; return an exit code."""
    if python() is not None:
        return 0
    if sys.platform != "linux" or not PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]:
        print("error: torch_xla 2.9 needs Linux and Python 3.11 to 3.13", file=sys.stderr)
        return 2
    directory = place()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making it
        if python() is not None:
            return 0
        shutil.rmtree(directory, ignore_errors=True)  # of a killed one
        began = time.monotonic()
        print(f"making {directory}: torch 2.9 and torch_xla", file=sys.stderr, flush=True)
        uv = str(ROOT / ".venv" / "bin" / "uv")
        locked = ["--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)]
        for command in (
            [uv, "venv", "--quiet", "--python", sys.executable, str(directory)],
            [uv, "pip", "install", "--python", str(directory / "bin" / "python"), *locked],
        ):
            if (code := subprocess.run(command, check=False).returncode) != 0:
                print(f"error: {' '.join(command[:3])} ended with {code}", file=sys.stderr)
                return 1
        (directory / "ready").touch()
        print(f"ready in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(make())
