"""Build Go programs, and fetch Go modules, into the checkout: pinned, and without a trace elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

GO_SECONDS = 3600
PROGRESS_SECONDS = 2

Progress = Callable[[str], None]


class Unusable(Exception):
    """A way to a program or file that does not lead there. The message is one clause that says why."""


@contextlib.contextmanager
def workshop(root: Path) -> Iterator[dict[str, str]]:
    """Give an environment in which go writes below `root/.cache` only; all of it is removed afterwards.

    GOBIN there is where programs come to lie. Raises Unusable where the machine has no go.
    """
    if shutil.which("go") is None:
        raise Unusable("no go on PATH")
    cache = root / ".cache"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="go-", dir=cache))
    except OSError as problem:
        raise Unusable(f"go: {problem}") from problem
    try:
        yield _environment(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def install(
    package: str, program: str, version: str, environment: dict[str, str], progress: Progress
) -> Path:
    """Build `package` at `version` (without v) in a workshop; return where `program` then lies, in GOBIN.

    Raises Unusable.
    """
    _run(["go", "install", "-v", f"{package}@v{version}"], environment, progress, "go install")
    return Path(environment["GOBIN"]) / program


def module(path: str, version: str, environment: dict[str, str], progress: Progress) -> Path:
    """Fetch module `path` at `version` (without v) in a workshop; return its directory there.

    go checks the module against the public checksum database. Raises Unusable.
    """
    command = ["go", "mod", "download", "-json", f"{path}@v{version}"]
    answer = _run(command, environment, progress, "go mod download")
    try:
        return Path(json.loads(answer)["Dir"])
    except (ValueError, KeyError) as problem:
        raise Unusable(f"go mod download of {path} names no directory") from problem


def build(
    module: Path,
    packages: list[str],
    target: Path,
    environment: dict[str, str],
    progress: Progress,
    ldflags: str = "-s -w",
) -> None:
    """Build `packages` of the module in directory `module`, as its go.mod and go.sum pin them, into `target`.

    Raises Unusable.
    """
    flags = ("-v", "-trimpath", "-mod=readonly", "-buildvcs=false", f"-ldflags={ldflags}")
    command = ["go", "build", "-C", str(module), *flags, "-o", f"{target}/", *packages]
    _run(command, environment, progress, "go build")


def _environment(work: Path) -> dict[str, str]:
    """Return an environment in which go writes below `work` only and builds for this machine."""
    for name in ("bin", "tmp"):
        (work / name).mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH", "GOARM64")}
    return {
        **kept,
        "GOPATH": str(work / "path"),
        "GOMODCACHE": str(work / "modules"),
        "GOCACHE": str(work / "build"),
        "GOBIN": str(work / "bin"),
        "GOTMPDIR": str(work / "tmp"),
        "GOFLAGS": "-modcacherw",  # else nobody can delete the module cache
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "TEST_TELEMETRY_DIR": str(work / "telemetry"),  # go's counters else go to the home directory
    }


def _run(command: list[str], environment: dict[str, str], progress: Progress, what: str) -> str:
    """Run go, tell `progress` every few seconds how far it is; return what it printed.

    Raises Unusable with go's last line.
    """
    with tempfile.TemporaryFile("w+", dir=environment["GOTMPDIR"], encoding="utf-8") as answer:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=environment["GOTMPDIR"],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as problem:
            raise Unusable(f"{what}: {problem}") from problem
        _follow(process, progress, what)
        answer.seek(0)
        return answer.read()


def _follow(process: subprocess.Popen[str], progress: Progress, what: str) -> None:
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    guard = threading.Timer(GO_SECONDS, give_up)
    guard.start()
    last, count, told = "", 0, time.monotonic()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            last, count = line.strip() or last, count + 1
            if time.monotonic() - told > PROGRESS_SECONDS:
                progress(f"  {count} modules and packages done")
                told = time.monotonic()
        if process.wait() != 0:
            reason = f"not done after {GO_SECONDS} s" if late.is_set() else last
            raise Unusable(f"{what} failed: {reason}")
    finally:
        guard.cancel()
        process.kill()
        process.wait()
