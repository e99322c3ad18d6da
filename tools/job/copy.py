"""Copies files out of a job's run directory through a running pod: each arrives whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

from tools.core import Say, UserError, command_line, foreign_files, wait
from tools.job.snapshot import JobPod
from tools.kube import Kubectl
from tools.kube.kubectl import failure, started
from training.remote import file_sender

LONGEST_LINE = 65536  # bytes of a line of the protocol
LARGEST_CHUNK = 16 * file_sender.CHUNK  # bytes; the sender's own are smaller
TRIES = 3  # without a new file: a stream through the API server may end early without an error
SILENCE = 60.0  # seconds without data after which a stream is given up
ERRORS = 2.0  # seconds to wait for kubectl's errors after its end
PATIENCE = 900.0  # seconds for everything but the content of files: names and signs of life
SLOWEST = 10_000  # bytes per second of content
HASHING = 20_000_000  # bytes per second: the least for the digests of files that are here
SUMS = "SHA256SUMS"
LARGEST_SUMS = 64 * 2**20  # bytes
MOST_LINES = 1_000_000  # about files, in one answer
DIGEST = re.compile(r"[0-9a-f]{64}  \S")
ENDED = "command terminated with exit code"  # kubectl's message about a program that failed


@dataclass(frozen=True)
class CopiedFile:
    """A file of the run: its name there, size in bytes and SHA-256; not `copied` if it was here already."""

    name: str
    size: int
    sha256: str
    copied: bool = True


class Broken(Exception):
    """The stream ended early, stopped, or its data is wrong."""


def fetch(kubectl: Kubectl, pod: JobPod, wanted: str, target: Path, say: Say) -> list[CopiedFile]:
    """Copy the files at or below `wanted` in the run directory to `target`, and return them.

    An intact file that is here already is not sent again. Raises UserError if the pod has no such file, and
    after several attempts at a file that does not arrive: no part of it is left.
    """
    path = PurePosixPath(wanted)
    if path.is_absolute() or ".." in path.parts:
        hint = "for example checkpoints/step-00000100"
        raise UserError(f"{wanted}: not a path inside the run directory", hint)
    copy = _Copy(kubectl, pod, path.as_posix(), target, say)
    tries = 0
    try:
        while True:
            before = len(copy.found)
            try:
                copy.receive()
                break
            except Broken as problem:
                tries = 1 if len(copy.found) > before else tries + 1
                say(f"{problem}: attempt {tries} of {TRIES}")
                if tries == TRIES:
                    message = f"{wanted}: {problem}, {TRIES} times; {len(copy.found)} files are complete"
                    raise UserError(message, code=1) from None
    finally:
        copy.write_digests()
    if not copy.found:
        hint = "`yard job exec JOB -- ls` lists its files"
        raise UserError(f"the run directory has no file at {wanted}", hint)
    return sorted(copy.found.values(), key=lambda file: file.name)


class _Copy:
    """One copy: the files that have arrived, and those of earlier copies by SHA256SUMS.

    The pod is not told what is on this machine: only files that an earlier copy brought and that the pod
    itself lists are compared, and the comparison is made here.
    """

    def __init__(self, kubectl: Kubectl, pod: JobPod, wanted: str, target: Path, say: Say) -> None:
        self._kubectl, self._pod, self._wanted, self._target, self._say = kubectl, pod, wanted, target, say
        self._sums = _sums(target / SUMS)
        self._earlier = {name: digest for name, digest in self._sums.items() if is_below(name, wanted)}
        self._here: dict[str, str] | None = None  # intact files of an earlier copy, by name
        self.found: dict[str, CopiedFile] = {}

    def receive(self) -> None:
        """Receive all files that are not here. Raises Broken, and UserError if the pod refuses."""
        if self._here is None:
            self._here = dict(self._intact()) if self._earlier else {}
        while True:
            changed = set()
            known = [*self._here, *self.found]
            hashed = sum((self._target / name).stat().st_size for name in known)
            with _talk(self._kubectl, self._pod, self._wanted, known, hashed) as stream:
                for head in stream.heads(self._wanted):
                    if head.sha256 is None:
                        self.found[head.name] = self._store(stream, head)
                    elif head.sha256 == self._here.get(head.name):
                        self.found[head.name] = CopiedFile(head.name, head.size, head.sha256, copied=False)
                    elif head.name not in self.found:
                        changed.add(head.name)
            if not changed:
                return
            for name in changed:
                self._here.pop(name, None)

    def _intact(self) -> Iterator[tuple[str, str]]:
        """Yield name and digest of the files that the pod lists and that an earlier copy brought whole."""
        with _talk(self._kubectl, self._pod, self._wanted, None) as stream:
            heads = [head for head in stream.heads(self._wanted) if head.name in self._earlier]
        for head in heads:
            path = self._target / head.name
            if path.is_symlink() or not path.is_file() or path.stat().st_size != head.size:
                continue
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest == self._earlier[head.name]:
                yield head.name, digest

    def _store(self, stream: _Stream, head: _Head) -> CopiedFile:
        with foreign_files.writing(self._target, head.name, 0o644) as file:
            disk = os.fstatvfs(file.fileno())
            if head.size > (free := disk.f_bavail * disk.f_frsize):
                message = f"{head.name} has {head.size:,} bytes, and {self._target} has {free:,} free"
                raise UserError(message, code=1)
            return _write(stream, head, file, wait.sparing(self._say))

    def write_digests(self) -> None:
        """Write the files' digests in the format of sha256sum; keep those of earlier copies."""
        if self.found:
            sums = self._sums | {file.name: file.sha256 for file in self.found.values()}
            with foreign_files.writing(self._target, SUMS, 0o644) as file:
                file.writelines(f"{digest}  {name}\n".encode() for name, digest in sorted(sums.items()))


