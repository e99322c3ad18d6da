"""moto behind HTTP, for what runs in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Faulty:
    """moto's S3 with faults: the next `unavailable` PUTs are answered 503, GETs of `flipped` have a bad byte.

    With `forever`, every PUT whose address has this text is answered 503. With `forgets`, the answer of such a PUT
    is lost once, after it was done.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._app = DomainDispatcherApplication(create_backend_app)
        self.unavailable = 0
        self.flipped = self.forever = self.forgets = ""
        self.requests: list[tuple[str, str]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        whole = f"{path}?{environ.get('QUERY_STRING', '')}"
        if method == "PUT" and (self.unavailable > 0 or (self.forever and self.forever in whole)):
            self.unavailable -= 1
            return _slow_down(environ, start_response)
        if method == "PUT" and self.forgets and self.forgets in whole:
            self.forgets = ""
            b"".join(self._app(environ, lambda *_: None))
            return _slow_down(environ, start_response)
        answer = self._app(environ, start_response)
        if self.flipped and method == "GET" and path.endswith(self.flipped):
            content = bytearray(b"".join(answer))
            content[-1] ^= 1
            return [bytes(content)]
        return answer

    def sent(self) -> list[str]:
        """Names of the uploaded files, in order."""
        return [path.rpartition("/")[2] for method, path in self.requests if method == "PUT"]


def _slow_down(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("503 Slow Down", [("Content-Length", "0")])
    return [b""]


def use(url: str, patch: pytest.MonkeyPatch, empty: Path, key: str = "test", secret: str = "test") -> None:
    """Send this process's requests of S3 to `url`, with these keys only."""
    import boto3

    for name, value in {
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(empty / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(empty / "none"),
    }.items():
        patch.setenv(name, value)
    boto3.DEFAULT_SESSION = None


@contextmanager
def server(app: Any = None) -> Iterator[str]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    served = make_server("127.0.0.1", 0, app or DomainDispatcherApplication(create_backend_app), threaded=True)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.port}"
    served.shutdown()
    thread.join(10)


def ignore_bucket_policies(patch: pytest.MonkeyPatch) -> None:
    """Let moto ignore bucket policies. It applies their denials without looking at the conditions."""
    from moto.iam.access_control import PermissionResult
    from moto.s3.models import FakeBucket

    patch.setattr(FakeBucket, "get_permission", lambda *_: PermissionResult.NEUTRAL)
