"""moto behind HTTP, for what runs in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def server() -> Iterator[str]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    served = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
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
