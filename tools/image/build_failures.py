"""Why a build failed: one cause from the engine's output, with its line and a fix."""

import functools
import re
from dataclasses import dataclass

from tools.core import secret_patterns, tables


@dataclass(frozen=True)
class Cause:
    """Why a build failed. `line` is the line of the output that shows it, `step` the failed instruction."""

    kind: str
    line: str
    remedy: str
    retry: bool = False
    step: str | None = None


@dataclass(frozen=True)
class Pattern:
    """The lines that show a cause."""

    kind: str
    lines: re.Pattern[str]
    remedy: str
    retry: bool


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FAILED_STEP = re.compile(r"(?m)^#(\d+) ERROR: ")
STEP = re.compile(r"(?m)^Step (\d+/\d+ : .*)$")
BUILDER = re.compile(r"^(?:-+$|>|\s*\d+ \||ERROR: failed to|#\d+ ERROR|The command '|executor failed|Dockerfile)")
CODE = re.compile(r"(?:exit code: |returned a non-zero code: )(\d+)")


@functools.cache
def patterns() -> tuple[Pattern, ...]:
    """Return the rows of build_failures.yaml. The first one that matches is the cause."""
    return tuple(
        Pattern(row["cause"], re.compile("|".join(row["lines"]), re.I), row["fix"], row.get("retry", False))
        for row in tables.load("image/build_failures.yaml")
    )


def cause(output: str) -> Cause:
    """Return the cause of a failed build, from the output of the failed step."""
    text, failed = _failing(COLOUR.sub("", output))
    step = secret_patterns.mask(failed) if failed else None
    survived = "No matching distribution found" not in text  # pip ends with this if its retries did not help
    lines = [line.strip() for line in text.splitlines() if line.strip() and not (survived and "Retrying (" in line)]
    for pattern in patterns():
        found = [line for line in lines if pattern.lines.search(line)]
        if found:
            line = min(reversed(found), key=len)  # the one without the builder's prefix
            return Cause(pattern.kind, secret_patterns.mask(_plain(line)), pattern.remedy, pattern.retry, step)
    # The failed command itself, without the builder's lines around it.
    inner = [_plain(line) for line in lines if not BUILDER.match(line)]
    words = inner or [_plain(line) for line in lines] or ["the builder printed nothing"]
    code, last = CODE.search(output), secret_patterns.mask(words[-1])
    kind = f"a command ended with {code[1]}" if code else "unknown"
    return Cause(kind, last, "the lines above show why; the whole output is in the log", step=step)


def _failing(output: str) -> tuple[str, str | None]:
    """Return the output of the failed step and its instruction; the whole output if no step is known."""
    failed = FAILED_STEP.search(output)
    if failed:
        number = failed[1]
        lines = [line for line in output.splitlines() if line.startswith(f"#{number} ")]
        title = next((line.split(" ", 1)[1] for line in lines if line.split(" ", 1)[1].startswith("[")), None)
        return "\n".join([*lines, output[failed.end() :].partition("\n")[2]]), title
    steps = list(STEP.finditer(output))
    if steps:
        return output[steps[-1].end() :], steps[-1][1]
    return output, None


def _plain(line: str) -> str:
    """Return a line without BuildKit's step number and time."""
    return re.sub(r"^#\d+ (?:\d+\.\d+ )?", "", line)
