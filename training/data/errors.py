"""The data package's error, and hints for its message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataError(Exception):
    """The data cannot be used. The message is one line that names the file, the row and the reason."""

    failure_class = "data"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def reason(error: OSError) -> str:
    """Return the operating system's message for `error`, without the path, which the caller names."""
    return error.strerror or str(error) or type(error).__name__
