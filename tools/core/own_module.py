"""Asks a module of `training` in a process of its own, for what the yard command may not import."""

import json
import subprocess
import sys
import tempfile
from typing import Any

from tools.core import output, repo
from tools.core.errors import UserError


def answer(module: list[str]) -> dict[str, Any]:
    """Run a module of the trainer, show its progress, and return the JSON that it prints.

    Raises UserError with its last line if it fails.
    """
    with tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(
            [sys.executable, "-m", *module], cwd=repo.root(), stdout=printed, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        last = ""
        with output.activity(module[0].removeprefix("training.")) as now:
            for line in filter(str.strip, child.stderr):
                last = line.strip()
                if not last.startswith("error: "):
                    now.at(last)
        if child.wait() != 0:
            message = last.removeprefix("error: ") or f"no answer (exit code {child.returncode})"
            hint = repo.how_to_install("train") if message.endswith("which is not installed") else None
            raise UserError(message, hint, child.returncode if child.returncode in (2, 3) else 1)
        printed.seek(0)
        result: dict[str, Any] = json.load(printed)
        return result
