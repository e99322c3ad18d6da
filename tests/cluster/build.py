"""The programs of the test cluster, built from the pinned Go modules in `binaries/` into a cache.

A module's programs lie in `$XDG_CACHE_HOME/trainyard/cluster/<module>-<digest>` (`~/.cache` without it), so
that clones share them; the digest is that of its files and of the Go version. A program that
`KUBEBUILDER_ASSETS` holds is taken from there.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools import gobuild

SOURCES = Path(__file__).parent / "binaries"
OPERATOR = "github.com/kubeflow/training-operator"
KWOK = "sigs.k8s.io/kwok"
PROVISIONER = "github.com/rancher/local-path-provisioner"
KUBERNETES, OLDEST = "1.36.3", "1.33.13"  # the last four minors are what the tools promise to work on
OLD = f"kubernetes-{OLDEST.rpartition('.')[0]}"
_VERSION = "k8s.io/component-base/version"

Progress = Callable[[str], None]


class CannotBuild(Exception):
    """This machine cannot make the programs. The message says why and what to install."""


@dataclass(frozen=True)
class Module:
    """What is built of one directory of `binaries/`, and what is kept of the modules that it pins."""

    packages: tuple[str, ...] = (".",)
    ldflags: str = "-s -w"
    renamed: Mapping[str, str] = field(default_factory=dict)  # by the name that go gives
    links: tuple[str, ...] = ()  # names that the module's own program is called by, too
    folders: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name: module, folder in it


def _named(version: str) -> str:
    """Return the linker's flags that give Kubernetes programs their version."""
    major, minor, _ = version.split(".")
    words = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return "-s -w " + " ".join(f"-X {_VERSION}.{name}={value}" for name, value in words.items())


MODULES = {
    "kubernetes": Module(
        packages=(".", f"{OPERATOR}/cmd/training-operator.v1", f"{KWOK}/cmd/kwok"),
        ldflags=_named(KUBERNETES),
        renamed={"training-operator.v1": "training-operator"},
        links=(
            *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
            *("kubelet", "kube-proxy", "kubectl"),
        ),
        folders={"operator": (OPERATOR, "manifests"), "kwok": (KWOK, "kustomize/stage")},
    ),
    "coredns": Module(),
    "pause": Module(),
    "provisioner": Module(packages=(PROVISIONER,), folders={"provisioner": (PROVISIONER, "deploy")}),
    OLD: Module(
        ldflags=_named(OLDEST),
        links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    ),
}
CLUSTER = ("kubernetes", "coredns", "pause", "provisioner")


@dataclass(frozen=True)
class Programs:
    """The directories of the built modules, with programs and with the manifests that came along."""

    roots: Mapping[str, Path]

    def path(self, name: str) -> Path:
        """Return where the program `name` lies."""
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        homes = [Path(assets)] if assets else []
        homes += [root / "bin" for root in self.roots.values()]
        return next(home / name for home in homes if (home / name).is_file())

    @property
    def operator_manifests(self) -> Path:
        """Return upstream's Kustomize directories of the training operator."""
        return self.roots["kubernetes"] / "operator"

    @property
    def kwok_stages(self) -> Path:
        """Return kwok's own Stage objects: what becomes of its nodes and pods."""
        return self.roots["kubernetes"] / "kwok"

    @property
    def provisioner_manifests(self) -> Path:
        """Return upstream's manifests of the provisioner of volumes."""
        return self.roots["provisioner"] / "provisioner"


def cache() -> Path:
    """Return the directory in which built programs and downloaded packages are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "trainyard" / "cluster"


def ensure(progress: Progress, modules: Sequence[str] = CLUSTER) -> Programs:
    """Return the programs of `modules`; build them where they are not there yet (minutes, both cores).

    Raises CannotBuild.
    """
    if shutil.which("go") is None:
        raise CannotBuild("no go on PATH: install Go 1.26 or newer (https://go.dev/dl)")
    go = _output(["go", "env", "GOVERSION", "GOOS", "GOARCH"], SOURCES)
    roots = {name: cache() / f"{name}-{_digest(SOURCES / name, go)}" for name in modules}
    missing = [name for name, root in roots.items() if not root.is_dir()]
    if missing:
        cache().mkdir(parents=True, exist_ok=True)
        with _lock(cache() / "lock", progress):
            for name in missing:
                if not roots[name].is_dir():
                    _build(name, roots[name], progress)
    return Programs(roots)


def _digest(source: Path, go: str) -> str:
    digest = hashlib.sha256(f"{go}{MODULES[source.name]}".encode())
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
            progress("another run builds the cluster's programs; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, target: Path, progress: Progress) -> None:
    """Build a module beside `target`, then rename it, so that what is there is whole."""
    module, source = MODULES[name], SOURCES / name
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    started = time.monotonic()
    progress(f"building the cluster's {name}, once" + (": 5 to 10 minutes" if module.links else ""))
    try:
        with gobuild.workshop(work) as environment:
            gobuild.build(source, list(module.packages), work / "bin", environment, progress, module.ldflags)
            for folder, (path, inside) in module.folders.items():
                found = json.loads(_output(["go", "list", "-m", "-json", path], source, environment))
                shutil.copytree(Path(found["Dir"]) / inside, work / folder)
        for given, wanted in module.renamed.items():
            (work / "bin" / given).rename(work / "bin" / wanted)
        for link in module.links:
            (work / "bin" / link).symlink_to(name)
        subprocess.run(["chmod", "-R", "u+w", str(work)], check=True)  # modules are read-only
        shutil.rmtree(work / ".cache")
        work.rename(target)
        progress(f"built in {time.monotonic() - started:.0f} s: {target}")
    except gobuild.Unusable as reason:
        raise CannotBuild(f"the cluster's {name} cannot be built here: {reason}") from reason
    finally:
        shutil.rmtree(work, ignore_errors=True)
