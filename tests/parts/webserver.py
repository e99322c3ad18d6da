"""A web server of a directory with ranges, and a small Hugging Face hub in it.

`hub/<organisation>/<name>/` of the directory is a repository: a model under
`/<organisation>/<name>/resolve/`, a data set under `/datasets/...`. Repositories named `gated...` need TOKEN.
Source of the hub's answers: huggingface_hub's client (hf_api.py, file_download.py).

`python -m tests.parts.webserver DIRECTORY HOST PORT [PAUSE]` serves until it is killed.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_the_right_person"
CHUNK = 1 << 16


@dataclass
class Asked:
    """One request for a file: its first byte, and the bytes that were sent."""

    path: str
    first: int
    sent: int = 0


class WebServer(ThreadingHTTPServer):
    """Serves `root`. `pause` seconds pass before each CHUNK. `asked` has the requests for files."""

    daemon_threads = True

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 0, pause: float = 0.0) -> None:
        super().__init__((host, port), _Handler)
        self.root, self.pause = root, pause
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            good = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            return self._json(200 if good else 401, {"name": "someone"} if good else {})
        if path.startswith("/api/"):
            return self._repository(path.split("/"))
        parts = path.removeprefix("/datasets").strip("/").split("/")
        if len(parts) > 4 and parts[2] == "resolve":
            if self._refused("/".join(parts[:2])):
                return None
            return self._file(path, self.server.root / "hub" / Path(*parts[:2]) / Path(*parts[4:]))
        return self._file(path, self.server.root / path.strip("/"))

    do_HEAD = do_GET

    def _repository(self, parts: list[str]) -> None:
        name, revision = "/".join(parts[3:5]), parts[6] if len(parts) > 6 else "main"
        folder = self.server.root / "hub" / name
        if not folder.is_dir():
            return self._json(401, {}, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._json(404, {}, "RevisionNotFound")
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        siblings = [{"rfilename": str(p.relative_to(folder)), "size": p.stat().st_size} for p in files]
        for entry, path in zip(siblings, files, strict=True):
            if path.suffix == ".safetensors":
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": entry["size"], "pointerSize": 1}
        return self._json(200, {"id": name, "sha": COMMIT, "siblings": siblings})

    def _refused(self, name: str) -> bool:
        gated = name.partition("/")[2].startswith("gated")
        refused = gated and self.headers.get("Authorization") != f"Bearer {TOKEN}"
        if refused:
            self._json(401, {}, "GatedRepo")
        return refused

    def _json(self, status: int, value: object, code: str = "") -> None:
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json", "X-Error-Code": code, "X-Error-Message": code}
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _file(self, path: str, file: Path) -> None:
        if not file.is_file():
            return self._json(404, {}, "EntryNotFound")
        data = file.read_bytes()
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        revision = next(iter(re.findall(r"/resolve/([0-9a-f]{40})/", path)), COMMIT)
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": revision}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self._head(206 if first else 200, len(data) - first, headers)
        asked = Asked(path, first)
        self.server.asked.append(asked)
        print("asked", path, first, flush=True)
        try:
            for at in range(first, len(data) if self.command != "HEAD" else 0, CHUNK):
                time.sleep(self.server.pause)
                self.wfile.write(data[at : at + CHUNK])
                asked.sent += len(data[at : at + CHUNK])
        except OSError:  # the client went away
            self.close_connection = True
        return None

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(root: Path, pause: float = 0.0) -> Iterator[WebServer]:
    """Serve a directory on loopback until the block ends."""
    server = WebServer(root, pause=pause)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    WebServer(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float((*sys.argv, "0")[4])).serve_forever()
