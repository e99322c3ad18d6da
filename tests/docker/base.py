"""A base image without a registry: the output of debootstrap, cached as a tar for `docker import`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.docker.packages import CannotStart, cache
from tests.parts.debian import Packages

NAME = "localhost/trainyard/base:test"
WITH_APT = "localhost/trainyard/base:apt"
SUITE = "bookworm"
WANTED = "python3,python3-venv,gcc,g++,libc6-dev,ca-certificates"
SECONDS = 900
SOURCES = Path("/etc/apt/sources.list.d")
URI = re.compile(r"(?m)^(?:URIs:|deb(?: \[[^\]]*\])?) *(https?://\S+)")
LITTER = (
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
    *("usr/share/doc", "usr/share/man", "usr/share/locale"),
)


def ensure(packages: Packages) -> Path:
    """Return the archive of the base image's files, and create it if it is missing. Raises CannotStart.

    Its name has a digest of its contents. It has no mirror and no host name of this machine.
    """
    target = cache() / f"base-{SUITE}-{_digest()}.tar.zst"
    if target.is_file():
        return target
    if os.geteuid() != 0 or shutil.which("zstd") is None:
        raise CannotStart("the base image needs root for debootstrap, and zstd (apt-get install zstd)")
    work = Path(tempfile.mkdtemp(prefix="base-", dir=cache()))
    try:
        root = work / "root"
        program = packages.root / "usr/sbin/debootstrap"
        command = [str(program), "--variant=minbase", f"--include={WANTED}", SUITE, str(root), mirror()]
        scripts = str(packages.root / "usr/share/debootstrap")
        variables = {**packages.environment, "DEBOOTSTRAP_DIR": scripts}
        variables.pop("LD_LIBRARY_PATH")  # the chroot has its own libraries
        with (work / "log").open("wb") as log:
            done = subprocess.run(command, env=variables, stdout=log, stderr=log, timeout=SECONDS, check=False)
        if done.returncode != 0:
            tail = (work / "log").read_text(errors="replace")[-600:]
            raise CannotStart(f"debootstrap failed:\n{tail}")
        _clean(root)
        _pack(root, work / "base.tar.zst")
        (work / "base.tar.zst").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def mirror() -> str:
    """Return the mirror of this machine's apt."""
    files = [Path("/etc/apt/sources.list"), *sorted(SOURCES.glob("*"))]
    found = [match for path in files if path.is_file() for match in URI.findall(path.read_text())]
    plain = [uri for uri in found if "security" not in uri and uri.rstrip("/").endswith("debian")]
    if not plain:
        raise CannotStart("no mirror of Debian in /etc/apt: add one to sources.list")
    return plain[0]


def _digest() -> str:
    return hashlib.sha256(f"{SUITE} {WANTED} {LITTER}".encode()).hexdigest()[:12]


def _clean(root: Path) -> None:
    for name in LITTER:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    for name in ("etc/resolv.conf", "etc/hostname", "etc/machine-id"):
        (root / name).unlink(missing_ok=True)
    (root / "etc/apt/sources.list").write_text("")


def _pack(root: Path, target: Path) -> None:
    words = ["tar", "--sort=name", "--mtime=@0", "--numeric-owner", "-C", str(root), "-cf", "-", "."]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tar:
        subprocess.run(["zstd", "-q", "-3", "-o", str(target)], stdin=tar.stdout, check=True)
    if tar.returncode != 0:
        raise CannotStart("tar failed on the base image's files")
