"""The data package's error, and hints for its message."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterable

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class DataError(Exception):
    """The data cannot be used. The message is one line that names the file, the row and the reason."""

    failure_class = "data"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """Return why bytes are not UTF-8 text, with the name of UTF-16, which programs of Windows write."""
    hint = "; it begins as UTF-16 does: convert it to UTF-8" if data.startswith(_UTF_16) else ""
    return f"not UTF-8 text ({error.reason}){hint}"


def reason(error: OSError) -> str:
    """Return the operating system's message for `error`, without the path, which the caller names."""
    return error.strerror or str(error) or type(error).__name__
