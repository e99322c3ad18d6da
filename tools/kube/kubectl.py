"""kubectl as this project runs it: one context, one namespace, JSON answers, and one error for each failure.

kubectl and not a client library, because every user of a cluster has it with a working kubeconfig: contexts,
exec plugins (aws eks get-token) and proxies are then exactly those of the user's own kubectl.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.core.errors import UserError

SECONDS = 60  # of any single question; an API server that takes longer does not answer
CANNOT_SEE = 3
# What kubectl complains of, and what is usually behind it.
HINTS = {
    "localhost:8080": "this machine has no kubeconfig with a current context",  # kubectl's own default
    "unknown flag": "this kubectl is too old: install kubectl 1.31 or newer",
    "unknown command": "this kubectl is too old: install kubectl 1.31 or newer",
    "connection refused": "is the cluster up, and its address in the kubeconfig right?",
    "no such host": "is the cluster's address in the kubeconfig right?",
    "no configuration has been provided": "this machine has no kubeconfig with a current context",
    "current-context is not set": "choose a context: kubectl config use-context NAME",
    "context was not found": "kubectl config get-contexts lists the contexts that there are",
    "does not exist": "kubectl config get-contexts lists the contexts that there are",
    "no matches for kind": "the training operator's CRD is not installed on this cluster",
    "ensure CRDs are installed": "the training operator's CRD is not installed on this cluster",
    "doesn't have a resource type": "the training operator's CRD is not installed on this cluster",
    "conflict": "another manager owns these fields; ask as that one: --field-manager kustomize-controller",
    "orbidden": "the user of this context may not do that: kubectl auth can-i --list",
    "nauthorized": "the credentials of this context have run out",
    "provide credentials": "the credentials of this context have run out",
    "getting credentials": "the program that gets the credentials fails: log in again (aws sso login)",
    'namespaces "': "make the namespace first",
}


@dataclass(frozen=True)
class Kubectl:
    """One context and namespace of the user's kubeconfig; None is the kubeconfig's own."""

    context: str | None = None
    namespace: str | None = None

    def words(self, *arguments: str) -> list[str]:
        """Return the command line of a kubectl command."""
        context = [f"--context={self.context}"] if self.context else []
        namespace = [f"--namespace={self.namespace}"] if self.namespace else []
        return ["kubectl", *context, *namespace, *arguments]

    def run(
        self, *arguments: str, stdin: str | None = None, seconds: float | None = SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it said, whatever its exit code.

        Raises UserError where kubectl is missing, and, with exit code 3, where it does not end in `seconds`
        (None: it may take as long as it wants).
        """
        try:
            return subprocess.run(
                self.words(*arguments),
                input=stdin,
                stdin=None if stdin is not None else subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError:
            raise missing() from None
        except subprocess.TimeoutExpired:
            message = f"kubectl {arguments[0]}: no answer from the cluster for {seconds} s"
            raise UserError(message, HINTS["connection refused"], CANNOT_SEE) from None
        except OSError as problem:
            raise UserError(f"kubectl does not run: {problem.strerror}") from problem

    def text(self, *arguments: str, stdin: str | None = None, seconds: float | None = SECONDS) -> str:
        """Return kubectl's output; UserError with its last complaint where it fails."""
        done = self.run(*arguments, stdin=stdin, seconds=seconds)
        if done.returncode != 0:
            raise failure(arguments[0], done.stderr)
        return done.stdout

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        """Return the JSON that kubectl prints; UserError where it fails."""
        text = self.text(*arguments, "--output=json", stdin=stdin)
        return json.loads(text) if text.strip() else None

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of a `get`, a single one as a list too."""
        found = self.json("get", *arguments) or {}
        return list(found["items"]) if "items" in found else [found] if found else []

    def lines(self, *arguments: str) -> Iterator[str]:
        """Yield kubectl's output line by line while it comes; end it when the caller stops reading."""
        try:
            process = subprocess.Popen(
                self.words(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            raise missing() from None
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield line.rstrip("\n")
            finally:
                process.kill()


def missing() -> UserError:
    """Return the error of a machine without kubectl."""
    hint = "install kubectl 1.31 or newer (https://kubernetes.io/docs/tasks/tools/)"
    return UserError("no kubectl on PATH", hint)


def failure(what: str, stderr: str) -> UserError:
    """Return kubectl's last complaint as one error, with what is usually behind it.

    Exit code 3 where the cluster was not reached or does not let us look, for then nothing is known.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = (lines or [f"kubectl {what} failed without a word"])[-1].removeprefix("error: ")
    hint = next((hint for sign, hint in HINTS.items() if sign in stderr), None)
    unseen = (
        *("connection refused", "no such host", "orbidden", "nauthorized", "timed out", "i/o timeout"),
        *("provide credentials", "Unable to connect to the server", "currently unable to handle the request"),
    )
    code = CANNOT_SEE if any(sign in stderr for sign in unseen) else 2
    return UserError(f"kubectl {what}: {message}", hint, code)
