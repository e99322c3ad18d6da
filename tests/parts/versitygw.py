"""A real S3 server on loopback: versitygw on a directory. It enforces conditional puts, parts and checksums."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.parts import gomodule
from tests.parts.gomodule import Module
from tests.parts.ports import free_port

SOURCE = Path(__file__).parent / "binaries" / "versitygw"
PROGRAM = Module(packages=("github.com/versity/versitygw/cmd/versitygw",))
KEY, SECRET = "trainyard", "trainyard-secret"
_WAIT_S = 30.0


def program() -> Path:
    """Return the program, building it if it is missing (a minute). Raises CannotBuild."""
    return gomodule.ensure(SOURCE, PROGRAM, gomodule.cache("s3"), print) / "bin" / "versitygw"


def built() -> Path | None:
    """Return the program if it is built already. Raises CannotBuild without Go."""
    target = gomodule.target(SOURCE, PROGRAM, gomodule.cache("s3"))
    return target / "bin" / "versitygw" if target.is_dir() else None


@contextlib.contextmanager
def server(path: Path, home: Path) -> Iterator[str]:
    """Serve a directory below `home`; yield the address."""
    for name in ("data", "sidecar"):
        (home / name).mkdir(parents=True, exist_ok=True)
    port = free_port()
    words = [str(path), "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(home / "sidecar"), str(home / "data")]
    keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with (home / "log").open("wb") as log, subprocess.Popen(
        words, env={**os.environ, **keys}, stdout=log, stderr=subprocess.STDOUT
    ) as started:  # fmt: skip
        try:
            _wait(port, started, home / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            started.terminate()


def _wait(port: int, started: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end and started.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"versitygw does not serve: {log.read_text(errors='replace')[-500:]}")


if __name__ == "__main__":
    print(program())
