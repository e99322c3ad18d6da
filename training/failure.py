"""Why a rank stopped: one record per failing rank, and the class that says whether trying again can help."""

from __future__ import annotations

import errno
import os
import socket
import time
import traceback
from pathlib import Path

from training.config import ConfigError
from training.rundir import RunDir, write_json

_LONGEST = 400


class NanError(Exception):
    """The loss or the gradient norm is not finite."""


class Drained(Exception):
    """All ranks stopped at the same step on request, and committed it."""


def classify(error: BaseException) -> str:
    """Class: config, data, nan, drained, out of memory, communication, lost peer, storage or error."""
    from training.checkpoint import CheckpointError
    from training.data.errors import DataError

    if isinstance(error, ConfigError):
        return "config"
    if isinstance(error, DataError):
        return "data"
    if isinstance(error, NanError):
        return "nan"
    if isinstance(error, Drained):
        return "drained"
    if isinstance(error, CheckpointError):
        return "storage"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT):
        return "storage"
    text = str(error).lower()
    if any(
        sign in text
        for sign in ("closed by peer", "connection reset", "broken pipe", "remote process exited")
    ):
        return "lost peer"
    if type(error).__name__.startswith("Dist") or any(
        sign in text for sign in ("gloo", "nccl", "timed out waiting")
    ):
        return "communication"
    return "error"


def message(error: BaseException) -> str:
    """The error in one line of at most 400 characters; the record's traceback has all of it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def record(error: BaseException, rank: int, step: int | None, run: RunDir) -> Path:
    """Write this rank's failure record and return its path."""
    now = time.time()
    path = run.failures / f"{int(now * 1000)}-rank-{rank:05d}.json"
    write_json(
        path,
        {
            "class": classify(error),
            "rank": rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "step": step,
            "message": message(error),
            "exception": type(error).__name__,
            "traceback": "".join(traceback.format_exception(error)),
            "time": now,
        },
    )
    return path
