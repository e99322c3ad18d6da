"""What the engine and its parts need from Debian, unpacked into the cache: nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGES = (
    *("docker.io", "containerd", "runc", "docker-registry", "debootstrap", "slirp4netns", "libslirp0"),
    *("libseccomp2", "iptables", "libxtables12", "libnftnl11", "libmnl0", "libnfnetlink0"),
    *("libnetfilter-conntrack3", "libip4tc2", "libip6tc2"),
)
DOWNLOAD_SECONDS = 300


class CannotStart(Exception):
    """The engine cannot be had on this machine. The message says why and what would help."""


def cache() -> Path:
    """Return the directory that is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trainyard" / "images"


def ensure() -> Path:
    """Return where the packages are unpacked; fetch them where they are missing. Raises CannotStart."""
    target = cache() / "debian"
    if target.is_dir():
        return target
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise CannotStart(f"no {program} on PATH: the engine comes from Debian's packages")
    cache().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="debian-", dir=cache()))
    try:
        _download(work)
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
    return target


def environment(packages: Path) -> dict[str, str]:
    """Return an environment in which the packages' programs and libraries are found before others."""
    programs = [str(packages / name) for name in ("programs", "usr/bin", "usr/sbin")]
    libraries = [str(path) for path in (packages / "usr/lib").glob("*-linux-gnu")]
    return {
        **os.environ,
        "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "XTABLES_LIBDIR": str(next((packages / "usr/lib").glob("*-linux-gnu/xtables"), "")),
    }


def _download(work: Path) -> None:
    if _apt(work, ["download", *PACKAGES]) == 0:
        return
    _apt(work, ["update"])
    if _apt(work, ["download", *PACKAGES]) != 0:
        raise CannotStart("apt-get download failed: " + (work / "log").read_text(errors="replace")[-400:])


def _apt(work: Path, words: Sequence[str]) -> int:
    with (work / "log").open("ab") as log:
        done = subprocess.run(
            ["apt-get", "-qq", *words],
            cwd=work,
            stdout=log,
            stderr=log,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    return done.returncode
