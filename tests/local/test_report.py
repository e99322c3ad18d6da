"""What `yard run` reads of a failed pod's log."""

from __future__ import annotations

import os
from pathlib import Path

from tools.local import report


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    """The file has a hole of 4 TiB, which no memory holds."""
    log = tmp_path / "worker-0.log"
    log.touch()
    os.truncate(log, 1 << 42)
    with log.open("a", encoding="utf-8") as file:
        file.write("\n--- attempt 2\nstep 1\n[rank0]: ValueError: no such split\nend\n")
    assert report.last_lines(log) == "[rank0]: ValueError: no such split"
    assert report.last_lines(tmp_path / "absent.log") == ""
