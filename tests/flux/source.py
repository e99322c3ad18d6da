"""What stands in for source-controller: GitRepository objects get the artifact of their commit.

Like it, it takes `spec.ref` of the repository at `spec.url`, only the folders of `spec.sparseCheckout`, and
writes `status.artifact` and the condition Ready. Unlike it, it looks only when it is told to, and finds
repositories on this machine's disk by their address.
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

from tests.cluster.kube import Kube, Object
from tests.cluster.sandbox import Sandbox

PORT = 8180
KIND = "gitrepositories.source.toolkit.fluxcd.io"


@dataclass
class Source:
    """A web server in the cluster's network, and the repositories whose commits it serves."""

    kube: Kube
    folder: Path
    repositories: dict[str, Path] = field(default_factory=dict)  # by spec.url

    def start(self, sandbox: Sandbox) -> None:
        """Serve artifacts on the cluster's loopback address."""
        self.folder.mkdir()
        server = [sys.executable, "-m", "http.server", str(PORT), "--bind", "127.0.0.1"]
        sandbox.start("artifacts", [*server, "--directory", self.folder])

    def publish(self) -> None:
        """Give every GitRepository that is not suspended the artifact of what it asks for now."""
        for item in self.kube.list(KIND):
            if not item["spec"].get("suspend"):
                self._publish(item)

    def _publish(self, item: Object) -> None:
        try:
            status = self._stored(item)
        except subprocess.CalledProcessError as problem:
            said = problem.stderr.decode().strip().splitlines()[-1]
            status = {"conditions": [_ready(item, "False", "GitOperationFailed", said)]}
        if _differs(item, status):
            words = ("patch", KIND, item["metadata"]["name"], f"--namespace={item['metadata']['namespace']}")
            patch = json.dumps({"status": status})
            self.kube.run(*words, "--subresource=status", "--type=merge", f"--patch={patch}")

    def _stored(self, item: Object) -> Object:
        """Return the status of a GitRepository whose artifact lies in the folder."""
        spec, metadata = item["spec"], item["metadata"]
        repository = self.repositories[spec["url"]]
        reference = spec["ref"].get("commit") or f"refs/heads/{spec['ref']['branch']}"
        commit = _git(repository, "rev-parse", "--verify", f"{reference}^{{commit}}").decode().strip()
        blob = gzip.compress(
            _git(repository, "archive", "--format=tar", commit, *spec.get("sparseCheckout", [])), mtime=0
        )
        name = f"{metadata['namespace']}-{metadata['name']}-{commit}.tar.gz"
        (self.folder / name).write_bytes(blob)
        branch = spec["ref"].get("branch")
        revision = f"{branch}@sha1:{commit}" if branch and not spec["ref"].get("commit") else f"sha1:{commit}"
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


def _differs(item: Object, status: Object) -> bool:
    """Say whether a status says something new, apart from its times."""
    old = item.get("status") or {}
    if "artifact" not in status:
        return old.get("conditions", [{}])[0].get("message") != status["conditions"][0]["message"]
    known = old.get("artifact", {}).get("digest"), old.get("artifact", {}).get("revision")
    new = status["artifact"]["digest"], status["artifact"]["revision"]
    return known != new or old.get("observedGeneration") != status["observedGeneration"]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