def is_below(name: str, wanted: str) -> bool:
    """Return whether `name` is a plain path at or below `wanted`, and not the file of digests."""
    return foreign_files.is_plain(name) and PurePosixPath(name).is_relative_to(wanted) and name != SUMS


def _sums(path: Path) -> dict[str, str]:
    """Return the digests that earlier copies wrote, by name."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_SUMS:
            return {}
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split("  ", 1) for line in lines if DIGEST.match(line)]
    return {name: digest for digest, name in pairs if foreign_files.is_plain(name)}


@dataclass(frozen=True)
class _Head:
    """The line before a file: `sha256` if its content does not follow."""

    name: str
    size: int
    sha256: str | None


@contextlib.contextmanager
def _talk(kubectl: Kubectl, pod: JobPod, wanted: str, known: list[str] | None, hashed: int = 0) -> Iterator[_Stream]:
    """Start the sender in the pod and yield its answer; it computes the digests of `hashed` bytes.

    Raises Broken, and UserError if the pod refuses.
    """
    words = ("sh", "-c", 'exec python3 - "$TRAINYARD_RUN" "$1"', "sh", wanted)
    program = kubectl.words("exec", f"--container={pod.container_name}", "--stdin", names=[pod.name], command=words)
    call = f"\nmain(sys.argv[1], sys.argv[2], {known!a})\n"
    with tempfile.TemporaryFile() as script:
        script.write(Path(file_sender.__file__).read_bytes() + call.encode())
        script.seek(0)
        process = started(program, stdin=script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        complaint = command_line.Reader(process.stderr, LARGEST_CHUNK)
        complaint.start()
        try:
            yield _Stream(process.stdout, PATIENCE + hashed / HASHING)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the answer is complete
                process.wait(SILENCE)
        except Broken as problem:
            process.kill()
            process.wait()
            process.stdout.close()  # ends a process that kubectl has left behind
            complaint.join(ERRORS)
            _raise(complaint.data.decode("utf-8", "replace"), str(problem))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _raise(said: str, problem: str) -> NoReturn:
    """Raise UserError for a refusal, which would be repeated, else Broken with kubectl's message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(ENDED)]
    if len(own) < len(lines) or "orbidden" in said:
        found = failure("exec", "\n".join(own or lines))
        raise UserError(found.message, found.hint, 1 if found.code == 2 else found.code) from None
    raise Broken(f"{problem}: {own[-1]}" if own else problem) from None


def _write(stream: _Stream, head: _Head, file: IO[bytes], say: Say) -> CopiedFile:
    """Write a file's chunks to `file`; Broken if they do not match the digest that follows them."""
    found, done = hashlib.sha256(), 0
    while (line := stream.line()).isdecimal() and line != "0":
        if len(line) > len(str(LARGEST_CHUNK)) or int(line) > LARGEST_CHUNK or done + int(line) > head.size:
            raise Broken(f"{head.name}: the pod sends more than it announced")
        chunk = stream.read(int(line))
        found.update(chunk)
        file.write(chunk)
        done += len(chunk)
        stream.wait_longer(len(chunk) / SLOWEST)
        say(f"{head.name}: {done:,} of {head.size:,} bytes")
    if line != f"0 {found.hexdigest()}":
        raise Broken(f"{head.name}: the received data does not have the pod's digest")
    return CopiedFile(head.name, done, found.hexdigest())


class _Stream:
    """Lines and blocks of a pipe; Broken if it ends, is silent for too long or takes too long."""

    def __init__(self, pipe: IO[bytes], patience: float) -> None:
        self._pipe, self._kept = pipe, bytearray()
        self._deadline = time.monotonic() + patience

    def wait_longer(self, seconds: float) -> None:
        """Move the deadline, because the copy progresses."""
        self._deadline += seconds

    def heads(self, wanted: str) -> Iterator[_Head]:
        """Yield the line before each file, whose content the caller reads; UserError for a strange name."""
        for _ in range(MOST_LINES):
            line = self.line()
            if line == "end":
                return
            if line != "+":
                yield _head(line, wanted)
        raise UserError(f"the pod lists more than {MOST_LINES:,} files", "copy a directory below", 1)

    def line(self) -> str:
        while b"\n" not in self._kept:
            if len(self._kept) > LONGEST_LINE:
                raise Broken("unexpected answer from the pod: a line without an end")
            self._more()
        return self.read(self._kept.index(b"\n") + 1).decode("utf-8", "replace").removesuffix("\n")

    def read(self, size: int) -> bytes:
        while len(self._kept) < size:
            self._more()
        block = bytes(self._kept[:size])
        del self._kept[:size]
        return block

    def _more(self) -> None:
        left = max(0.0, self._deadline - time.monotonic())
        ready, _, _ = select.select([self._pipe], [], [], min(SILENCE, left))
        if left < SILENCE and (not ready or not left):
            raise Broken("the pod answers, but the copy does not progress")
        if not ready:
            raise Broken(f"no data for {SILENCE:.0f} s")
        chunk = os.read(self._pipe.fileno(), file_sender.CHUNK)
        if not chunk:
            raise Broken("the stream was cut short")
        self._kept += chunk


def _head(line: str, wanted: str) -> _Head:
    """Return what the pod says about a file. The pod may be hostile."""
    try:
        found = json.loads(line)
        name, size, sha256 = str(found["name"]), int(found["size"]), found.get("sha256")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise Broken(f"unexpected answer from the pod: {line[:80]!r}") from None
    if not is_below(name, wanted):
        message = f"the pod sent a file that was not asked for: {name[:200]!r}"
        raise UserError(message, "do not trust this pod", code=1)
    return _Head(name, size, None if sha256 is None else str(sha256))
