"""Programs, and folders of modules, that tests take from Go modules: built once, pinned, kept in the cache.

What is built lies in a directory whose name has the digest of all that it is built from.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.core import go_build

Progress = Callable[[str], None]


class CannotBuild(Exception):
    """This machine cannot build the programs. The message says why and what to install."""


@dataclass(frozen=True)
class Module:
    """What is built from a directory with a go.mod, and what is kept of its modules."""

    packages: tuple[str, ...] = (".",)
    apart: tuple[str, ...] = field(default=(), repr=False)  # packages that go cannot build in one command with these
    ldflags: str = "-s -w"
    renamed: Mapping[str, str] = field(default_factory=dict)  # by the name that go gives
    links: tuple[str, ...] = ()  # names that the module's own program is called by, too
    folders: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name: module, folder in it
    # Of modules that the go.mod does not pin; name: module, version, folder in it.
    fetched: Mapping[str, tuple[str, str, str]] = field(default_factory=dict, repr=False)
    tags: tuple[str, ...] = field(default=(), repr=False)


def cache(name: str) -> Path:
    """Return the user's cache directory for one kind of tests."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "trainyard" / name


def ensure(source: Path, module: Module, home: Path, progress: Progress) -> Path:
    """Return the directory with `bin` and the folders, building it in `home` if it is missing (minutes).

    Raises CannotBuild.
    """
    built = target(source, module, home)
    if not built.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        with _lock(home / "lock", progress):
            if not built.is_dir():
                _build(source, module, built, progress)
    return built


def target(source: Path, module: Module, home: Path) -> Path:
    """Return the directory of what is built from a module, which may be missing. Raises CannotBuild without Go."""
    return home / f"{source.name}-{_digest(source, module)}"


def _digest(source: Path, module: Module) -> str:
    if shutil.which("go") is None:
        raise CannotBuild("no go on PATH: install Go 1.26 or newer (https://go.dev/dl)")
    go = _output(["go", "env", "GOVERSION", "GOOS", "GOARCH"], source)
    digest = hashlib.sha256(f"{go}{module}".encode())
    digest.update("".join((*module.tags, *module.apart)).encode())
    for name, where in sorted(module.fetched.items()):
        digest.update(f"{name}{where}".encode())
    for path in sorted(source.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _output(command: list[str], where: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another run builds the same programs; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(source: Path, module: Module, target: Path, progress: Progress) -> None:
    """Build beside `target` and rename at the end, so that an existing target is complete."""
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    started = time.monotonic()
    progress(f"building {source.name}, once: a large one takes 5 to 10 minutes")
    try:
        with go_build.workshop(work) as environment:
            for folder, (path, version, inside) in module.fetched.items():
                fetched = go_build.module(path, version, environment, progress)
                shutil.copytree(fetched / inside, work / folder)
            flags = ["-v", "-trimpath", "-mod=readonly", "-buildvcs=false", f"-ldflags={module.ldflags}"]
            flags += ["-gcflags=all=-dwarf=false"]  # the linker drops it, and the compiler saves a tenth of its time
            flags += [f"-tags={','.join(module.tags)}"] * bool(module.tags)
            for packages in (module.packages, *((package,) for package in module.apart)):
                command = ["go", "build", "-C", str(source), *flags, "-o", f"{work / 'bin'}/", *packages]
                go_build.run(command, environment, progress)
            for folder, (path, inside) in module.folders.items():
                found = json.loads(_output(["go", "list", "-m", "-json", path], source, environment))
                shutil.copytree(Path(found["Dir"]) / inside, work / folder)
        for given, wanted in module.renamed.items():
            (work / "bin" / given).rename(work / "bin" / wanted)
        for link in module.links:
            (work / "bin" / link).symlink_to(source.name)
        subprocess.run(["chmod", "-R", "u+w", str(work)], check=True)  # modules are read-only
        shutil.rmtree(work / ".cache")
        work.rename(target)
        progress(f"built in {time.monotonic() - started:.0f} s: {target}")
    except go_build.Unusable as reason:
        raise CannotBuild(f"{source.name} cannot be built here: {reason}") from reason
    finally:
        shutil.rmtree(work, ignore_errors=True)
