"""Serves a run's metrics over HTTP from process 1, where TRAINYARD_METRICS names an address (HOST:PORT)."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from training.pod.exposition import CONTENT_TYPE

VARIABLE = "TRAINYARD_METRICS"
REQUEST_SECONDS = 5.0  # time for one request; a client that sends slowly delays only other readers of metrics


def address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address of TRAINYARD_METRICS, None without it. Raises ValueError."""
    text = environment.get(VARIABLE, "")
    host, _, port = text.rpartition(":")
    if not text:
        return None
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ValueError(f"{VARIABLE} is {text[:80]!r}: write an address and a port, for example 10.0.0.7:9464")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def served(where: tuple[str, int] | None, text: Callable[[], str], say: Callable[[str], None]) -> Iterator[None]:
    """Answer GET /metrics with `text()` while the context lasts; an address that cannot be used is only told."""
    server = None if where is None else _server(where, text, say)
    if server is None:
        yield
        return
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(socketserver.TCPServer):
    """As http.server.HTTPServer, which asks DNS for its own name first and can wait long for that."""

    allow_reuse_address = True

    def handle_error(self, _request: Any, _client: Any) -> None:
        """Print nothing: a client that went away is not worth a line in the pod's log."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server(where: tuple[str, int], text: Callable[[], str], say: Callable[[str], None]) -> _Server | None:
    try:
        return (_Server6 if ":" in where[0] else _Server)(where, _handler(text))
    except OSError as problem:
        say(f"no metrics at {where[0]} port {where[1]}: {problem.strerror or problem}")
        return None


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "trainyard", ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is here")
                return
            try:
                body = text().encode()
            except Exception as problem:  # noqa: BLE001 - whatever a file holds, the reader gets an answer
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, type(problem).__name__)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            """Print nothing: a scrape every few seconds would fill the pod's log."""

    return Handler
