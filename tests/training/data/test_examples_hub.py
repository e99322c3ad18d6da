"""Examples of a pinned data set of the hub: the real library against a small hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from training.data import tokenizer as tokenizers_

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [
    {"messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": f"{n} cats"}]}
    for n in range(9)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
FILES = {"chats.jsonl": LINES.encode()}
SCRIPT = """
import json, sys
from pathlib import Path
from training.data.errors import DataError
from training.data.examples.prepare import ExampleSettings, prepare_examples
tokenizer, root, *sources = sys.argv[1:]
for source in sources:
    settings = ExampleSettings(source, "text", 0.2, tokenizer, "auto", 400, 64, True, "truncate", "error")
    try:
        index = prepare_examples(settings, Path(root), lambda line: None) / "index.json"
        print(json.loads(index.read_text())["digest"])
    except DataError as error:
        print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """Serves `someone/chats` at COMMIT, refuses `someone/secret`, and has no other revision."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        code, body, headers = self._answer()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _answer(self) -> tuple[int, bytes, dict[str, str]]:
        path = self.path.partition("?")[0]
        if "someone/secret" in path:
            return 401, b"{}", {"X-Error-Code": "GatedRepo"}
        if "someone/chats" in path and COMMIT not in path:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        if path == f"/api/datasets/someone/chats/revision/{COMMIT}":
            siblings = [{"rfilename": name} for name in FILES]
            return 200, json.dumps({"id": "someone/chats", "sha": COMMIT, "siblings": siblings}).encode(), {}
        if path.startswith(f"/api/datasets/someone/chats/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": "a" * 40}
                for name, data in FILES.items()
            ]
            return 200, json.dumps(tree).encode(), {}
        data = FILES.get(path.rpartition("/")[2])
        if data is None:
            return 404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return 206, part, {"ETag": '"a"', "X-Repo-Commit": COMMIT, "Content-Range": span}


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.timeout(120)
def test_a_pinned_data_set_of_the_hub(hub: str, tmp_path: Path) -> None:
    """The same rows make the same dataset as a file of them; what the hub refuses is one sentence."""
    tokenizers_.train(iter(["q cats 0 1 2 3 4 5 6 7 8"]), 400).write(tmp_path / "tokenizer")
    (tmp_path / "rows.jsonl").write_text(LINES)
    sources = [
        str(tmp_path / "rows.jsonl"),
        f"someone/chats@{COMMIT}",
        f"someone/chats@{COMMIT}:test",
        f"someone/chats@{COMMIT[::-1]}",
        f"someone/secret@{COMMIT}",
    ]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "tokenizer"), str(tmp_path / "data"), *sources]
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "t"}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    of_file, of_hub, other_split, no_revision, refused = done.stdout.splitlines()
    assert of_file == of_hub
    assert len(of_file) == 64
    for source, message in zip(sources[2:], (other_split, no_revision, refused), strict=True):
        assert message.startswith(f"data source {source}: "), message
    assert "test" in other_split.partition(": ")[2]
    assert "revision" in no_revision.partition(": ")[2].lower()
    assert "gated" in refused.lower()
