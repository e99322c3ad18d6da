"""The API server asked over HTTP, for what tests do by the hundred: a kubectl takes 0.2 s each.

`kubectl proxy` on a Unix socket is the way in: it is where the cluster is, has the kubeconfig's rights, and
opens no port on this machine.
"""

from __future__ import annotations

import atexit
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tools.core import processes

Object = dict[str, Any]
CALL_SECONDS = 180
START_SECONDS = 30
RETRIES = 10  # of an answer that says when to ask again
APPLY = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML


class KubectlError(Exception):
    """The cluster refused. The message is the server's."""


@dataclass(frozen=True)
class Resource:
    """The API path of a kind: `/apis/GROUP/VERSION`, its plural, and whether it is namespaced."""

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str = "") -> str:
        """Return the path of one object, or of all objects in a namespace, or (None) in all namespaces."""
        inside = f"/namespaces/{quote(namespace)}" if self.namespaced and namespace else ""
        return f"{self.root}{inside}/{self.plural}" + (f"/{quote(name)}" if name else "")


class Api:
    """One cluster's API. At the first request `entrance` starts a proxy and returns its socket."""

    def __init__(self, entrance: Callable[[], Path]) -> None:
        self._entrance = entrance
        self._resources: dict[str, Resource] = {}

    @cached_property
    def _socket(self) -> Path:
        return self._entrance()

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        """Return an object, or None if it does not exist."""
        status, answer = self._ask("GET", self.resource(kind).path(namespace, name))
        return None if status == 404 else _good(status, answer)

    def list(self, kinds: str, namespace: str | None, selector: str) -> list[Object]:
        """Return the objects of comma-separated kinds, each with its kind, as kubectl does."""
        found = []
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        for kind in kinds.split(","):
            answer = _good(*self._ask("GET", self.resource(kind).path(namespace) + query))
            head = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
            found += [head | item for item in answer["items"]]
        return found

    def apply(self, item: Object, namespace: str | None) -> None:
        """Apply an object as `kubectl apply --server-side` does. Raises KubectlError."""
        metadata = item["metadata"]
        resource = self.resource(item["kind"], item["apiVersion"])
        path = resource.path(metadata.get("namespace") or namespace or "default", metadata["name"])
        query = urlencode({"fieldManager": "kubectl", "fieldValidation": "Strict", "force": "false"})
        _good(*self._ask("PATCH", f"{path}?{query}", item, APPLY))

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Request the deletion of an object if it exists."""
        status, answer = self._ask("DELETE", self.resource(kind).path(namespace, name))
        if status != 404:
            _good(status, answer)

    def resource(self, kind: str, version: str = "") -> Resource:
        """Return a kind's resource by any of its names (Pod, pods, po). Raises KubectlError."""
        wanted = f"{version}/{kind}".lower() if version else kind.lower()
        if wanted not in self._resources:
            self._discover()
        if wanted not in self._resources:
            raise KubectlError(f'no matches for kind "{kind}" in version "{version or "any"}"')
        return self._resources[wanted]

    def _discover(self) -> None:
        """Read every kind that is served now. The core group comes first, and the first of a name wins."""
        roots = ["/api/v1"]
        groups = _good(*self._ask("GET", "/apis"))["groups"]
        preferred = [group["preferredVersion"]["groupVersion"] for group in groups]
        others = [one["groupVersion"] for group in groups for one in group["versions"]]
        roots += [f"/apis/{version}" for version in dict.fromkeys([*preferred, *others])]
        for root in roots:
            status, answer = self._ask("GET", root)
            for one in answer["resources"] if status == 200 else []:
                if "/" not in one["name"]:
                    self._learn(root, one)

    def _learn(self, root: str, described: Mapping[str, Any]) -> None:
        resource = Resource(root, described["name"], described["namespaced"])
        version = root.removeprefix("/apis/").removeprefix("/api/")
        self._resources.setdefault(f"{version}/{described['kind']}".lower(), resource)
        group = version.rpartition("/")[0]
        names = {described["name"], described["singularName"], described["kind"].lower()}
        for name in {*names, *described.get("shortNames", ()), f"{described['name']}.{group}"} - {""}:
            self._resources.setdefault(name, resource)

    def _ask(
        self, method: str, path: str, body: Object | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return the status and the answer. The proxy answers 502 when the API server is unreachable.

        A busy server, or one that has just learned a kind, says when to ask again. That is done as often as
        client-go does it.
        """
        for _ in range(RETRIES):
            status, answer, again = self._ask_once(method, path, body, headers or {})
            if again is None or status < 429:
                break
            time.sleep(float(again))
        return status, answer

    def _ask_once(
        self, method: str, path: str, body: Object | None, headers: Mapping[str, str]
    ) -> tuple[int, Any, str | None]:
        """Return the status, the answer, and the seconds to wait before asking again, if the server gave
        them.
        """
        connection = _Connection(self._socket)
        try:
            connection.request(method, path, json.dumps(body) if body else None, dict(headers))
            response = connection.getresponse()
            text = response.read().decode()
        except OSError as problem:
            raise KubectlError(f"{method} {path}: {problem}") from problem
        finally:
            connection.close()
        again = response.getheader("Retry-After")
        try:
            return response.status, json.loads(text), again
        except ValueError:
            return response.status, {"message": text.strip()}, again


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CALL_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _good(status: int, answer: Any) -> Any:
    """Return a successful answer. Raises KubectlError with the server's message."""
    if status >= 400:
        raise KubectlError(str(answer.get("message") or f"HTTP {status}"))
    return answer


def listens(path: Path) -> bool:
    """Return whether a server accepts connections at a Unix socket. The file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


def proxy(kubectl: Path, kubeconfig: Path) -> Path:
    """Start a proxy that ends with this process and return its socket. Raises KubectlError."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-api-"))
    path, log = folder / "socket", folder / "log"
    words = [str(kubectl), f"--kubeconfig={kubeconfig}", "proxy", f"--unix-socket={path}"]
    with log.open("wb") as file:
        process = processes.start(words, None, folder, file, file)
    atexit.register(_end, process, folder)
    deadline = time.monotonic() + START_SECONDS
    while not listens(path):
        if process.poll() is not None or time.monotonic() > deadline:
            raise KubectlError(f"kubectl proxy: {log.read_text(errors='replace').strip()}")
        time.sleep(0.01)
    return path


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
