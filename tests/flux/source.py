"""Stands in for source-controller: GitRepository objects get the artifact of their commit.

As source-controller does, it reads `spec.ref` of the repository at `spec.url` with only the folders of
`spec.sparseCheckout`, and writes `status.artifact` and the condition Ready. Unlike it, it runs only on
request, and finds repositories on this machine by their address.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.kube import Kube
from tests.cluster.sandbox import Sandbox

PORT = 8180
KIND = "gitrepositories.source.toolkit.fluxcd.io"


@dataclass
class Source:
    """A web server in the cluster's network, and the repositories that it serves."""

    kube: Kube
    folder: Path
    repositories: dict[str, Path] = field(default_factory=dict)  # by spec.url

    def start(self, sandbox: Sandbox) -> None:
        """Serve artifacts on the cluster's loopback address."""
        self.folder.mkdir()
        server = [sys.executable, "-m", "http.server", str(PORT), "--bind", "127.0.0.1"]
        sandbox.start("artifacts", [*server, "--directory", self.folder])

    def publish(self) -> None:
        """Give every GitRepository that is not suspended the artifact of its current reference."""
        for item in self.kube.list(KIND):
            if not item["spec"].get("suspend"):
                self._publish(item)

    def _publish(self, item: Object) -> None:
        try:
            commit, revision = self._wanted(item)
            if _has(item, revision):
                return
            status = self._stored(item, commit, revision)
        except subprocess.CalledProcessError as problem:
            said = problem.stderr.decode().strip().splitlines()[-1]
            if _says(item, said):
                return
            status = {"conditions": [_ready(item, "False", "GitOperationFailed", said)]}
        words = ("patch", KIND, item["metadata"]["name"], f"--namespace={item['metadata']['namespace']}")
        patch = json.dumps({"status": status})
        self.kube.run(*words, "--subresource=status", "--type=merge", f"--patch={patch}")

    def _wanted(self, item: Object) -> tuple[str, str]:
        """Return the current commit of a GitRepository, and the revision of its artifact."""
        reference = item["spec"]["ref"]
        branch = None if reference.get("commit") else reference["branch"]
        repository = self.repositories[item["spec"]["url"]]
        # In a repository of tests.parts.upstream, the commit of a project is a tag.
        tagged = None if branch else _git(repository, "tag", "--list", reference["commit"])
        name = f"refs/heads/{branch}" if branch else f"{'refs/tags/' if tagged else ''}{reference['commit']}"
        commit = _git(repository, "rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
        return commit, f"{branch}@sha1:{commit}" if branch else f"sha1:{commit}"

    def _stored(self, item: Object, commit: str, revision: str) -> Object:
        """Store the artifact of a GitRepository and return its status."""
        spec, metadata = item["spec"], item["metadata"]
        repository = self.repositories[spec["url"]]
        archive = _git(repository, "archive", "--format=tar", commit, *spec.get("sparseCheckout", []))
        blob = gzip.compress(archive, compresslevel=1, mtime=0)
        name = f"{metadata['namespace']}-{metadata['name']}-{commit}.tar.gz"
        (self.folder / name).write_bytes(blob)
        artifact = {
            "path": name,
            "url": f"http://127.0.0.1:{PORT}/{name}",
            "revision": revision,
            "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}",
            "size": len(blob),
            "lastUpdateTime": _now(),
        }
        ready = _ready(item, "True", "Succeeded", f"stored artifact for revision '{revision}'")
        generation = metadata["generation"]
        return {"observedGeneration": generation, "artifact": artifact, "conditions": [ready]}


def _git(repository: Path, *words: str) -> bytes:
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _ready(item: Object, status: str, reason: str, message: str) -> Object:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return condition | {
        "lastTransitionTime": _now(),
        "observedGeneration": item["metadata"]["generation"],
    }


def _has(item: Object, revision: str) -> bool:
    """Return whether an object has the artifact of this revision and of its current spec."""
    status = item.get("status") or {}
    known = (status.get("artifact") or {}).get("revision"), status.get("observedGeneration")
    ready = (status.get("conditions") or [{}])[0].get("status") == "True"
    return ready and known == (revision, item["metadata"]["generation"])


def _says(item: Object, message: str) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or [{}]
    return conditions[0].get("message") == message


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
