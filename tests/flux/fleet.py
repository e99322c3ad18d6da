"""Flux on a test cluster: the real kustomize-controller, and its git repository."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.cluster.api import KubectlError, Object
from tests.cluster.build import Programs
from tests.cluster.control_plane import OPERATOR_PORT, ControlPlane
from tests.cluster.kube import Kube
from tests.cluster.sandbox import Process, Sandbox
from tests.flux.build import Parts
from tests.flux.source import Source
from tests.parts import upstream
from tools.core import repo

NAMESPACE = "flux-system"
ADDRESS = "https://git.example.com/team/trainyard.git"  # of base/flux/sync/sync.yaml
KIND = "kustomizations.kustomize.toolkit.fluxcd.io"
PATIENCE = 400  # seconds for one step on a busy machine; usually one is enough
# The API server's answer (429) for a type that is being created. The request is repeated.
STORAGE_COMES = "storage is (re)initializing"
# Leads the API server to the operator of tests.cluster, which runs beside it.
WEBHOOK = "".join(
    f"        - {{op: add, path: /webhooks/{number}/clientConfig/service/port, value: {OPERATOR_PORT}}}\n"
    for number in range(5)
)
NEARBY = f"""\
    - target: {{kind: ValidatingWebhookConfiguration}}
      patch: |
{WEBHOOK}\
    - target: {{kind: Service, name: training-operator}}
      patch: |
        - {{op: replace, path: /spec, value: {{type: ExternalName, externalName: localhost}}}}
"""
CONTROLLER = "kustomize-controller"
INSTALL = "base/flux/install/kustomization.yaml"
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
            operator = clone / "base/plugins/training-operator/flux/upstream.yaml"
            operator.write_text(operator.read_text(encoding="utf-8") + NEARBY, encoding="utf-8")
            commit(clone, "the operator of the test")
            folders = {"training-operator": programs.operator_manifests, "fsx-csi": parts.folder("fsx-csi")}
            found = upstream.repositories(sandbox.root / "upstream", folders)
            source = Source(plane.kube, sandbox.root / "artifacts", {ADDRESS: clone, **found})
            fleet = cls(plane, parts, source)
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

    def start(self, without: str = "none") -> Process:
        """Start Flux with the flags of base/flux/install, except those that begin with `without`."""
        flags = [*FLAGS, *(flag for flag in installed_flags() if not flag.startswith(without))]
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"RUNTIME_NAMESPACE": NAMESPACE, "KUBECONFIG": str(self.kube.kubeconfig)}
        process = self.plane.sandbox.start(CONTROLLER, [self.parts.program(CONTROLLER), *flags], environment)
        time.sleep(0.2)
        assert process.alive(), process.tail()
        return process

    def restart(self, without: str = "none") -> None:
        self.plane.process(CONTROLLER).kill()
        self.start(without)

    def apply(self, directory: Path) -> None:
        """Run `kubectl apply --server-side -k clusters/<name>`, as a user does once."""
        self.kube.run("apply", "--server-side", "-k", str(directory))

    def get(self, name: str) -> Object:
        """Return a Flux Kustomization of any namespace, or an empty object where it does not exist."""
        return next((item for item in self.kube.list(KIND) if item["metadata"]["name"] == name), {})

    def poke(self, *names: str) -> str:
        """Request a reconciliation, as `flux reconcile kustomization NAME` does, and return the request.

        The field manager is Flux's, because Flux reverts changes of kubectl's default manager.
        """
        asked = str(time.time_ns())
        value = f"reconcile.fluxcd.io/requestedAt={asked}"
        for name in names:
            namespace = self.get(name)["metadata"]["namespace"]
            words = ("annotate", "--overwrite", f"--namespace={namespace}", "--field-manager=flux", KIND)
            self.kube.run(*words, name, value)
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
        return self.plane.process(CONTROLLER).tail(5)[-3000:]


def installed_flags() -> list[str]:
    """Return the flags that base/flux/install adds to kustomize-controller."""
    patches = yaml.safe_load((repo.root() / INSTALL).read_text(encoding="utf-8"))["patches"]
    own = (one["patch"] for one in patches if re.fullmatch(one["target"]["name"], CONTROLLER))
    return [operation["value"] for patch in own for operation in yaml.safe_load(patch)]


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


def _joined(paths: Iterable[Path]) -> str:
    return "\n---\n".join(path.read_text(encoding="utf-8") for path in sorted(paths))
