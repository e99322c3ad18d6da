"""kubectl as a test asks it: objects in and out as Python values, and waiting with a bound."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools import repo

Object = dict[str, Any]
CALL_SECONDS = 180


class KubectlError(Exception):
    """kubectl said no. The message is what it wrote."""


@dataclass(frozen=True)
class Done:
    """One call's answer."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Kube:
    """A cluster by its kubectl and kubeconfig."""

    program: Path  # the kubectl, or a script that runs it where the cluster can be reached
    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return an environment in which `kubectl` on PATH is this cluster's."""
        path = f"{self.program.parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def call(self, *words: str, given: str | None = None, timeout: float = CALL_SECONDS) -> Done:
        """Run kubectl, whatever it answers."""
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
        """Run kubectl and return what it printed. Raises KubectlError."""
        done = self.call(*words, given=given, timeout=timeout)
        if done.code != 0:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.err.strip() or done.out.strip()}")
        return done.out

    def apply(self, objects: str | Iterable[Object], namespace: str | None, *more: str) -> Done:
        """Apply YAML, or objects, on the server's side, into `namespace` unless they name theirs (None).

        Raises KubectlError.
        """
        text = objects if isinstance(objects, str) else yaml.safe_dump_all(objects)
        where = [f"--namespace={namespace}"] if namespace else []
        words = ("apply", "--server-side", *where, "-f", "-", *more)
        done = self.call(*words, given=text)
        if done.code != 0:
            raise KubectlError(f"kubectl apply: {done.err.strip()}")
        return done

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """Return an object, or None where there is none of the name."""
        words = ("get", kind, name, f"--namespace={namespace}", "--ignore-not-found", "-o", "json")
        text = self.run(*words)
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """Return the objects of a kind; of all namespaces without `namespace`."""
        where = f"--namespace={namespace}" if namespace else "--all-namespaces"
        words = ("get", kind, where, "-o", "json", *([f"--selector={selector}"] if selector else []))
        items: list[Object] = json.loads(self.run(*words))["items"]
        return items

    def wait(self, what: str, ready: Callable[[], bool], seconds: float) -> float:
        """Wait until `ready`; return the seconds that it took. Raises TimeoutError that says what."""
        started = time.monotonic()
        while not ready():
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"{what}: not after {seconds:.0f} s")
            time.sleep(0.2)
        return time.monotonic() - started

    def make_namespace(self, name: str, enforce: str | None = None) -> None:
        """Make a namespace, with a Pod Security level where one is given, and wait for its ServiceAccount."""
        levels = ("enforce", "warn") if enforce else ()
        labels = {f"pod-security.kubernetes.io/{level}": enforce for level in levels}
        metadata = {"name": name, "labels": labels}
        self.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}], "default")
        self.wait(
            f"the ServiceAccount of {name}",
            lambda: self.get("serviceaccount", "default", name) is not None,
            30,
        )

    def delete_namespace(self, name: str) -> None:
        """Begin to delete a namespace and do not wait: the next test has its own."""
        self.call("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def condition(item: Object, kind: str) -> Object | None:
    """Return the object's condition `kind` where it is True."""
    found = (item.get("status") or {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)


def shared_claim(namespace: str, name: str = "trainyard") -> list[Object]:
    """Return the claim of base/storage/default-class with a volume that is bound to it at once.

    The volume is a directory of the node: good where no pod writes to it, or where all nodes share it.
    """
    claim = yaml.safe_load(
        (repo.root() / "base/storage/default-class/claim.yaml").read_text(encoding="utf-8")
    )
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
