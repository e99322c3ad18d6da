"""Build pinned Go programs and fetch pinned Go modules, with all of Go's files in the checkout."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.core import repo

PROGRESS_SECONDS = 2
# A machine's settings for private modules must not switch off the comparison with the checksum database.
# "none" matches no module; an empty value would mean that of `go env -w`.
CHECKED = {"GONOSUMDB": "none", "GOINSECURE": "none", "GOPRIVATE": "none"}
SUMDB = "sum.golang.org"

Progress = Callable[[str], None]


class Unusable(Exception):
    """One way to obtain a program or a file failed; the message is a clause with the reason."""


@contextmanager
def workshop(root: Path) -> Iterator[dict[str, str]]:
    """Yield an environment in which go writes below the cache of `root` only. Raises Unusable without go."""
    if shutil.which("go") is None:
        raise Unusable("no go on PATH")
    try:
        repo.cache(root).mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="go-", dir=repo.cache(root)))
    except OSError as problem:
        raise Unusable(f"go: {problem}") from problem
    directories = {"GOPATH": "path", "GOMODCACHE": "modules", "GOCACHE": "build", "GOBIN": "bin"}
    try:
        yield {
            **{name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH", "GOARM64")},
            **{name: str(work / directory) for name, directory in directories.items()},
            "GOFLAGS": "-modcacherw",  # otherwise the module cache cannot be removed
            "GOWORK": "off",
            **CHECKED,
            "GOSUMDB": SUMDB if os.environ.get("GOSUMDB", "off") == "off" else os.environ["GOSUMDB"],
            "CGO_ENABLED": "0",
            "GOTMPDIR": str(work),
            "TEST_TELEMETRY_DIR": str(work),  # otherwise go writes its counters to the home directory
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)


def install(package: str, program: str, version: str, environment: dict[str, str], progress: Progress) -> Path:
    """Build `package` at `version` (without v) in a workshop; return the path of `program` there. Raises Unusable."""
    run(["go", "install", "-v", f"{package}@v{version}"], environment, progress)
    return Path(environment["GOBIN"]) / program


def module(path: str, version: str, environment: dict[str, str], progress: Progress) -> Path:
    """Fetch a module at `version` (without v), with the checksum database; return its directory. Raises Unusable."""
    answer = run(["go", "mod", "download", "-json", f"{path}@v{version}"], environment, progress)
    try:
        return Path(json.loads(answer)["Dir"])
    except (ValueError, KeyError) as problem:
        raise Unusable(f"go mod download of {path} names no directory") from problem


def run(command: list[str], environment: dict[str, str], progress: Progress) -> str:
    """Run go in a workshop and report progress every few seconds; return its output.

    Raises Unusable with the first and the last lines of go that are not names of packages: a compiler's first error is
    the cause, and many may follow.
    """
    what = " ".join(command[: next(index for index, word in enumerate(command) if word.startswith("-"))])
    place, null, pipe = environment["GOTMPDIR"], subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(command, env=environment, cwd=place, stdin=null, stdout=pipe, stderr=pipe, text=True)
    except OSError as problem:
        raise Unusable(f"{what}: {problem}") from problem
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        first, last, reported = list[str](), deque[str](maxlen=6), time.monotonic()
        for count, line in enumerate(process.stderr, 1):  # one line for each module and package
            if " " in line.strip() and "downloading" not in line:
                (first if len(first) < 6 else last).append(line.rstrip())
            if time.monotonic() - reported > PROGRESS_SECONDS:
                progress(f"  {count} modules and packages done")
                reported = time.monotonic()
        answer = process.stdout.read()
    if process.returncode != 0:
        said = "\n".join([*first, *last]) or answer.strip()  # `go mod download -json` has the error in its output
        raise Unusable(f"{what} failed: {said or f'exit code {process.returncode}'}")
    return answer
