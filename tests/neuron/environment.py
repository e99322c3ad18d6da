"""The environments of `make test-neuron`: `python -m tests.neuron.environment` makes them.

One has torch 2.9 with torch_xla and the trainer's other packages, about 7 GiB with the CUDA libraries that
torch's own package asks for; one has torchx. They lie in the user's cache, one for each content of a lock. A
minute once, where packages come fast.
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
XLA, TORCHX = HERE / "requirements.lock", HERE / "torchx.lock"
PYTHON = (3, 11), (3, 13)  # torch_xla 2.9 has builds for these


def place(lock: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made_of = lock.read_bytes() + sys.version.encode() + sys.base_prefix.encode()
    return cache / "trainyard" / "neuron" / hashlib.sha256(made_of).hexdigest()[:16]


def python(lock: Path) -> Path | None:
    """Return the interpreter of a lock's environment, or None if it does not exist."""
    found = place(lock) / "bin" / "python"
    return found if (place(lock) / "ready").exists() and found.exists() else None


def make() -> int:
    """Create the missing environments and return an exit code."""
    if python(XLA) is not None and python(TORCHX) is not None:
        return 0
    if sys.platform != "linux" or not PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]:
        print("error: torch_xla 2.9 needs Linux and Python 3.11 to 3.13", file=sys.stderr)
        return 2
    place(XLA).parent.mkdir(parents=True, exist_ok=True)
    with (place(XLA).parent / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another run may be making them
        return _make(TORCHX) or _make(XLA)


def _make(lock: Path) -> int:
    if python(lock) is not None:
        return 0
    directory, began = place(lock), time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)  # of a killed one
    print(f"making {directory} from {lock.relative_to(ROOT)}", file=sys.stderr, flush=True)
    uv = str(ROOT / ".venv" / "bin" / "uv")
    locked = ["--require-hashes", "-r", str(lock)]
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(directory)],
        [uv, "pip", "install", "--quiet", "--python", str(directory / "bin" / "python"), *locked],
    ):
        if (code := subprocess.run(command, check=False).returncode) != 0:
            print(f"error: {' '.join(command[:3])} ended with {code}", file=sys.stderr)
            return 1
    (directory / "ready").touch()
    print(f"ready in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(make())
