"""What the checkpoint commands share: they ask the trainer's own modules, in a process of their own."""

from pathlib import Path
from typing import Any

from tools.core import output
from tools.core.own_module import answer


def about(what: str, directory: Path, step: int | None = None, *, key: Path | None = None) -> dict[str, Any]:
    """Return the answer of `python -m training.checkpoints WHAT` about the run in `directory`."""
    options = [] if step is None else [f"--step={step}"]
    options += [] if key is None else [f"--key={key.absolute()}"]
    return answer(["training.checkpoints", what, f"--run={directory}", *options])


def size(checkpoint: dict[str, Any]) -> str:
    """Return a checkpoint's bytes, files, ranks and tokens in one line."""
    tokens = "" if checkpoint["tokens"] is None else f", {checkpoint['tokens']:,} tokens seen"
    files, ranks = output.count(checkpoint["file_count"], "file"), output.count(checkpoint["ranks"], "rank")
    return f"{checkpoint['nbytes'] / 1e6:,.1f} MB in {files} by {ranks}{tokens}"
