"""The rendezvous id of a job: random, and known only to those who can read the run's directory.

torchrun's store has no authentication, and whoever knows the id of a rendezvous can take part in it. The id
is in a file of the run's directory, which only the pods of this job mount. The first pod creates it; later
pods read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from training.run.files import read_bounded

FILE = "rendezvous-id"
VARIABLE = "PET_RDZV_ID"
CONFIGURATION = "PET_RDZV_CONF"
BYTES = 16
WHOLE_SECONDS = 10.0  # a file system without hard links shows a new file before its content


class BadIdError(Exception):
    """The file does not hold an id. Another attempt cannot fix that."""


def agreed(run: Path) -> str:
    """Return the id of this run's rendezvous; create it if there is none.

    Raises OSError if the directory cannot be used, and BadIdError.
    """
    path = run / FILE
    run.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(path):
        _offer(path)
    deadline = time.monotonic() + WHOLE_SECONDS
    while True:
        try:
            text = read_bounded(path, 2 * BYTES).decode(errors="replace")
        except OSError as problem:
            raise BadIdError(f"{path}: {problem.strerror or problem}; remove it") from None
        if re.fullmatch(f"[0-9a-f]{{{2 * BYTES}}}", text):
            return text
        if text or time.monotonic() > deadline:
            raise BadIdError(f"{path} does not hold an id of {2 * BYTES} hexadecimal digits; remove it")
        time.sleep(0.1)


def hosted(environment: Mapping[str, str], hostname: str) -> dict[str, str]:
    """Return the variable that makes this pod the host of the store, where the endpoint names it with a domain.

    torchrun looks such a name up. In a new pod DNS may not have it yet, and the host would wait for itself.
    """
    host = environment.get("PET_RDZV_ENDPOINT", "").rpartition(":")[0]
    own, _, domain = host.partition(".")
    if not domain or own != hostname:
        return {}
    return {CONFIGURATION: ",".join(filter(None, (environment.get(CONFIGURATION), "is_host=1")))}


def _offer(path: Path) -> None:
    """Create the file with a new id, unless another pod is first."""
    new = secrets.token_hex(BYTES).encode()
    temporary = path.with_name(f".{FILE}.{secrets.token_hex(8)}")
    try:
        _write(temporary, new)
        with contextlib.suppress(FileExistsError):
            _publish(temporary, path, new)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path, new: bytes) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        _write(path, new)


def _write(path: Path, content: bytes) -> None:
    """Write a new file; FileExistsError if there is one, or a link."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
