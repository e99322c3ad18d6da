"""Pinned data sets and tokenizers of the hub: the real library with a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from training.data import tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [
    {"messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": f"{n} cats"}]}
    for n in range(9)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TEXTS = [f"text number {n}\n" + "cat " * n for n in range(9)]
FILES = {
    "someone/chats": {"chats.jsonl": LINES.encode()},
    "someone/texts": {
        f"{split}-{part}.jsonl": "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
        for split, part, texts in (("train", 0, TEXTS[:4]), ("train", 1, TEXTS[4:7]), ("test", 0, TEXTS[7:]))
    },
    "someone/words": {},  # a tokenizer, which the test fills in
}
SCRIPT = """
import json, sys
from pathlib import Path
from training.data.errors import DataError
from training.data.examples.prepare_examples import ExampleSettings, prepare_examples
tokenizer, root, *sources = sys.argv[1:]
for source in sources:
    settings = ExampleSettings(source, "text", 0.2, tokenizer, "auto", 400, 64, True, "truncate", "error")
    try:
        index = prepare_examples(settings, Path(root), lambda line: None) / "index.json"
        print(json.loads(index.read_text())["digest"])
    except DataError as error:
        print(error)
"""


PREPARE = """
import json, sys
from pathlib import Path
from training.data.errors import DataError
from training.data.prepare_tokens import prepare_tokens
root, *pairs = sys.argv[1:]
for source, tokenizer in zip(pairs[::2], pairs[1::2]):
    try:
        made = prepare_tokens(source, "text", 0.2, tokenizer, 400, Path(root), lambda line: None)
        print(json.loads((made / "index.json").read_text())["digest"])
    except DataError as error:
        print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """Serves FILES at COMMIT, refuses `someone/secret`, and has no other revision."""

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
        if COMMIT not in path:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        name = next(name for name in FILES if name in path)
        if path == f"/api/datasets/{name}/revision/{COMMIT}":
            siblings = [{"rfilename": file} for file in FILES[name]]
            return 200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {}
        if path.startswith(f"/api/datasets/{name}/tree/{COMMIT}"):
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": "a" * 40} for file, data in FILES[name].items()
            ]
            return 200, json.dumps(tree).encode(), {}
        data = FILES[name].get(path.partition(f"/resolve/{COMMIT}/")[2])
        if data is None:
            return 404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        return 206, part, {"ETag": etag, "X-Repo-Commit": COMMIT, "Content-Range": span}


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ran(hub: str, directory: Path, script: str, *arguments: str) -> list[str]:
    """Run a script that uses this hub; return the lines that it printed."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(directory / "hf"), "HF_TOKEN": "t"}
    environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=Path(__file__).parents[3], env=environment,
        capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_pinned_data_set_of_the_hub(hub: str, tmp_path: Path) -> None:
    """It makes the same dataset as a file of its rows; the hub's refusals are one sentence each."""
    tokenizer.train(iter(["q cats 0 1 2 3 4 5 6 7 8"]), 400).write(tmp_path / "tokenizer")
    (tmp_path / "rows.jsonl").write_text(LINES)
    sources = [
        str(tmp_path / "rows.jsonl"),
        f"someone/chats@{COMMIT}",
        f"someone/chats@{COMMIT}:test",
        f"someone/chats@{COMMIT[::-1]}",
        f"someone/secret@{COMMIT}",
    ]
    said = ran(hub, tmp_path, SCRIPT, str(tmp_path / "tokenizer"), str(tmp_path / "data"), *sources)
    of_file, of_hub, other_split, no_revision, refused = said
    assert of_file == of_hub
    assert len(of_file) == 64
    for source, message in zip(sources[2:], (other_split, no_revision, refused), strict=True):
        assert message.startswith(f"data source {source}: "), message
    assert "test" in other_split.partition(": ")[2]
    assert "revision" in no_revision.partition(": ")[2].lower()
    assert "gated" in refused.lower()


@pytest.mark.timeout(180)
def test_a_data_set_without_paths_and_a_tokenizer_of_the_hub(hub: str, tmp_path: Path) -> None:
    """A data set stands for the files of its train split; a tokenizer is read from its files."""
    words = tmp_path / "words"
    tokenizer.train(iter(TEXTS), 400).write(words)
    FILES["someone/words"] = {path.name: path.read_bytes() for path in words.iterdir()}
    for part in (0, 1):
        file = tmp_path / "train" / f"train-{part}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(FILES["someone/texts"][f"train-{part}.jsonl"])
    texts = f"hf://datasets/someone/texts@{COMMIT}"
    pairs = [
        (str(tmp_path / "train"), str(words)),
        (texts, f"someone/words@{COMMIT}"),
        (f"{texts}/train-*.jsonl", str(words)),
        (texts, "someone/words@main"),
        (texts, f"someone/words@{COMMIT[::-1]}"),
        (texts, f"someone/secret@{COMMIT}"),
        (texts, f"someone/texts@{COMMIT}"),
        (f"hf://datasets/someone/words@{COMMIT}", str(words)),
    ]
    flat = [word for pair in pairs for word in pair]
    of_files, of_hub, of_pattern, branch, no_revision, refused, none, no_rows = ran(
        hub, tmp_path, PREPARE, str(tmp_path / "data"), *flat
    )
    assert of_files == of_hub == of_pattern
    assert len(of_files) == 64
    assert branch.startswith("tokenizer someone/words@main: the revision main is not a commit of 40 hex digits")
    assert no_revision.startswith(f"tokenizer someone/words@{COMMIT[::-1]}: ")
    assert refused.startswith(f"tokenizer someone/secret@{COMMIT}: ")
    assert none == f"tokenizer someone/texts@{COMMIT}: someone/texts has no tokenizer.json at this commit"
    assert no_rows.startswith(
        f"data source hf://datasets/someone/words@{COMMIT}: tokenizer.json cannot be read as rows"
    )
