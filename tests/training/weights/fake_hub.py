"""A small Hugging Face hub on loopback: it answers the requests that huggingface_hub makes like the hub.

Source: huggingface_hub's own client (file_download.py, hf_api.py, utils/_http.py): model info and trees under
/api/models, files under /<id>/resolve/<commit>/ with X-Repo-Commit and ETag, errors by X-Error-Code.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER = "fedcba9876543210fedcba9876543210fedcba98"  # the same files, one commit later
TOKEN = "a-token-of-the-right-person"
CUT_AFTER = 20_000  # bytes of a body before a reset


class FakeHub:
    """Serves one directory as `team/open`, `team/gated` (with TOKEN) and `team/granted-to-others` (never)."""

    def __init__(self, directory: Path) -> None:
        self.files = {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
        self.resets = 0
        """How many of the next file bodies are cut off."""
        self.failures = 0
        """How many of the next requests are answered 503."""
        self.commits = {"v1.0": COMMIT, "main": COMMIT, COMMIT: COMMIT, LATER: LATER}
        """The commit of each revision."""
        self.log: list[tuple[str, str, str]] = []
        """Method, path and Range of every request."""
        self._lock = threading.Lock()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def bodies(self) -> list[str]:
        """Ranges of the requests for the weights themselves."""
        return [r for method, path, r in self.log if method == "GET" and path.endswith(".safetensors")]

    def _take(self, name: str) -> bool:
        with self._lock:
            left: int = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return left > 0

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.log.append((request.command, path, request.headers.get("Range", "")))
        if self._take("failures"):
            return self._send(request, 503, b"")
        api = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        repository, rest = "/".join(parts[:2]), parts[2:]
        refusal = self._refusal(repository, rest, request.headers.get("Authorization", ""), api)
        if refusal is not None:
            status, code = refusal
            return self._send(request, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})
        if api and rest[0] == "revision":
            sha = self.commits[rest[1]]
            return self._json(request, {"id": repository, "sha": sha, "siblings": []})
        if api:
            return self._json(request, [self._entry(name) for name in self.files])
        return self._file(request, rest[-1], self.commits[rest[1]])

    def _refusal(self, repository: str, rest: list[str], token: str, api: bool) -> tuple[int, str] | None:
        """Status and error code of a refusal."""
        if repository not in ("team/open", "team/gated", "team/granted-to-others"):
            return 401 if not token else 404, "RepoNotFound"
        if rest[1] not in self.commits:
            return 404, "RevisionNotFound"
        if repository == "team/granted-to-others" and not api:
            return 403, "GatedRepo"
        if repository == "team/gated" and token != f"Bearer {TOKEN}":
            return 401, "GatedRepo"
        if not api and rest[-1] not in self.files:
            return 404, "EntryNotFound"
        return None

    def _entry(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def _file(self, request: BaseHTTPRequestHandler, name: str, commit: str) -> None:
        data = self.files[name]
        first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        headers = {
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes",
        }  # fmt: skip
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        body = data[first:]
        large = request.command == "GET" and name.endswith(".safetensors")
        if not large or len(body) <= CUT_AFTER or not self._take("resets"):
            return self._send(request, 206 if first else 200, body, headers)
        self._head(request, 206 if first else 200, len(body), headers)
        request.wfile.write(body[:CUT_AFTER])
        request.wfile.flush()
        request.connection.close()
        request.close_connection = True
        return None

    def _json(self, request: BaseHTTPRequestHandler, value: Any) -> None:
        self._send(request, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self._head(request, status, len(body), headers or {})
        if request.command != "HEAD":
            request.wfile.write(body)

    def _head(self, request: BaseHTTPRequestHandler, status: int, length: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            request.send_header(name, value)
        request.end_headers()
