"""Timestamps of the Kubernetes API, and durations for people."""

from datetime import UTC, datetime

from training.run.timestamps import moment as moment


def epoch(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min`, `3 h 05 min` or `2 d 4 h`."""
    whole = round(max(0.0, seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
