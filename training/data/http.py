"""Reads a file over HTTP like a local one. After a transient failure it continues where it stopped.

Transient failures are a busy server (429, 503), a broken connection, a body that stops early. The next
request asks for the missing bytes, after a pause that doubles each time and not before the server's
`Retry-After`. So each byte is delivered once, in order. A permanent failure (404, 403, a file that changed)
or too many failures in a row are a DataError with the URL.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from training.data import retries
from training.data.errors import DataError
from training.data.retries import Retries, describe, is_untrusted

_MOST_REDIRECTS = 20
_SIZE = re.compile(r"[0-9]{1,18}")  # bytes


class RemoteFile(io.RawIOBase):
    """A readable, seekable file behind a URL. The callback `tell` gets a line for each failed attempt."""

    def __init__(
        self,
        url: str,
        tell: Callable[[str], None] = lambda line: None,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__()
        self.url = url
        self._retries = Retries(url, tell, stop or threading.Event())
        self._client = httpx2.Client(timeout=retries.POLICY.silence)
        self._headers = {"Accept-Encoding": "identity", **_authorization(url)}
        self._position = 0
        self._size: int | None = None
        self._validator: str | None = None
        self._answer: Any = None
        self._body: Iterator[bytes] = iter(())
        self._rest = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    @property
    def size(self) -> int:
        """Size of the whole file in bytes, from the server. Raises DataError."""
        while self._size is None:
            self._attempt(self._open)
        return self._size

    @property
    def version(self) -> str:
        """What the server says to tell the file from another one at the same URL: ETag, or time of change.

        Raises DataError.
        """
        return f"{self.size} {self._validator or ''}"

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; the next read requests the bytes from there on."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        target = (self.size if base is None else base) + offset
        if target != self._position:
            self._hang_up()
            self._position = target
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with the next bytes; 0 only at the file's end. Raises DataError."""
        view = memoryview(buffer).cast("B")
        if not len(view):
            return 0
        while self._position < self.size:
            if self._attempt(self._fill):
                count = min(len(view), len(self._rest))
                view[:count] = self._rest[:count]
                self._rest = self._rest[count:]
                self._position += count
                return count
        return 0

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        self._client.close()
        super().close()

    def _attempt(self, action: Callable[[], bool]) -> bool:
        """Run one network action; False, after a pause, if it failed transiently."""
        try:
            done = action()
        except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
            raise DataError(f"{self.url}: {describe(error)}") from None
        except httpx2.TransportError as error:
            self._hang_up()
            if is_untrusted(error):
                raise DataError(f"{self.url}: the server's certificate is not trusted: {describe(error)}") from None
            self._retries.failed(describe(error))
            return False
        if done:
            self._retries.succeeded()
        return done

    def _fill(self) -> bool:
        """Put at least one byte into `_rest`; False, after a pause, if the request failed transiently."""
        if self._rest:
            return True
        if self._answer is None and not self._open():
            return False
        self._rest = next(self._body, b"")
        if self._rest:
            return True
        self._hang_up()
        self._retries.failed(f"the answer ended at byte {self._position:,} of {self.size:,}")
        return False

    def _open(self) -> bool:
        """Request the bytes from the position on; False, after a pause, if the server is busy."""
        headers = dict(self._headers)
        if self._position:
            headers["Range"] = f"bytes={self._position}-"
        answer = self._redirected(self._client.build_request("GET", self.url, headers=headers))
        if answer.status_code not in (200, 206):
            answer.close()
            self._retries.answered(answer.status_code, answer.headers)
            return False
        self._answer, self._body = answer, answer.iter_raw()
        self._check_same(answer)
        if answer.status_code == 200 and self._position:
            self._skip(self._position)
        return True

    def _redirected(self, request: Any) -> Any:
        """Send a request and follow redirects; their bodies, which may be endless, are not read."""
        for _ in range(_MOST_REDIRECTS):
            answer = self._client.send(request, stream=True)
            if answer.next_request is None:
                return answer
            answer.close()
            request = answer.next_request
        raise httpx2.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects", request=request)

    def _check_same(self, answer: Any) -> None:
        """Keep size and validator of the first answer; refuse a changed file later."""
        size, validator = _size(answer), answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if size is None:
            raise DataError(f"{self.url}: the server does not give the file's size")
        if self._size is None:
            self._size, self._validator = size, validator
        elif (size, validator) != (self._size, self._validator):
            raise DataError(f"{self.url}: the file changed while it was read")
        first = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if answer.status_code == 206 and first != str(self._position):
            raise DataError(f"{self.url}: the server sent bytes from another position than {self._position:,}")

    def _skip(self, count: int) -> None:
        """Drop the first bytes, for a server that ignores the requested range."""
        while count > 0:
            data = next(self._body, b"")
            if not data:
                raise httpx2.ReadError("the answer ended early")
            self._rest, count = data[count:], count - len(data)

    def _hang_up(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer, self._body, self._rest = None, iter(()), b""


def _authorization(url: str) -> dict[str, str]:
    """Return the hub's token for the hub's URLs, and nothing for other servers."""
    import huggingface_hub
    from huggingface_hub import constants

    if not url.startswith(f"{constants.ENDPOINT.rstrip('/')}/"):
        return {}
    if constants.is_offline_mode():
        raise DataError(f"{url}: HF_HUB_OFFLINE is set, and the file is on the hub")
    token = huggingface_hub.get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _size(answer: Any) -> int | None:
    """Return the whole file's size from `Content-Range` or `Content-Length`, None without them."""
    if answer.status_code == 206:
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        total = answer.headers.get("Content-Length", "")
    return int(total) if _SIZE.fullmatch(total) else None
