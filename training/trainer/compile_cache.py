"""The compiler's cache on disk: kept over restarts, removed after a kill during a compilation.

The C++ compiler writes its libraries in place. A process killed meanwhile leaves half of one, and every later
start would fail to load it.

torch unpickles and runs what is in its cache, so the cache is not on the shared volume. A new pod can begin
with a copy from the run's directory, if a signing key is mounted: the copy is verified before one byte of it
is unpacked. It is a tar of the whole directory, because torch.compiler.save_cache_artifacts leaves out
compiled C++.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

import torch

from training.run import signing
from training.run.directory import RunDir
from training.run.files import open_regular

LARGEST = 4 << 30  # bytes of a copy
_TORCHS = "torchinductor_"  # how the name of torch's own directory begins
_CHUNK = 1 << 20
_SIGNATURE = 73  # bytes: a key id of 8 digits, a colon, 64 digits


class CompileCache:
    """The directory TORCHINDUCTOR_CACHE_DIR, with a mark beside it while code is compiled into it.

    One rank of each node uses this class. Without that variable torch uses its own directory, which other
    programs share; it is never removed. Some releases of torch set the variable to that directory themselves.
    """

    def __init__(self, run: RunDir, device: str) -> None:
        named = _named()
        self._directory = Path(named) if named else None
        self._mark = Path(f"{named}.dirty") if named else None
        made_for = _made_for(device)
        self._copy = run.path / "cache" / f"compiled-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}"
        self._purpose = f"compiled code of {run.name}, {made_for}"
        self._begun = False
        self._has_copy = False

    def begin(self, attempt: str) -> str:
        """Mark the cache as being written by `attempt`, one text for all nodes; return its state before.

        `whole`; `copied` from the run; `broken`, which is removed; `joined`, where another node of this
        attempt has begun; or `none`.
        """
        if self._directory is None or self._mark is None:
            return "none"
        # Importing torch's compiler makes an empty directory.
        found = "whole" if any(path.is_file() for path in self._directory.rglob("*")) else "none"
        self._has_copy = found == "whole" and self._copy.exists()
        if self._mark.exists():
            found = "joined" if self._mark.read_text(errors="replace") == attempt else "broken"
        if found == "broken":
            shutil.rmtree(self._directory, ignore_errors=True)
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.write_text(attempt)
        self._begun = True
        return "copied" if found == "none" and self._copied_in() else found

    def done(self) -> bool:
        """Remove the mark after the first step: everything that the step needs is complete.

        Return whether this call did it.
        """
        if self._mark is None or not self._begun:
            return False
        self._mark.unlink(missing_ok=True)
        self._begun = False
        return True

    def keep(self) -> bool:
        """Write a signed copy into the run's directory if it has none; return whether it was written.

        Raises OSError; SigningError if the key cannot be used.
        """
        key = signing.key()
        if key is None or self._directory is None or self._has_copy:
            return False
        files = [path for path in sorted(self._directory.rglob("*")) if path.is_file()]
        if sum(path.stat().st_size for path in files) > LARGEST:
            return False
        self._copy.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._copy.with_name(f".{self._copy.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("x+b") as file:
                file.write(bytes(_SIGNATURE))
                with tarfile.open(fileobj=file, mode="w") as tar:
                    for path in files:
                        tar.add(path, path.relative_to(self._directory), recursive=False)
                file.seek(_SIGNATURE)
                signature = signing.sign_file(key, self._purpose, file)
                file.seek(0)
                file.write(signature.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._copy)
        finally:
            temporary.unlink(missing_ok=True)
        self._has_copy = True
        return True

    def _copied_in(self) -> bool:
        """Unpack the run's copy, if one of the keys has signed it. Raises SigningError."""
        keys = signing.keys()
        if not keys:
            return False
        assert self._directory is not None
        unpacked = self._directory.with_name(f".{self._directory.name}.{secrets.token_hex(4)}")
        try:
            # The bytes that are verified are those that are unpacked: no other process can change this file.
            with open_regular(self._copy) as file, tempfile.TemporaryFile(dir=unpacked.parent) as own:
                signature = file.read(_SIGNATURE).decode(errors="replace")
                _bounded(file, own)
                own.seek(0)
                if not signing.verify_file(keys, self._purpose, own, signature):
                    return False
                own.seek(0)
                with tarfile.open(fileobj=own, mode="r:") as tar:
                    tar.extractall(unpacked, filter="data")
            shutil.rmtree(self._directory, ignore_errors=True)
            unpacked.rename(self._directory)
        except (OSError, tarfile.TarError):
            return False
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        self._has_copy = True
        return True


def leave_headers() -> None:
    """Include C++ headers as they are; call this on every rank that finds compiled code.

    torch compiles headers before it looks for a kernel in its cache, and keeps them outside of the cache. A
    new pod would need longer for them than for all the rest. The setting cpp_cache_precompile_headers does
    not help: it is a part of each kernel's key.
    """
    from torch._inductor import codecache

    codecache._precompile_header = _as_it_is  # type: ignore[assignment]


@functools.cache
def quote_paths() -> None:
    """Let torch compile C++ in directories whose names have blanks: it splits its commands at them.

    It quotes the directories that it includes, but neither the files that it reads nor those that it writes. Where no
    name needs it, torch stays as it is.
    """
    where = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    if shlex.quote(where) == where:
        return
    from torch._inductor.cpp_builder import CppBuilder

    plain = CppBuilder.__init__

    def quoting(self: Any, name: str, sources: str | list[str], *given: Any, **named: Any) -> None:
        files = [sources] if isinstance(sources, str) else sources
        plain(self, name, [shlex.quote(file) for file in files], *given, **named)
        self._output = self._output.replace(self._target_file, shlex.quote(self._target_file))
        header = self._build_option.precompiled_header
        if header:
            self._include_dirs_args = self._include_dirs_args.replace(header, shlex.quote(header), 1)

    CppBuilder.__init__ = quoting  # type: ignore[method-assign]


def _as_it_is(header: str, _command: str, **_options: Any) -> str:
    return header


def _bounded(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy a file of at most LARGEST bytes and what tar adds; OSError for a larger one."""
    left = LARGEST + LARGEST // 4
    while piece := source.read(_CHUNK):
        left -= len(piece)
        if left < 0:
            raise OSError("is too large")
        target.write(piece)


def _named() -> str:
    """Return TORCHINDUCTOR_CACHE_DIR, empty where it says torch's own directory."""
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if not Path(named).name.startswith(_TORCHS):
        return named  # without an import of the compiler, which takes two seconds
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    with contextlib.suppress(KeyError, OSError):  # an account without a name
        return "" if named == default_cache_dir() else named
    return named


def _made_for(device: str) -> str:
    """What compiled code depends on: versions, C library, device and processor."""
    processor = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
        processor += f" {hashlib.sha256(flags.encode()).hexdigest()[:8]}"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {' '.join(platform.libc_ver())}"
    return f"{versions}, {device}, {processor}"
