"""The compiler's cache on disk, kept over restarts but removed after a kill during a compilation.

The C++ compiler writes its libraries in place. A process killed meanwhile leaves half of one, and every later
start would fail to load it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class CompileCache:
    """The directory TORCHINDUCTOR_CACHE_DIR, with a mark beside it while code is compiled into it.

    Without that variable torch uses its own directory, which other programs share; it is never removed.
    """

    def __init__(self) -> None:
        named = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
        self._directory = Path(named) if named else None
        self._mark = Path(f"{named}.dirty") if named else None

    def begin(self) -> str:
        """Mark the cache as being written; return its state before: `whole`, `broken` (removed) or `none`."""
        if self._directory is None or self._mark is None:
            return "none"
        found = "broken" if self._mark.exists() else "whole" if self._directory.is_dir() else "none"
        if found == "broken":
            shutil.rmtree(self._directory, ignore_errors=True)
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        return found

    def done(self) -> None:
        """Remove the mark after the first step: everything that the step needs is complete."""
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
            self._mark = None
