"""The compiler's cache on disk, kept over restarts and never trusted after a kill in the middle of a compile.

The C++ compiler writes its libraries in place: a process killed then leaves half of one, and every later
start would fail to load it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class CompileCache:
    """The directory of TORCHINDUCTOR_CACHE_DIR with a mark beside it while code is compiled into it.

    Without that variable torch's own directory is used, which other programs share: it is left alone.
    """

    def __init__(self) -> None:
        named = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
        self._directory = Path(named) if named else None
        self._mark = Path(f"{named}.dirty") if named else None

    def begin(self) -> str:
        """Mark the cache as being written; says what was found: `whole`, `broken` (it is removed), `none`."""
        if self._directory is None or self._mark is None:
            return "none"
        found = "broken" if self._mark.exists() else "whole" if self._directory.is_dir() else "none"
        if found == "broken":
            shutil.rmtree(self._directory, ignore_errors=True)
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        return found

    def done(self) -> None:
        """The first step has run: everything it needs is whole."""
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
            self._mark = None
