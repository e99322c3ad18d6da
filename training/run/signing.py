"""Signs what a run writes and reads again later, so that it refuses what others wrote on the shared volume.

The key comes from a file that is mounted from a Secret, never from the volume. The file has one key in each
line: the first one signs, all of them verify, so that a key can be replaced while runs continue. Signatures are
HMAC-SHA256: whoever can verify one can also make one, so the key belongs to one team.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from training.run.files import read_bounded

KEY_FILE = "TRAINYARD_SIGNING_KEY_FILE"
MOUNTED = Path("/var/run/secrets/trainyard/signing-key")
SHORTEST, LONGEST = 32, 4096  # bytes of one key, and of the whole file

_CHUNK = 1 << 20  # bytes


class SigningError(Exception):
    """The key file cannot be used. The message names the file, never its content."""

    failure_class = "config"


def key() -> bytes | None:
    """Return the key that signs; None if this process has no key file."""
    found = keys()
    return found[0] if found else None


def keys() -> tuple[bytes, ...]:
    """Return the keys that verify, the signing one first; empty if this process has no key file.

    The variable TRAINYARD_SIGNING_KEY_FILE names the file. Without it, a mounted one is used.

    Raises:
        SigningError: the file cannot be read, or a key is too short.
    """
    named = os.environ.get(KEY_FILE)
    if named is None:
        return keys_in(MOUNTED) if os.path.lexists(MOUNTED) else ()
    return keys_in(Path(named)) if named else ()


def keys_in(path: Path) -> tuple[bytes, ...]:
    """Return the keys of a file, one for each line that is not blank; see `keys`."""
    try:
        content = read_bounded(path, LONGEST, follow=True)  # a mounted Secret consists of links
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise SigningError(f"signing key {path}: {reason}") from None
    found = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not found or min(map(len, found)) < SHORTEST:
        raise SigningError(
            f"signing key {path}: each line must be a key of at least {SHORTEST} bytes; "
            "make one with `head -c 32 /dev/urandom | base64`"
        )
    return found


def key_id(key: bytes) -> str:
    """Return eight hexadecimal digits that name a key and do not reveal it."""
    return hashlib.sha256(_mac(key, "key id").digest()).hexdigest()[:8]


def sign(key: bytes, purpose: str, data: bytes) -> str:
    """Return the signature of `data` as `KEY-ID:HMAC`; it is valid for this purpose only."""
    mac = _mac(key, purpose)
    mac.update(data)
    return f"{key_id(key)}:{mac.hexdigest()}"


def verify(keys: Iterable[bytes], purpose: str, data: bytes, signature: str) -> bool:
    """Return whether one of the keys made this signature of `data` for this purpose."""
    return any(_same(sign(key, purpose, data), signature) for key in keys)


def sign_file(key: bytes, purpose: str, file: BinaryIO) -> str:
    """As `sign`, for the rest of an open file, which is read in pieces."""
    mac = _mac(key, purpose)
    while piece := file.read(_CHUNK):
        mac.update(piece)
    return f"{key_id(key)}:{mac.hexdigest()}"


def verify_file(keys: Iterable[bytes], purpose: str, file: BinaryIO, signature: str) -> bool:
    """As `verify`, for the rest of an open file; a file on a shared volume is copied first, then verified."""
    start = file.tell()
    for key in keys:
        file.seek(start)
        if _same(sign_file(key, purpose, file), signature):
            return True
    return False


def _mac(key: bytes, purpose: str) -> hmac.HMAC:
    if "\0" in purpose:
        raise ValueError("a purpose has no NUL")
    return hmac.new(key, f"trainyard {purpose}\0".encode(), hashlib.sha256)


def _same(right: str, given: str) -> bool:
    return hmac.compare_digest(right.encode(), given.encode(errors="replace"))
