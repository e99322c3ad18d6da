"""Real text for the data tests, and preparations in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from training.data.prepare_tokens import prepare_tokens

REPOSITORY = Path(__file__).parents[3]
VOCABULARY = 512
# Runs one preparation. The last line it prints is the dataset's directory or the error.
SCRIPT = """
import json, os, sys
from pathlib import Path
import training.data.prepare_tokens, training.data.staging, training.data.token_shards
from training.data.errors import DataError

settings = json.loads(sys.argv[1])
stage = settings.pop("stage")
limit = settings.pop("file_limit")

def stop():
    print("reached", flush=True)
    sys.stdin.readline()

def stop_before(module, name):
    original = getattr(module, name)
    def stopped(*arguments, **named):
        stop()
        return original(*arguments, **named)
    setattr(module, name, stopped)

def stop_at_line(line):
    if stage and line.startswith(stage):
        stop()

if stage == "split":
    stop_before(training.data.token_shards.SplitWriter, "finish")
if stage == "index":
    stop_before(training.data.prepare_tokens, "replace")
if stage == "rename":
    stop_before(training.data.staging.os, "rename")
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    root = Path(settings.pop("root"))
    print(training.data.prepare_tokens.prepare_tokens(**settings, root=root, progress=stop_at_line))
except DataError as error:
    print(f"DataError: {error}")
    sys.exit(2)
"""


@pytest.fixture(scope="session")
def stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))


@pytest.fixture(scope="session")
def corpus(stdlib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of some library modules, about 200 KB in two directories."""
    directory = tmp_path_factory.mktemp("library")
    for package in ("email", "json"):
        (directory / package).mkdir()
        for path in sorted((stdlib / package).glob("*.py")):
            (directory / package / path.name).write_bytes(path.read_bytes()[:12_000])
    return directory


Prepare = Callable[..., Path]


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path) -> Prepare:
    """Prepare the corpus, or another source, under `tmp_path / "data"`, with named settings changed."""

    def run(source: Path | str = corpus, **changed: object) -> Path:
        settings: dict[str, object] = {
            "text_field": "text", "heldout_fraction": 0.1, "tokenizer": "train", "vocab_size": VOCABULARY,
            "root": tmp_path / "data", "progress": lambda line: None, **changed,
        }  # fmt: skip
        return prepare_tokens(str(source), **settings)  # type: ignore[arg-type]

    return run


Child = subprocess.Popen[str]


@pytest.fixture
def child(corpus: Path, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Start `prepare` in a process; with `stage` it prints "reached" there and waits for a line on stdin."""
    children: list[Child] = []

    def start(stage: str = "", root: Path = tmp_path / "data", file_limit: int = 0, **environment: str) -> Child:
        settings = {
            "source": str(corpus), "text_field": "text", "heldout_fraction": 0.1, "tokenizer": "train",
            "vocab_size": VOCABULARY, "root": str(root), "stage": stage, "file_limit": file_limit,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        )  # fmt: skip
        children.append(process)
        return process

    yield start
    for process in children:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=180)
