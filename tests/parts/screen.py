"""A program on a terminal of its own: what it sends, and what a person then sees."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

SECONDS = 120.0  # far above what a test's program needs
FRAME = re.compile(rb"(?=\r\x1b\[(?:2K|1A))")  # a bar or page is erased before it is painted again
QUIET = ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")  # variables of the one who runs the tests


@dataclass(frozen=True)
class Shown:
    """What a program sent to its terminal, each state of the terminal that differed, and how it ended."""

    raw: str
    states: list[list[str]]
    code: int

    @property
    def last(self) -> list[str]:
        """The lines that stay."""
        return self.states[-1]


def show(
    words: Sequence[str],
    columns: int = 80,
    variables: Mapping[str, str] | None = None,
    keys: Mapping[str, bytes | Callable[[], object]] | None = None,
    rows: int = 40,
    cwd: Path | None = None,
) -> Shown:
    """Run a program on a terminal. When it shows a pattern of `keys`, its bytes are typed once, or its function called.

    Each state that the program painted is kept, also where this process was too slow to read them one by one.
    """
    near, far = pty.openpty()
    termios.tcsetwinsize(far, (rows, columns))
    own = {name: value for name, value in os.environ.items() if name not in QUIET}
    environment = {**own, "TERM": "xterm-256color", "PYTHONUTF8": "1", **(variables or {})}
    process = subprocess.Popen(
        words, stdin=far, stdout=far, stderr=far, env=environment, start_new_session=True,
        cwd=cwd, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )  # fmt: skip
    os.close(far)
    screen = pyte.Screen(columns, rows)
    stream, raw, typed = pyte.ByteStream(screen), b"", dict(keys or {})
    states: list[list[str]] = [[]]
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            if not select.select([near], [], [], 1.0)[0]:
                continue
            try:
                got = os.read(near, 65536)
            except OSError:  # the program and its children have closed it
                break
            raw += got
            for part in FRAME.split(got):
                stream.feed(part)
                now = [line.rstrip() for line in screen.display]
                before_cursor = screen.display[screen.cursor.y][: screen.cursor.x]  # with the blank of a prompt
                while now and not now[-1]:
                    now.pop()
                states += [now] if now != states[-1] else []
                for key in [key for key in typed if any(re.search(key, line) for line in (*now, before_cursor))]:
                    then = typed.pop(key)
                    os.write(near, then) if isinstance(then, bytes) else then()
        code = process.wait(SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(near)
    return Shown(raw.decode(errors="replace"), states, code)


def python(text: str, **options: object) -> Shown:
    """Run a program of Python on a terminal."""
    return show([sys.executable, "-c", text], **options)  # type: ignore[arg-type]
