"""Retries of network requests: how often, after which pause, and which HTTP errors are worth one."""

from __future__ import annotations

import email.utils
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.data.errors import DataError

# RFC 9110 and 6585: the request may succeed when it is repeated.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class GaveUp(DataError):
    """A request failed too often in a row. Another attempt may help later."""


class Stopped(Exception):
    """Reading a file was stopped while it waited for the network."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a source may fail. Times in seconds.

    `attempts` failures in a row without one new byte are an error. The pause before the next attempt is
    `first`, doubled each time up to `most`, and shortened at random by up to a half so that ranks do not
    return all at once. A server that sends nothing for `silence` has failed. `longest` is the longest
    `Retry-After` that is waited for.
    """

    attempts: int = 8
    first: float = 0.5
    most: float = 30.0
    silence: float = 30.0
    longest: float = 300.0

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row."""
        upper = min(self.most, self.first * 2.0 ** (failures - 1))
        return upper * random.uniform(0.5, 1.0)


POLICY = RetryPolicy()


class Retries:
    """Counts the failures in a row of one request, and waits between them."""

    def __init__(self, name: str, tell: Callable[[str], None], stop: threading.Event) -> None:
        self._name, self._tell, self._stop = name, tell, stop
        self._policy, self._failures = POLICY, 0

    def succeeded(self) -> None:
        """Start counting from zero again."""
        self._failures = 0

    def failed(self, why: str, retry_after: float = 0.0) -> None:
        """Pause before the next attempt. Raises DataError after the last attempt, Stopped when stopped."""
        policy = self._policy
        self._failures += 1
        count = f"{self._failures} of {policy.attempts} attempts"
        if self._failures >= policy.attempts:
            raise GaveUp(f"{self._name}: {why}; gave up after {count}")
        if retry_after > policy.longest:
            wanted = f"asks to wait {retry_after:,.0f} s, more than {policy.longest:,.0f} s"
            raise DataError(f"{self._name}: {why} and {wanted}")
        seconds = max(retry_after, policy.pause(self._failures))
        self._tell(f"{self._name}: {why}; {count} failed, the next in {seconds:.1f} s")
        if self._stop.wait(seconds):
            raise Stopped

    def answered(self, status: int, headers: Any) -> None:
        """Handle an HTTP error: pause as `failed` does if it is transient, else raise DataError."""
        if status not in _TRANSIENT:
            raise DataError(f"{self._name}: {_refusal(status)}")
        self.failed(f"the server answered {status}", _retry_after(headers))


def describe(error: Exception) -> str:
    """Return what went wrong on the network, in words."""
    import httpx2

    if isinstance(error, httpx2.TimeoutException):
        return "the server is silent"
    return str(error) or type(error).__name__


def is_untrusted(error: BaseException | None) -> bool:
    """Return whether an error comes from a certificate that is not trusted, which no other attempt changes."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _retry_after(headers: Any) -> float:
    """Return the seconds of a `Retry-After` header, a number or a date (RFC 9110, 10.2.3); 0 without one."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"the server refuses access ({status}); a gated repository of the hub needs a token (HF_TOKEN)"
    if status in (404, 410):
        return f"the server has no such file ({status})"
    return f"the server answered {status}"
