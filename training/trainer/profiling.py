"""A torch profile of some steps, if TRAINYARD_PROFILE is set: `<first step>:<steps>`, for example `20:3`.

Each rank writes `<run>/profile/rank-00000.json.gz`, for ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from training.config import ConfigError
from training.run import heartbeat
from training.run.failure import one_line


class Profile:
    """Records the requested steps; does nothing if none were requested."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Read TRAINYARD_PROFILE. Raises ConfigError if it is not two numbers."""
        asked = os.environ.get("TRAINYARD_PROFILE", "")
        form = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", asked)
        if asked and form is None:
            raise ConfigError(f"TRAINYARD_PROFILE is {asked!r}: write <first step>:<steps>, for example 20:3")
        self._first, self._count = (int(form[1]), int(form[2])) if form else (0, 0)
        self._path = directory / f"rank-{rank:05d}.json.gz"
        self._running: torch.profiler.profile | None = None

    def before(self, step: int) -> None:
        """Call before a step, counted from 1."""
        if self._count and step == self._first:
            self._running = torch.profiler.profile(record_shapes=True)
            self._running.start()

    def after(self, step: int) -> str | None:
        """Call after a step; after the last requested one, write the profile and return a line about it.

        A profile that cannot be written does not end the run.
        """
        if self._running is None or step < self._first + self._count - 1:
            return None
        running, self._running = self._running, None
        try:
            with heartbeat.during("saving"):
                running.stop()
                self._path.parent.mkdir(parents=True, exist_ok=True)
                running.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            return f"the profile was not written to {self._path}: {one_line(str(error))}"
        return f"profile written to {self._path}"
