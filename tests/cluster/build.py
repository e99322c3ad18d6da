"""The programs of the test cluster, built from the pinned Go modules in `binaries/` into a cache.

The cache is `$XDG_CACHE_HOME/trainyard/cluster/<digest>` (`~/.cache` without it), so that clones of the
repository share it; the digest is that of the modules' files and of the Go version. go's own caches lie
beside it while it builds and are removed when it is done, unless GOCACHE or GOMODCACHE name the user's.
A program that `KUBEBUILDER_ASSETS` holds is taken from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "binaries"
OPERATOR = "github.com/kubeflow/training-operator"
KWOK = "sigs.k8s.io/kwok"
KUBERNETES = "1.36.3"
BUILD_SECONDS = 1800
PROGRESS_SECONDS = 5
# The components in the one binary that holds Kubernetes, by the name that it is called by.
COMPONENTS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kube-proxy", "kubectl"),
)

Progress = Callable[[str], None]


class CannotBuild(Exception):
    """This machine cannot make the programs. The message says why and what to install."""


@dataclass(frozen=True)
class Programs:
    """A directory of built programs and of the manifests that came with their modules."""

    root: Path

    def path(self, name: str) -> Path:
        """Return where the program `name` lies."""
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        if assets and (Path(assets) / name).is_file():
            return Path(assets) / name
        return self.root / "bin" / name

    @property
    def operator_manifests(self) -> Path:
        """Return upstream's Kustomize directories of the training operator."""
        return self.root / "operator"

    @property
    def kwok_stages(self) -> Path:
        """Return kwok's own Stage objects: what becomes of its nodes and pods."""
        return self.root / "kwok"


def cache() -> Path:
    """Return the directory in which built programs and downloaded packages are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "trainyard" / "cluster"


def ensure(progress: Progress) -> Programs:
    """Return the programs; build them where they are not there yet (minutes, both cores).

    Raises CannotBuild.
    """
    if shutil.which("go") is None:
        raise CannotBuild("no go on PATH: install Go 1.26 or newer (https://go.dev/dl)")
    target = cache() / _digest()
    if not _is_whole(target):
        cache().mkdir(parents=True, exist_ok=True)
        with _lock(cache() / "lock", progress):
            if not _is_whole(target):
                _build(target, progress)
    return Programs(target)


def _is_whole(target: Path) -> bool:
    return (target / "whole").is_file()


def _digest() -> str:
    digest = hashlib.sha256(_output(["go", "env", "GOVERSION", "GOOS", "GOARCH"]).encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another run builds the cluster's programs; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(target: Path, progress: Progress) -> None:
    """Build everything beside `target`, then rename it; a killed build leaves its caches to the next."""
    caches = cache() / "go"
    environment = {
        **os.environ,
        "GOPATH": str(caches / "path"),
        "GOMODCACHE": os.environ.get("GOMODCACHE", str(caches / "modules")),
        "GOCACHE": os.environ.get("GOCACHE", str(caches / "build")),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false -trimpath",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }
    for name in ("GOOS", "GOARCH"):
        environment.pop(name, None)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    try:
        started = time.monotonic()
        progress("building Kubernetes, etcd, the training operator, kwok and CoreDNS: 5 to 10 minutes, once")
        version = "k8s.io/component-base/version"
        major, minor, _ = KUBERNETES.split(".")
        flags = (
            f"-s -w -X {version}.gitVersion=v{KUBERNETES} -X {version}.gitMajor={major}"
            f" -X {version}.gitMinor={minor}"
        )
        tools = [f"{OPERATOR}/cmd/training-operator.v1", f"{KWOK}/cmd/kwok"]
        _go_build(SOURCES / "kubernetes", [".", *tools], flags, work, environment, progress)
        for module in ("coredns", "pause"):
            _go_build(SOURCES / module, ["."], "-s -w", work, environment, progress)
        (work / "bin/training-operator.v1").rename(work / "bin/training-operator")
        for component in COMPONENTS:
            (work / "bin" / component).symlink_to("kubernetes")
        shutil.copytree(_module(OPERATOR, environment) / "manifests", work / "operator")
        shutil.copytree(_module(KWOK, environment) / "kustomize/stage", work / "kwok")
        subprocess.run(["chmod", "-R", "u+w", str(work)], check=True)  # modules are read-only
        (work / "whole").touch()
        work.rename(target)
        progress(f"built in {time.monotonic() - started:.0f} s: {target}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(caches, ignore_errors=True)


def _go_build(
    module: Path, packages: list[str], flags: str, work: Path, environment: dict[str, str], progress: Progress
) -> None:
    (work / "bin").mkdir(exist_ok=True)
    command = ["go", "build", "-v", "-ldflags", flags, "-o", f"{work / 'bin'}/", *packages]
    process = subprocess.Popen(
        command, cwd=module, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    guard = threading.Timer(BUILD_SECONDS, process.kill)
    guard.start()
    last: list[str] = []
    count, told, started = 0, time.monotonic(), time.monotonic()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            last, count = [*last[-4:], line.strip()], count + 1
            if time.monotonic() - told > PROGRESS_SECONDS:
                progress(f"  {time.monotonic() - started:4.0f} s: {count} modules and packages done")
                told = time.monotonic()
        if process.wait() != 0:
            raise CannotBuild(f"go build in {module} failed: {' | '.join(last)}")
    finally:
        guard.cancel()
        process.kill()
        process.wait()


def _module(path: str, environment: dict[str, str]) -> Path:
    command = ["go", "list", "-m", "-json", path]
    done = subprocess.run(
        command, cwd=SOURCES / "kubernetes", env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CannotBuild(f"go list -m {path}: {done.stderr.strip()}")
    return Path(json.loads(done.stdout)["Dir"])
