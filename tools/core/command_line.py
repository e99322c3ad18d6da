"""Command lines of other programs, and their bounded answers.

Whoever creates an object, an image or a file chooses its name. Such a name is checked here before it joins a
command line, so that no program reads it as an option, as a path or as more than one word.
"""

import contextlib
import functools
import math
import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tools.core.errors import UserError

CANNOT_TELL = 3  # exit code
LARGEST_ANSWER = 256 * 2**20  # bytes that are read from one program
CHUNK = 2**20
LONGEST_LINE, MOST_LINES = 65536, 20_000  # characters of a line, and lines that are kept
# Source: kubernetes.io/docs/concepts/overview/working-with-objects/names
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST_LABEL, LONGEST_SUBDOMAIN = 63, 253


def is_label(text: object) -> bool:
    """Return whether Kubernetes allows `text` as the name of a namespace, container or volume."""
    return isinstance(text, str) and len(text) <= LONGEST_LABEL and bool(LABEL.fullmatch(text))


def is_subdomain(text: object) -> bool:
    """Return whether Kubernetes allows `text` as the name of most objects."""
    return isinstance(text, str) and len(text) <= LONGEST_SUBDOMAIN and bool(SUBDOMAIN.fullmatch(text))


def object_name(text: object, what: str = "an object") -> str:
    """Return the name of an object. Raises UserError if Kubernetes does not allow it."""
    if not is_subdomain(text):
        message = f"{what} has a name that Kubernetes does not allow: {str(text)[:80]!r}"
        raise UserError(message, "find out who wrote this name, and why", CANNOT_TELL)
    return str(text)


def selector(label: str, value: object) -> str:
    """Return kubectl's option for the objects with this label. Raises UserError for an invalid value."""
    return f"--selector={label}={object_name(value, f'the label {label}')}"


def selectors(labels: Mapping[str, str]) -> str:
    """Return kubectl's option for objects with all these labels. Raises UserError for an invalid value."""
    pairs = (selector(label, value).partition("=")[2] for label, value in labels.items())
    return f"--selector={','.join(pairs)}"


def operand(text: str, what: str) -> str:
    """Return a word that is not an option. Raises UserError if a program would read it as one."""
    if not text or text.startswith("-") or not text.isprintable():
        raise UserError(f"{what}: {text[:80]!r} is empty, begins with a dash or has control characters")
    return text


class TooLarge(Exception):
    """A program printed more than was asked for."""


def captured(
    argv: Sequence[str],
    *,
    stdin: bytes | None = None,
    seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
    largest: int = LARGEST_ANSWER,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program and return its output and exit code.

    Raises OSError without a start, subprocess.TimeoutExpired after `seconds`, TooLarge for more than `largest` bytes.
    """
    given = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    process = subprocess.Popen(argv, env=environment, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    answer, complaint = (Reader(stream, largest) for stream in (process.stdout, process.stderr))
    threads: list[threading.Thread] = [answer, complaint]
    if process.stdin is not None:
        threads.append(threading.Thread(target=_write, args=(process.stdin, stdin), daemon=True))
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if seconds is None else max(0.0, deadline - time.monotonic()))
            if answer.is_over or complaint.is_over:
                raise TooLarge(f"more than {largest // 2**20} MiB")
            if thread.is_alive():
                raise subprocess.TimeoutExpired(argv, seconds or 0)
        process.wait(None if seconds is None else max(0.0, deadline - time.monotonic()))
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(argv, process.returncode, bytes(answer.data), bytes(complaint.data))


def streamed(
    argv: Sequence[str],
    say: Callable[[str], None],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Run a program, `say` each line; return exit code and last lines. It ends when interrupted. Raises OSError."""
    null, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(
        argv, cwd=directory, env=environment, stdin=null, stdout=pipe, stderr=both, text=True, errors="replace"
    )
    lines: deque[str] = deque(maxlen=MOST_LINES)  # a program may print without end; its end counts
    with process:
        assert process.stdout is not None
        try:
            for line in iter(functools.partial(process.stdout.readline, LONGEST_LINE), ""):
                lines.append(line)
                say(line.rstrip("\n"))
        except BaseException:
            process.terminate()
            raise
    return process.returncode, list(lines)


class Reader(threading.Thread):
    """Reads a stream to its end, or until it is too large: then it closes it, which ends the writer."""

    def __init__(self, stream: IO[bytes], largest: int) -> None:
        super().__init__(daemon=True)
        self._stream, self._largest = stream, largest
        self.data, self.is_over = bytearray(), False

    def run(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), CHUNK):
                self.data += chunk
                if len(self.data) > self._largest:
                    self.is_over = True
                    return


def _write(stream: IO[bytes], text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stream:  # a program may end without reading all of it
        stream.write(text)
