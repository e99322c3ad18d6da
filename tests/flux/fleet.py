"""Flux on a test cluster: the real kustomize-controller, and its git repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.cluster.api import KubectlError, Object
from tests.cluster.build import Programs
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.sandbox import Process, Sandbox
from tests.flux.build import Parts
from tests.flux.source import Source

NAMESPACE = "flux-system"
ADDRESS = "https://git.example.com/team/trainyard.git"  # of base/flux/sync/sync.yaml
KIND = "kustomizations.kustomize.toolkit.fluxcd.io"
PATIENCE = 400  # seconds for one step on a busy machine; usually one is enough
# The API server's answer (429) for a type that is being created. The request is repeated.
STORAGE_COMES = "storage is (re)initializing"
# Shorter waits than in production (`kustomize-controller --help`).
FLAGS = (
    *("--watch-all-namespaces", "--enable-leader-election=false", "--events-addr=", "--log-encoding=console"),
    *("--metrics-addr=127.0.0.1:18190", "--health-addr=127.0.0.1:18191"),
    *("--interval-jitter-percentage=0", "--requeue-dependency=1s"),
    *("--min-retry-delay=200ms", "--max-retry-delay=2s"),
)


@dataclass
class Fleet:
    """A cluster with Flux, and a working copy of its repository."""

    plane: ControlPlane
    parts: Parts
    source: Source
    programs: Path  # first in the controller's PATH

    @classmethod
    def start_new(cls, programs: Programs, parts: Parts, clone: Path) -> Fleet:
        """Start a control plane without a training operator, and Flux with `clone` at ADDRESS.

        Raises Unsupported where this machine cannot run it.
        """
        sandbox = Sandbox()
        try:
            plane = ControlPlane(sandbox, programs)
            plane.start_etcd()
            plane.start_api_server()
            plane.start_controllers()
            plane.start_kwok()
            git_program = mirrors(sandbox.root / "mirrors", plane, parts, clone)
            source = Source(plane.kube, sandbox.root / "artifacts", {ADDRESS: clone})
            fleet = cls(plane, parts, source, git_program)
            fleet.install()
        except BaseException:
            sandbox.close()
            raise
        return fleet

    @property
    def kube(self) -> Kube:
        return self.plane.kube

    def install(self) -> None:
        """Apply Flux's types and start its controller, as `flux install` does."""
        self.kube.make_namespace(NAMESPACE)
        for name in ("kustomize", "source", "helm"):
            self.kube.apply(_joined(self.parts.folder(f"crds/{name}").glob("*.yaml")), None)
        types = ("crd/gitrepositories.source.toolkit.fluxcd.io", f"crd/{KIND}")
        self.kube.run("wait", "--for=condition=Established", "--timeout=60s", *types)
        self.source.start(self.plane.sandbox)
        self.start()

    def start(self) -> Process:
        environment = {
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        }
        environment |= {"RUNTIME_NAMESPACE": NAMESPACE, "KUBECONFIG": str(self.kube.kubeconfig)}
        environment |= {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}
        program = self.parts.program("kustomize-controller")
        process = self.plane.sandbox.start("kustomize-controller", [program, *FLAGS], environment)
        time.sleep(0.2)
        assert process.alive(), process.tail()
        return process

    def restart(self) -> None:
        self.plane.process("kustomize-controller").kill()
        self.start()

    def apply(self, directory: Path) -> None:
        """Run `kubectl apply --server-side -k clusters/<name>`, as a user does once."""
        self.kube.run("apply", "--server-side", "-k", str(directory))

    def get(self, name: str, namespace: str = NAMESPACE) -> Object:
        """Return a Flux Kustomization, or an empty object where it does not exist."""
        return self.kube.get(KIND, name, namespace) or {}

    def poke(self, *names: str) -> str:
        """Request a reconciliation, as `flux reconcile kustomization NAME` does, and return the request.

        The field manager is Flux's, because Flux reverts changes of kubectl's default manager.
        """
        asked = str(time.time_ns())
        value = f"reconcile.fluxcd.io/requestedAt={asked}"
        words = ("annotate", "--overwrite", f"--namespace={NAMESPACE}", "--field-manager=flux", KIND)
        self.kube.run(*words, *names, value)
        return asked

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until `ready`, and publish commits meanwhile. Raises TimeoutError with the conditions."""

        def look() -> bool:
            self.source.publish()
            try:
                return ready()
            except KubectlError as problem:
                if STORAGE_COMES not in str(problem):
                    raise
                return False

        try:
            self.kube.wait(what, look, seconds)
        except TimeoutError as problem:
            raise TimeoutError(f"{problem}\n{self.states()}\n{self._log()}") from None

    def reconciled(self, name: str, seconds: float = PATIENCE) -> Object:
        """Request a reconciliation of a Kustomization, wait for it, and return the Kustomization."""
        self.source.publish()
        asked = self.poke(name)

        def handled() -> bool:
            return str((self.get(name).get("status") or {}).get("lastHandledReconcileAt")) == asked

        self.wait(f"{name} to be reconciled", handled, seconds)
        return self.get(name)

    def ready(self, name: str, commit: str | None = None) -> bool:
        """Return whether a Kustomization is Ready in its current generation, and at `commit`."""
        item = self.get(name)
        found = condition(item)
        applied = str((item.get("status") or {}).get("lastAppliedRevision", ""))
        return (
            found.get("status") == "True"
            and found.get("observedGeneration") == item["metadata"]["generation"]
            and (commit is None or applied.endswith(commit))
        )

    def wait_ready(self, name: str, commit: str | None = None, seconds: float = PATIENCE) -> None:
        self.wait(f"{name} to be Ready", lambda: self.ready(name, commit), seconds)

    def wait_failed(self, name: str, seconds: float = PATIENCE) -> str:
        """Wait until a Kustomization has failed, and return the reason."""

        def failed() -> bool:
            found = condition(self.get(name))
            return found.get("status") == "False" and found.get("reason") != "DependencyNotReady"

        self.wait(f"{name} to fail", failed, seconds)
        return str(condition(self.get(name))["message"])

    def states(self) -> str:
        lines = []
        for item in self.kube.list(KIND):
            found = condition(item)
            lines.append(f"{item['metadata']['name']}: {found.get('status')} {found.get('message')}")
        return "\n".join(lines)

    def _log(self) -> str:
        return self.plane.process("kustomize-controller").tail(5)[-3000:]


def condition(item: Object, kind: str = "Ready") -> Object:
    """Return a condition with any status, or an empty object where it does not exist."""
    found = (item.get("status") or {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind), {})


def git(repository: Path, *words: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *words]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.strip()


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(repository, "rev-parse", "HEAD")


def mirrors(folder: Path, plane: ControlPlane, parts: Parts, root: Path) -> Path:
    """Create a program `git` that finds the remote bases of base/plugins locally; return its directory.

    kustomize fetches a remote base with `git fetch --depth=1 <address> <commit>`. Here each pinned commit is
    a branch of a local repository with the same folders, from the Go module of the same version. Everything
    else goes to the real git. An unknown address or commit fails as it does upstream.
    """
    real = shutil.which("git")
    assert real is not None
    lines = ["#!/bin/sh", 'if [ "$1" = fetch ]; then', '  case "$3" in']
    for plugin, name in (("training-operator", "trainer"), ("fsx-csi", "aws-fsx-csi-driver")):
        address, reference = _remote_base(root / "base/plugins" / plugin / "kustomization.yaml")
        repository = folder / name
        repository.mkdir(parents=True)
        git(repository, "init", "--quiet", f"--initial-branch=at-{reference}")
        if name == "trainer":
            _write_operator(repository / "manifests/overlays/standalone", plane)
        else:
            shutil.copytree(parts.folder("fsx-csi"), repository / "deploy")
        commit(repository, "from the Go module")
        lines.append(f'    {address}*) exec {real} fetch --depth=1 {repository.as_uri()} "at-$4" ;;')
    program = folder / "bin/git"
    program.parent.mkdir()
    program.write_text("\n".join([*lines, "  esac", "fi", f'exec {real} "$@"', ""]), encoding="utf-8")
    program.chmod(0o755)
    return program.parent


def _remote_base(path: Path) -> tuple[str, str]:
    text = yaml.safe_load(path.read_text(encoding="utf-8"))["resources"][0]
    address, _, reference = text.partition("?ref=")
    return "/".join(address.split("/")[:5]), reference


def _write_operator(directory: Path, plane: ControlPlane) -> None:
    """Write upstream's manifests with the webhook address of tests.cluster's operator."""
    directory.mkdir(parents=True)
    (directory / "all.yaml").write_text(plane.operator_manifests(deployment=True), encoding="utf-8")
    kustomization = {"resources": ["all.yaml"]}
    (directory / "kustomization.yaml").write_text(json.dumps(kustomization), encoding="utf-8")


def _joined(paths: Iterable[Path]) -> str:
    return "\n---\n".join(path.read_text(encoding="utf-8") for path in sorted(paths))
