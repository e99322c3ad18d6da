"""Carries out the plan of a proof: `python -I __main__.py PLAN DIRECTORY`. Prints one JSON object a line.

It needs the standard library only, and ends all that it started when it gets SIGINT or SIGTERM, or when its
parent ends.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from training.prove import plan, runner

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Stopped(BaseException):
    """The runner was asked to stop."""


def _stop(number: int, _frame: object) -> None:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise Stopped(number)


def _say(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Return 0 when the plan was carried out, 2 for a bad plan, 130 or 143 when asked to stop."""
    path, out = Path(arguments[0]), Path(arguments[1])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        wanted = plan.read(path)
    except (OSError, ValueError, TypeError, KeyError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    try:
        runner.run(wanted, out, _say)
    except Stopped as stopped:
        return 128 + int(stopped.args[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
