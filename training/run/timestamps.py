"""Timestamps of other programs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any


def moment(text: Any) -> datetime | None:
    """Return an RFC 3339 timestamp in UTC, or None if it is missing or invalid."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
