"""Secrets of trackers, as files that a pod mounts from the Secret `trackers`. Nothing else holds their values."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from training.run.files import read_bounded

DIRECTORY = "TRAINYARD_TRACK_SECRETS"  # names a directory in place of the mounted one, for a run on this machine
MOUNTED = Path("/var/run/secrets/trainyard")
_LONGEST = 8192  # bytes


def secret(name: str) -> str | None:
    """Return a secret from the file `name`, or from the variable NAME; None without both."""
    path = Path(os.environ.get(DIRECTORY) or MOUNTED) / name
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return read_bounded(path, _LONGEST, follow=True).decode().strip() or None
    return os.environ.get(name.upper().replace("-", "_")) or None
