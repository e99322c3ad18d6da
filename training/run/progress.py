"""How often a process that works for long prints where it is."""

from __future__ import annotations

import os
import sys

VARIABLE = "TRAINYARD_LINE_SECONDS"
TERMINAL, LOG = 1.0, 10.0  # seconds between two lines, for a person who watches and for a log


def line_seconds() -> float:
    """Return the seconds between two progress lines.

    A process whose output another one relays to a terminal is told so by TRAINYARD_LINE_SECONDS.
    """
    given = os.environ.get(VARIABLE, "")
    if given.isdigit() and int(given) > 0:
        return float(given)
    return TERMINAL if sys.stderr.isatty() else LOG
