"""Debian's packages, unpacked into a cache: nothing is installed on this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_SECONDS = 300
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib/x86_64-linux-gnu")
# What a container's network is made with, whoever makes it.
IPTABLES = (
    *("libseccomp2", "iptables", "libxtables12", "libnftnl11", "libmnl0", "libnfnetlink0"),
    *("libnetfilter-conntrack3", "libip4tc2", "libip6tc2"),
)


class Unobtainable(Exception):
    """This machine cannot get the packages. The message says why."""


@dataclass(frozen=True)
class Packages:
    """A directory of unpacked packages."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return an environment that finds these programs and libraries first."""
        programs = [str(self.root / name) for name in ("programs", "usr/bin", "usr/sbin")]
        libraries = [self.root / name for name in LIBRARIES if (self.root / name).is_dir()]
        return {
            **os.environ,
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "XTABLES_LIBDIR": str(next(path / "xtables" for path in libraries if (path / "xtables").is_dir())),
        }


def ensure(names: Sequence[str], cache: Path, say: Callable[[str], None]) -> Packages:
    """Return the packages, fetching and unpacking missing ones into `cache`.

    `names` contains iptables, whose programs are links with another name. Raises Unobtainable.
    """
    target = cache / f"debian-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:16]}"
    if target.is_dir():
        return Packages(target)
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unobtainable(f"no {program} on PATH: {names[0]} comes from Debian's packages")
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="debian-", dir=cache))
    try:
        say(f"fetching {names[0]}, {names[1]} and {len(names) - 2} more packages of Debian")
        _download(names, work)
        for archive in sorted(work.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(work / "root")], check=True)
        programs = work / "root/programs"
        programs.mkdir()
        for name in ("iptables", "iptables-save", "iptables-restore"):
            (programs / name).symlink_to("../usr/sbin/xtables-nft-multi")
            (programs / name.replace("ip", "ip6", 1)).symlink_to("../usr/sbin/xtables-nft-multi")
        try:
            (work / "root").rename(target)
        except OSError:  # another run was faster
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Packages(target)


def _download(names: Sequence[str], work: Path) -> None:
    if _apt(work, "download", *names) == 0:
        return
    _apt(work, "update")
    if _apt(work, "download", *names) != 0:
        raise Unobtainable("apt-get download failed: " + (work / "log").read_text(errors="replace")[-400:])


def _apt(work: Path, *words: str) -> int:
    with (work / "log").open("ab") as log:
        command = ["apt-get", "-qq", *words]
        done = subprocess.run(command, cwd=work, stdout=log, stderr=log, timeout=DOWNLOAD_SECONDS, check=False)
    return done.returncode
