"""The commands of docs/data.md that stage on this machine run as printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import printed
from tests.parts import tree


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_printed_commands(tmp_path: Path) -> None:
    """In a copy of the checkout, with a `local/` of its own."""
    checkout = tree.copy(tmp_path / "checkout")
    corpus = checkout / "corpus"
    corpus.mkdir()
    for path in sorted(Path(json.__file__).parents[1].glob("[a-i]*.py")):
        (corpus / path.name).write_bytes(path.read_bytes())
    for line in printed.run_by("tests/stage/test_printed.py"):
        words = line.replace(".venv/bin/yard", f"{sys.executable} -m tools.cli")
        done = subprocess.run(words, shell=True, cwd=checkout, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert (checkout / "local/text/corpus/argparse.py").is_file()
    metrics = (checkout / "local/runs/cpu-llama-tiny-train-corpus/metrics.jsonl").read_text()
    assert '"step": 5' in metrics
