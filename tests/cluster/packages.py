"""What nodes and the registry need from Debian, unpacked into the cache: nothing is installed here."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.build import CannotBuild, Progress, cache

PACKAGES = (
    *("containerd", "runc", "containernetworking-plugins", "libseccomp2"),
    *("iptables", "libxtables12", "libnftnl11", "libmnl0", "libnfnetlink0"),
    *("libnetfilter-conntrack3", "libip4tc2", "libip6tc2", "docker-registry"),
)
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib/x86_64-linux-gnu")
DOWNLOAD_SECONDS = 300


@dataclass(frozen=True)
class Packages:
    """A directory that holds the unpacked packages."""

    root: Path

    @property
    def registry(self) -> Path:
        """Return the program that serves images."""
        return self.root / "usr/bin/docker-registry"

    @property
    def cni(self) -> Path:
        """Return the directory of the CNI plugins."""
        return self.root / "usr/lib/cni"

    @property
    def environment(self) -> dict[str, str]:
        """Return an environment in which the programs and their libraries are found."""
        programs = [str(self.root / name) for name in ("programs", "usr/bin", "usr/sbin")]
        libraries = [self.root / name for name in LIBRARIES]
        return {
            **os.environ,
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries if path.is_dir()),
            "XTABLES_LIBDIR": str(
                next(path / "xtables" for path in libraries if (path / "xtables").is_dir())
            ),
        }


def ensure(progress: Progress) -> Packages:
    """Return the packages; fetch and unpack them where they are not there yet. Raises CannotBuild."""
    target = cache() / f"debian-{hashlib.sha256(' '.join(PACKAGES).encode()).hexdigest()[:16]}"
    if target.is_dir():
        return Packages(target)
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise CannotBuild(f"no {program} on PATH: nodes are made from Debian's packages")
    cache().mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="debian-", dir=cache()))
    try:
        progress(f"fetching containerd, runc and {len(PACKAGES) - 2} more packages of Debian")
        if _apt(work, "download", *PACKAGES) != 0:
            _apt(work, "update")
            if _apt(work, "download", *PACKAGES) != 0:
                raise CannotBuild(
                    "apt-get download failed: " + (work / "log").read_text(errors="replace")[-400:]
                )
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


def _apt(work: Path, *words: str) -> int:
    with (work / "log").open("ab") as log:
        command = ["apt-get", "-qq", *words]
        done = subprocess.run(
            command, cwd=work, stdout=log, stderr=log, timeout=DOWNLOAD_SECONDS, check=False
        )
    return done.returncode
