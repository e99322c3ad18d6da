"""What the Tab key does in real shells: the lines of the documentation, commands, and cells."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.parts import screen

PROMPT = "go> "
SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "--init-command", f"function fish_prompt; echo -n '{PROMPT}'; end; set fish_greeting"],
}
BEFORE = {"zsh": "autoload -Uz compinit && compinit -u -D; "}  # what every .zshrc with completion has
LINES = Path(__file__).parents[2] / "docs/reference/commands.md"


def documented(shell: str) -> str:
    """Return the line that the documentation gives for a shell."""
    row = next(line for line in LINES.read_text().splitlines() if line.startswith(f"| {shell}"))
    return row.rpartition("| `")[2].removesuffix("` |").replace(r"\|", "|")


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_commands_and_cells(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on PATH: install {shell}")
    shown = screen.show(
        [shell, *SHELLS[shell]],
        variables={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "PS1": PROMPT,
            "LC_ALL": "C.UTF-8",
        },
        keys={
            PROMPT.strip(): f"{BEFORE.get(shell, '')}{documented(shell)}; echo re''ady\n".encode(),
            "ready": b"yard rep\t",
            "yard report": b"\x15yard run cpu/llama-tiny-l\t",
            "yard run cpu/llama-tiny-lora": b"\x15exit\n",
        },
    )  # fmt: skip
    assert any("yard report" in line for state in shown.states for line in state), shown.states[-1]
    assert any("yard run cpu/llama-tiny-lora" in line for state in shown.states for line in state), shown.states[-1]
    assert shown.code == 0
