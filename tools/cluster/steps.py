"""Commands of yard and of other programs that are run one after the other, with their output."""

import shlex
import sys
from dataclasses import dataclass

from tools.core import Say, UserError, command_line, programs, repo

LAST_LINES = 5


@dataclass(frozen=True)
class Step:
    """A command, and its purpose."""

    title: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)


def run(step: Step, hint: str, say: Say) -> None:
    """Run a command and print its output. Raises UserError with its last error where it fails."""
    words = step.words
    if words[0] == "yard":
        words = (sys.executable, "-m", "tools.cli", *words[1:])
    try:
        code, lines = command_line.streamed(words, lambda line: say(f"  {line.rstrip()}"), directory=repo.project())
    except FileNotFoundError:
        raise UserError(f"{words[0]} is not on PATH", programs.how_to_install(words[0])) from None
    if code != 0:
        said = [line.strip() for line in reversed(lines[-LAST_LINES:]) if line.strip()]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        cause = next(iter((*errors, *said)), "no output")
        # The exit codes of yard keep their meaning.
        code = code if step.words[0] == "yard" and code in (2, 3) else 1
        raise UserError(f"{' '.join(step.words[:3])} failed: {cause}", hint, code)
