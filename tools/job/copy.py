"""Copies files out of a job's run directory through a pod that runs: each arrives whole, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

from tools.core.errors import UserError
from tools.job import remote_sender
from tools.job.snapshot.pod import JobPod
from tools.kube.kubectl import Kubectl, failure, missing

TRIES = 3  # without one more whole file: a stream through the API server may break off, without an error
SILENCE = 60.0  # seconds after which a stream is given up
ENDED = "command terminated with exit code"  # kubectl's words on a program that failed by itself
TELL = 2.0  # seconds between lines of progress


@dataclass(frozen=True)
class File:
    """One file of the run: its name there, its size in bytes, its SHA-256; `copied` if it came over now."""

    name: str
    size: int
    sha256: str
    copied: bool = True


class Broken(Exception):
    """The stream ended early, stood still, or brought something else than what was sent."""


def fetch(kubectl: Kubectl, pod: JobPod, wanted: str, target: Path, say: Callable[[str], None]) -> list[File]:
    """Bring the files at or below `wanted` in the run directory to below `target`, and return them.

    A file that is there already and right is not sent again. Raises UserError where the pod has no such file,
    and after several tries at one that does not arrive: nothing of that file is left then.
    """
    path = PurePosixPath(wanted)
    if path.is_absolute() or ".." in path.parts:
        hint = "for example checkpoints/step-00000100"
        raise UserError(f"{wanted}: not a path inside the run directory", hint)
    found: dict[str, File] = {}
    tries = 0
    while True:
        before = len(found)
        try:
            for file in _received(kubectl, pod, wanted, target, _here(target, wanted), say):
                copied = file.copied or (file.name in found and found[file.name].copied)
                found[file.name] = File(file.name, file.size, file.sha256, copied)
            break
        except Broken as problem:
            tries = 1 if len(found) > before else tries + 1
            say(f"{problem}: try {tries} of {TRIES}")
            if tries == TRIES:
                raise UserError(
                    f"{wanted}: {problem}, {TRIES} times; {len(found)} files are whole", code=1
                ) from None
    if not found:
        hint = "yard job exec JOB -- ls lists what it has"
        raise UserError(f"the run directory has no file at {wanted}", hint)
    return sorted(found.values(), key=lambda file: file.name)


def note_digests(path: Path, files: list[File]) -> None:
    """Write the files' digests as sha256sum reads them, beside those of earlier copies to the same place."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    sums |= {file.name: file.sha256 for file in files}
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _here(target: Path, wanted: str) -> dict[str, tuple[int, str]]:
    """Return size and digest of the files that an earlier copy has brought."""
    start = target / wanted
    paths = [start] if start.is_file() else sorted(start.rglob("*"))
    return {
        path.relative_to(target).as_posix(): (path.stat().st_size, remote_sender.digest(path))
        for path in paths
        if path.is_file() and not path.name.endswith(".part")
    }


def _received(
    kubectl: Kubectl,
    pod: JobPod,
    wanted: str,
    target: Path,
    have: dict[str, tuple[int, str]],
    say: Callable[[str], None],
) -> Iterator[File]:
    """Yield each file as it is whole; Broken where the stream is, UserError where the pod says no."""
    words = ("sh", "-c", 'exec python3 - "$TRAINYARD_RUN" "$1"', "sh", wanted)
    program = kubectl.words("exec", pod.name, f"--container={pod.container_name}", "--stdin", "--", *words)
    call = f"\nmain(sys.argv[1], sys.argv[2], {json.dumps(have)})\n"
    with tempfile.TemporaryFile() as script, tempfile.TemporaryFile() as complaint:
        script.write(Path(remote_sender.__file__).read_bytes() + call.encode())
        script.seek(0)
        try:
            process = subprocess.Popen(program, stdin=script, stdout=subprocess.PIPE, stderr=complaint)
        except FileNotFoundError:
            raise missing() from None
        assert process.stdout is not None
        try:
            yield from _files(_Stream(process.stdout), target, say)
            process.wait(SILENCE)
        except Broken as problem:
            process.kill()
            process.wait()
            complaint.seek(0)
            _judge(complaint.read().decode("utf-8", "replace"), str(problem))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _judge(said: str, problem: str) -> NoReturn:
    """Raise UserError for a refusal that would come again, else Broken with what kubectl says."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(ENDED)]
    if len(own) < len(lines) or "orbidden" in said:
        found = failure("exec", "\n".join(own or lines))
        raise UserError(found.message, found.hint, 1 if found.code == 2 else found.code) from None
    raise Broken(f"{problem}: {own[-1]}" if own else problem) from None


def _files(stream: _Stream, target: Path, say: Callable[[str], None]) -> Iterator[File]:
    tell = _Sparing(say)
    while (line := stream.line()) != "end":
        if line == "+":
            continue
        try:
            head = json.loads(line)
            name, size, same = str(head["name"]), int(head["size"]), head.get("same")
        except (ValueError, KeyError, TypeError):
            raise Broken(f"the pod sent something else: {line[:80]!r}") from None
        if same is not None:
            yield File(name, size, str(same), copied=False)
            continue
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        try:
            with part.open("wb") as file:
                whole = _write(stream, name, file, size, tell)
            os.replace(part, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
        yield whole


def _write(stream: _Stream, name: str, file: IO[bytes], size: int, tell: Callable[[str], None]) -> File:
    """Write a file's chunks to `file`; Broken where they have not the digest that comes behind them."""
    found, done = hashlib.sha256(), 0
    while (line := stream.line()).isdigit() and line != "0":
        chunk = stream.read(int(line))
        found.update(chunk)
        file.write(chunk)
        done += len(chunk)
        tell(f"{name}: {done:,} of {size:,} bytes")
    if line != f"0 {found.hexdigest()}":
        raise Broken(f"{name}: what arrives has not the digest that the pod computed")
    return File(name, done, found.hexdigest())


class _Sparing:
    """Passes on what is said, but not more often than once in TELL seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._at = say, time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._at > TELL:
            self._at = time.monotonic()
            self._say(text)


class _Stream:
    """Lines and blocks of a pipe; Broken where it ends, or is silent for too long."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._kept = pipe, b""

    def line(self) -> str:
        """Return the next line."""
        while b"\n" not in self._kept:
            self._more()
        line, _, self._kept = self._kept.partition(b"\n")
        return line.decode("utf-8", "replace")

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        parts, length = [self._kept], len(self._kept)
        self._kept = b""
        while length < size:
            self._more()
            parts.append(self._kept)
            length += len(self._kept)
            self._kept = b""
        whole = b"".join(parts)
        self._kept = whole[size:]
        return whole[:size]

    def _more(self) -> None:
        ready, _, _ = select.select([self._pipe], [], [], SILENCE)
        if not ready:
            raise Broken(f"nothing has come for {SILENCE:.0f} s")
        chunk = os.read(self._pipe.fileno(), remote_sender.CHUNK)
        if not chunk:
            raise Broken("the stream was cut short")
        self._kept += chunk
