"""Flux's kustomize-controller, built from its pinned module, and what else the tests take from Go modules.

It lies in `$XDG_CACHE_HOME/trainyard/flux/<digest>` (`~/.cache` without it), beside the test cluster's own
programs. source-controller is not among it: a module that it needs is not to be had; tests.flux.source stands
in for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import build
from tests.cluster.build import CannotBuild, Progress
from tools import gobuild

SOURCE = Path(__file__).parent / "binaries/kustomize-controller"
CONTROLLER = "github.com/fluxcd/kustomize-controller"
PACKAGES = [CONTROLLER, "github.com/getsops/sops/v3/cmd/sops", "filippo.io/age/cmd/age-keygen"]
# Folders of modules, by the name that they get here: module, version, folder.
FOLDERS = {
    "crds/kustomize": (CONTROLLER, "1.9.5", "config/crd/bases"),
    "crds/source": ("github.com/fluxcd/source-controller", "1.9.5", "config/crd/bases"),
    "crds/helm": ("github.com/fluxcd/helm-controller", "1.6.3", "config/crd/bases"),
    "crds/kueue": ("sigs.k8s.io/kueue", "0.19.2", "config/components/crd/bases"),
    "fsx-csi": ("sigs.k8s.io/aws-fsx-csi-driver", "1.9.0", "deploy"),
}


@dataclass(frozen=True)
class Parts:
    """A directory of the programs and folders."""

    root: Path

    def program(self, name: str) -> Path:
        """Return where kustomize-controller, sops or age-keygen lies."""
        return self.root / "bin" / name

    def folder(self, name: str) -> Path:
        """Return one of FOLDERS."""
        return self.root / name


def ensure(progress: Progress) -> Parts:
    """Return the parts; make them where they are not there yet (3 to 6 minutes, once). Raises CannotBuild."""
    home = build.cache().with_name("flux")
    target = home / _digest()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _make(target, progress)
    return Parts(target)


def _digest() -> str:
    if shutil.which("go") is None:
        raise CannotBuild("no go on PATH: install Go 1.26 or newer (https://go.dev/dl)")
    command = ["go", "env", "GOVERSION", "GOOS", "GOARCH"]
    version = subprocess.run(command, capture_output=True, check=True).stdout
    files = b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "go.sum"))
    return hashlib.sha256(version + files + repr((PACKAGES, FOLDERS)).encode()).hexdigest()[:16]


def _make(target: Path, progress: Progress) -> None:
    """Make everything beside `target`, then rename it."""
    started = time.monotonic()
    progress("building kustomize-controller, sops and age-keygen: 3 to 6 minutes, once")
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    try:
        with gobuild.workshop(work) as environment:
            for name, (module, version, folder) in FOLDERS.items():
                shutil.copytree(gobuild.module(module, version, environment, progress) / folder, work / name)
            gobuild.build(SOURCE, PACKAGES, work / "bin", environment, progress)
        subprocess.run(["chmod", "-R", "u+w", str(work)], check=True)  # modules are read-only
        shutil.rmtree(work / ".cache")
        work.rename(target)
        progress(f"built in {time.monotonic() - started:.0f} s: {target}")
    except gobuild.Unusable as reason:
        raise CannotBuild(f"kustomize-controller cannot be made here: {reason}") from reason
    finally:
        shutil.rmtree(work, ignore_errors=True)
