"""Virtual environments that tests make from a lock: in the user's cache, one for each content of the lock.

python -m tests.parts.venv LOCK ...
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

ROOT = Path(__file__).resolve().parents[2]


def place(lock: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made_of = lock.read_bytes() + sys.version.encode() + sys.base_prefix.encode()
    return cache / "trainyard" / lock.parent.name / hashlib.sha256(made_of).hexdigest()[:16]


def python(lock: Path) -> Path | None:
    """Return the interpreter of a lock's environment, or None if it does not exist."""
    found = place(lock) / "bin" / "python"
    return found if (place(lock) / "ready").exists() and found.exists() else None


def ensure(*locks: Path) -> int:
    """Create the missing environments, of wheels but for what a lock says, and return an exit code."""
    for lock in locks:
        place(lock).parent.mkdir(parents=True, exist_ok=True)
        with (place(lock).parent / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # another run may be making them
            if python(lock) is None and (code := _make(lock)):
                return code
    return 0


def _make(lock: Path) -> int:
    directory, began = place(lock), time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)  # of a killed one
    print(f"making {directory} from {lock.relative_to(ROOT)}", file=sys.stderr, flush=True)
    uv = str(ROOT / ".venv" / "bin" / "uv")
    locked = ["--only-binary", ":all:", "--require-hashes", "-r", str(lock)]
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
    sys.exit(ensure(*(Path(name).resolve() for name in sys.argv[1:])))
