"""A real HTTP server on loopback that fails on a seeded schedule, and shards of numbered documents."""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from training.data import retries

SHARDS, ROWS = 9, 60
WORDS = (
    "zinc",
    "oak",
    "fern",
    "reed",
    "moss",
    "clay",
    "dune",
    "peak",
    "vale",
    "gulf",
    "cove",
    "isle",
    "ford",
)
FAULTS = ("429", "503", "503 date", "reset", "cut", "slow", "silent")


def text_of(shard: int, row: int) -> str:
    """One document: its unique number and seeded words."""
    draw = random.Random(shard * 1000 + row)
    return f"document {shard:02d}-{row:03d} " + " ".join(draw.choices(WORDS, k=draw.randint(5, 60)))


ALL_TEXTS = {text_of(shard, row) for shard in range(SHARDS) for row in range(ROWS)}


@dataclass
class Server:
    """The server's files and behaviour. `share` of the requests fail, in a way drawn from `seed`."""

    files: dict[str, bytes]
    share: float = 0.0
    seed: int = 0
    dead: frozenset[str] = frozenset()
    ranges: bool = True
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    asked_at: dict[str, list[float]] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pattern(self) -> str:
        """The shards as one source."""
        return f"{self.url}/shard-{{00..{SHARDS - 1:02d}}}.jsonl.gz"

    def fault(self, path: str) -> str:
        """Return what happens to the next request for `path`: a function of seed, path and its number."""
        number = sum(1 for asked, _, _ in self.requests if asked == path)
        draw = random.Random(f"{self.seed} {path} {number}")
        return draw.choice(FAULTS) if draw.random() < self.share else ""

    def faults(self) -> Counter[str]:
        """Count the faults by kind."""
        return Counter(fault for _, _, fault in self.requests if fault)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            with lock:
                fault = "dead" if self.path in server.dead else server.fault(self.path)
                server.requests.append((self.path, asked, fault))
                server.asked_at.setdefault(self.path, []).append(time.monotonic())
                server.headers.append(dict(self.headers))
            if self.path.partition("?")[0] not in server.files:
                self._refuse(404, {})
            elif fault in ("429", "503", "dead"):
                self._refuse(int(fault) if fault != "dead" else 503, {"Retry-After": "0"} if fault == "429" else {})
            elif fault == "503 date":
                self._refuse(503, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"})
            elif fault == "reset":
                self._reset()
            else:
                self._send(asked, fault)

        def _refuse(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def _reset(self) -> None:
            """Close with a reset instead of an orderly end."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def _send(self, asked: str, fault: str) -> None:
            data = server.files[self.path.partition("?")[0]]
            first = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and server.ranges else 0
            self.send_response(206 if first else 200)
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - first))
            self.send_header("ETag", f'"{len(data)}"')
            self.end_headers()
            body = data[first:]
            if fault:  # cut, slow or silent: a part of the body, then the end, a pause, or nothing
                half = len(body) // 2
                self._write(body[:half])
                if fault == "slow":
                    time.sleep(0.05)
                    self._write(body[half:])
                    return
                if fault == "silent":
                    time.sleep(1.0)
                self._reset() if half % 2 else setattr(self, "close_connection", True)
                return
            self._write(body)

        def _write(self, data: bytes) -> None:
            try:
                self.wfile.write(data)
                self.wfile.flush()
            except OSError:  # the reader closed the connection
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


@pytest.fixture(scope="session")
def shard_bytes() -> dict[str, bytes]:
    """The shards by path: compressed JSON lines of different sizes."""
    return {
        f"/shard-{shard:02d}.jsonl.gz": gzip.compress(
            "".join(json.dumps({"text": text_of(shard, row)}) + "\n" for row in range(ROWS)).encode(), mtime=0
        )
        for shard in range(SHARDS)
    }


@pytest.fixture
def serve(shard_bytes: dict[str, bytes]) -> Iterator[Callable[..., Server]]:
    """Start a server: `serve(share=0.4, seed=1)`."""
    running: list[ThreadingHTTPServer] = []

    def start(**settings: object) -> Server:
        server = Server(files=dict(shard_bytes), **settings)  # type: ignore[arg-type]
        listening = ThreadingHTTPServer(("127.0.0.1", 0), handler(server))
        listening.daemon_threads = True
        server.port = listening.server_address[1]
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(listening)
        return server

    yield start
    for listening in running:
        listening.shutdown()
        listening.server_close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds instead of seconds; more attempts, because these servers fail often."""
    policy = retries.RetryPolicy(attempts=20, first=0.01, most=0.05, silence=0.3, longest=2.0)
    monkeypatch.setattr(retries, "POLICY", policy)


@pytest.fixture
def shard_directory(shard_bytes: dict[str, bytes], tmp_path: Path) -> Path:
    """The same shards as files."""
    directory = tmp_path / "shards"
    directory.mkdir()
    for name, data in shard_bytes.items():
        (directory / name.strip("/")).write_bytes(data)
    return directory
