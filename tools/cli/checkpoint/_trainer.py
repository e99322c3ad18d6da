"""What the checkpoint commands share: they ask the trainer's own modules, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.core import output, repo
from tools.core.errors import UserError


def about(what: str, directory: Path, step: int | None = None, *, key: Path | None = None) -> dict[str, Any]:
    """Return the answer of `python -m training.checkpoints WHAT` about the run in `directory`."""
    options = [] if step is None else [f"--step={step}"]
    options += [] if key is None else [f"--key={key.absolute()}"]
    return answer(["training.checkpoints", what, f"--run={directory}", *options])


def answer(module: list[str]) -> dict[str, Any]:
    """Run a module of the trainer, show its progress, and return the JSON that it prints.

    Raises:
        UserError: the module failed; the message is its own last line.
    """
    with tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=repo.root(),
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stderr is not None
        last = ""
        for line in filter(str.strip, child.stderr):
            last = line.strip()
            if not last.startswith("error: "):
                output.note(last)
        if child.wait() != 0:
            message = last.removeprefix("error: ") or f"no answer (exit code {child.returncode})"
            raise UserError(message, code=2 if child.returncode == 2 else 1)
        printed.seek(0)
        result: dict[str, Any] = json.load(printed)
        return result


def size(checkpoint: dict[str, Any]) -> str:
    """Return a checkpoint's bytes, files, ranks and tokens in one line."""
    tokens = "" if checkpoint["tokens"] is None else f", {checkpoint['tokens']:,} tokens seen"
    files, ranks = output.count(checkpoint["file_count"], "file"), output.count(checkpoint["ranks"], "rank")
    return f"{checkpoint['nbytes'] / 1e6:,.1f} MB in {files} by {ranks}{tokens}"
