"""How a process ended, in words."""

from __future__ import annotations

import signal


def exit_in_words(code: int) -> str:
    """Return a return code in words; negative codes are signals: `was killed by SIGKILL`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
