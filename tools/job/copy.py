"""Copies files out of a job's run directory through a running pod: each arrives whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

from tools.core.errors import UserError
from tools.core.wait import sparing
from tools.job import remote_sender
from tools.job.snapshot.pod import JobPod
from tools.kube.kubectl import Kubectl, failure, missing

LONGEST_LINE = 65536  # bytes of a line of the protocol
LARGEST_CHUNK = 16 * remote_sender.CHUNK  # bytes; the sender's own are smaller
TRIES = 3  # without a new file: a stream through the API server may end early without an error
SILENCE = 60.0  # seconds without data after which a stream is given up
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
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


def fetch(
    kubectl: Kubectl, pod: JobPod, wanted: str, target: Path, say: Callable[[str], None]
) -> list[CopiedFile]:
    """Copy the files at or below `wanted` in the run directory to `target`, and return them.

    An intact file that is here already is not sent again. Raises UserError if the pod has no such file, and
    after several attempts at a file that does not arrive: no part of it is left.
    """
    path = PurePosixPath(wanted)
    if path.is_absolute() or ".." in path.parts:
        hint = "for example checkpoints/step-00000100"
        raise UserError(f"{wanted}: not a path inside the run directory", hint)
    found: dict[str, CopiedFile] = {}
    tries = 0
    while True:
        before = len(found)
        try:
            for file in _received(kubectl, pod, wanted, target, _here(target, wanted), say):
                copied = file.copied or (file.name in found and found[file.name].copied)
                found[file.name] = replace(file, copied=copied)
            break
        except Broken as problem:
            tries = 1 if len(found) > before else tries + 1
            say(f"{problem}: attempt {tries} of {TRIES}")
            if tries == TRIES:
                message = f"{wanted}: {problem}, {TRIES} times; {len(found)} files are complete"
                raise UserError(message, code=1) from None
    if not found:
        hint = "`yard job exec JOB -- ls` lists its files"
        raise UserError(f"the run directory has no file at {wanted}", hint)
    return sorted(found.values(), key=lambda file: file.name)


def write_digests(path: Path, files: list[CopiedFile]) -> None:
    """Write the files' digests in the format of sha256sum; keep those of earlier copies to this place."""
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
    """Return size and digest of the files of an earlier copy."""
    start = target / wanted
    paths = [start] if start.is_file() else sorted(start.rglob("*"))
    found = {}
    for path in (path for path in paths if path.is_file() and not path.name.endswith(".part")):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(target).as_posix()] = (path.stat().st_size, digest)
    return found


def _received(
    kubectl: Kubectl,
    pod: JobPod,
    wanted: str,
    target: Path,
    have: dict[str, tuple[int, str]],
    say: Callable[[str], None],
) -> Iterator[CopiedFile]:
    """Yield each complete file. Raises Broken, and UserError if the pod refuses."""
    words = ("sh", "-c", 'exec python3 - "$TRAINYARD_RUN" "$1"', "sh", wanted)
    program = kubectl.words(
        "exec", f"--container={pod.container_name}", "--stdin", names=[pod.name], command=words
    )
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
            yield from _files(_Stream(process.stdout), wanted, target, sparing(say))
            process.wait(SILENCE)
        except Broken as problem:
            process.kill()
            process.wait()
            complaint.seek(0)
            _raise(complaint.read().decode("utf-8", "replace"), str(problem))
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


def _files(stream: _Stream, wanted: str, target: Path, say: Callable[[str], None]) -> Iterator[CopiedFile]:
    while (line := stream.line()) != "end":
        if line == "+":
            continue
        try:
            head = json.loads(line)
            name, size, same = str(head["name"]), int(head["size"]), head.get("same")
        except (ValueError, KeyError, TypeError):
            raise Broken(f"unexpected answer from the pod: {line[:80]!r}") from None
        path = _inside(name, wanted, target)
        if same is not None:
            yield CopiedFile(name, size, str(same), copied=False)
            continue
        part = path.with_name(f".{path.name}.part")
        try:
            with os.fdopen(os.open(part, NEW_FILE, 0o644), "wb") as file:
                complete = _write(stream, name, file, size, say)
            os.replace(part, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
        yield complete


def _inside(name: str, wanted: str, target: Path) -> Path:
    """Return where the file that the pod calls `name` goes; its directory exists afterwards.

    The pod may be hostile. Raises UserError unless the name is a plain path at or below `wanted`, and its
    directory is below `target` without a symbolic link that leads out.
    """
    path, asked = PurePosixPath(name), PurePosixPath(wanted)
    plain = name.isprintable() and str(path) == name and not path.is_absolute() and ".." not in path.parts
    if not plain or not (path == asked or path.is_relative_to(asked)):
        raise UserError(
            f"the pod sent a file that was not asked for: {name!r}", "do not trust this pod", code=1
        )
    local = target / path
    local.parent.mkdir(parents=True, exist_ok=True)
    if not local.parent.resolve().is_relative_to(target.resolve()):
        raise UserError(f"{local.parent} is a symbolic link that leads out of {target}", code=1)
    return local


def _write(stream: _Stream, name: str, file: IO[bytes], size: int, say: Callable[[str], None]) -> CopiedFile:
    """Write a file's chunks to `file`; Broken if they do not match the digest that follows them."""
    found, done = hashlib.sha256(), 0
    while (line := stream.line()).isdigit() and line != "0":
        if len(line) > len(str(LARGEST_CHUNK)) or int(line) > LARGEST_CHUNK or done + int(line) > size:
            raise Broken(f"{name}: the pod sends more than it announced")
        chunk = stream.read(int(line))
        found.update(chunk)
        file.write(chunk)
        done += len(chunk)
        say(f"{name}: {done:,} of {size:,} bytes")
    if line != f"0 {found.hexdigest()}":
        raise Broken(f"{name}: the received data does not have the pod's digest")
    return CopiedFile(name, done, found.hexdigest())


class _Stream:
    """Lines and blocks of a pipe; Broken if it ends or is silent for too long."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._kept = pipe, bytearray()

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
        ready, _, _ = select.select([self._pipe], [], [], SILENCE)
        if not ready:
            raise Broken(f"no data for {SILENCE:.0f} s")
        chunk = os.read(self._pipe.fileno(), remote_sender.CHUNK)
        if not chunk:
            raise Broken("the stream was cut short")
        self._kept += chunk
