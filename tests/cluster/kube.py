"""A cluster as a test asks it: Python values in and out, kubectl's own words, waiting with a bound."""

from __future__ import annotations

import copy
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.cluster.api import CALL_SECONDS, Api, KubectlError, Object, proxy
from tools.core import repo
from tools.kube.manifests import Manifests


@dataclass(frozen=True)
class Done:
    """The result of one call."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Kube:
    """A cluster by its kubectl and kubeconfig."""

    program: Path  # the kubectl, or a script that runs it where the cluster can be reached
    kubeconfig: Path
    entrance: Callable[[], Path] | None = None  # starts a `kubectl proxy`, and returns its socket

    @property
    def environment(self) -> dict[str, str]:
        """Return an environment in which `kubectl` on PATH talks to this cluster."""
        path = f"{self.program.parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    @cached_property
    def api(self) -> Api:
        """Return its API, used without kubectl."""
        return Api(self.entrance or partial(proxy, self.program, self.kubeconfig))

    def call(self, *words: str, given: str | None = None, timeout: float = CALL_SECONDS) -> Done:
        """Run kubectl, whatever its exit code."""
        done = subprocess.run(
            [str(self.program), *words],
            input=given or "",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def run(self, *words: str, given: str | None = None, timeout: float = CALL_SECONDS) -> str:
        """Run kubectl and return its output. Raises KubectlError."""
        done = self.call(*words, given=given, timeout=timeout)
        if done.code != 0:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.err.strip() or done.out.strip()}")
        return done.out

    def apply(self, text: str, namespace: str | None, *more: str) -> Done:
        """Apply YAML server-side with kubectl, as a person does. Raises KubectlError."""
        where = [f"--namespace={namespace}"] if namespace else []
        done = self.call("apply", "--server-side", *where, "-f", "-", *more, given=text)
        if done.code != 0:
            raise KubectlError(f"kubectl apply: {done.err.strip()}")
        return done

    def put(self, objects: Iterable[Object], namespace: str | None = None) -> None:
        """Apply objects server-side, into `namespace` unless they name theirs.

        Raises KubectlError at the first refusal.
        """
        for item in objects:
            self.api.apply(item, namespace)

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """Return an object, or None if it does not exist. Raises KubectlError."""
        return self.api.get(kind, name, namespace)

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """Return the objects of a kind, in all namespaces without `namespace`. Raises KubectlError."""
        return self.api.list(kind, namespace, selector)

    def wait(self, what: str, ready: Callable[[], bool], seconds: float) -> float:
        """Wait until `ready` and return the seconds it took. Raises TimeoutError that names what was
        awaited.
        """
        started = time.monotonic()
        while not ready():
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"{what}: not after {seconds:.0f} s")
            time.sleep(0.2)
        return time.monotonic() - started

    def make_namespace(self, name: str, enforce: str | None = None) -> None:
        """Create a namespace, with a Pod Security level if given, and wait for its ServiceAccount."""
        levels = ("enforce", "warn") if enforce else ()
        labels = {f"pod-security.kubernetes.io/{level}": enforce for level in levels}
        metadata = {"name": name, "labels": labels}
        self.put([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
        self.wait(
            f"the ServiceAccount of {name}",
            lambda: self.get("serviceaccount", "default", name) is not None,
            30,
        )

    def delete_namespace(self, name: str) -> None:
        """Request the deletion of a namespace without waiting: the next test has its own."""
        self.api.delete("namespace", name, "default")


def condition(item: Object, kind: str) -> Object | None:
    """Return the object's condition `kind` if it is True."""
    found = (item.get("status") or {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)


def renamed(cell: Manifests, name: str) -> list[Object]:
    """Return a cell's objects with its job under another name."""
    objects = copy.deepcopy(cell.objects)
    next(item for item in objects if item["kind"] == "PyTorchJob")["metadata"]["name"] = name
    return objects


def shared_claim(namespace: str, name: str = "trainyard") -> list[Object]:
    """Return the claim of base/storage/default-class with a volume that is bound at once.

    The volume is a directory of the node. This works where no pod writes to it, or where all nodes share it.
    """
    claim = yaml.safe_load((repo.root() / "base/storage/default-class/claim.yaml").read_text(encoding="utf-8"))
    size = claim["spec"]["resources"]["requests"]["storage"]
    claim["metadata"]["name"] = name
    claim["spec"] |= {"storageClassName": "", "volumeName": f"{namespace}-{name}"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}", "labels": {"trainyard-test": "volume"}},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": size},
            "claimRef": {"name": name, "namespace": namespace},
            "hostPath": {"path": "/var/lib/trainyard-shared", "type": "DirectoryOrCreate"},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    return [volume, claim]
