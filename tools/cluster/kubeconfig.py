"""Adds a cluster to the kubeconfig with `aws eks update-kubeconfig`, and restores what that overwrites.

The AWS CLI replaces a context of the same name together with its namespace, and always makes the new context
the current one (awscli/customizations/eks/kubeconfig.py). The result is read with kubectl, which merges the
files in KUBECONFIG.
"""

import re
import subprocess
from dataclasses import dataclass
from typing import Any

from tools.aws import Session
from tools.cluster.context import named
from tools.core import UserError, command_line, programs
from tools.kube import Kubectl

SECONDS = 120
LARGEST = 2**20  # bytes of its output
# Exit codes of the AWS CLI for missing credentials and for an error from the service.
NO_ANSWER = (253, 254)


@dataclass(frozen=True)
class Entry:
    file: str
    changed: bool


def add(session: Session, cluster: dict[str, Any], context: str, replace: bool, use: bool) -> Entry:
    """Add a cluster, as EKS describes it, under the name `context`.

    A context of this name for another cluster is only replaced with `replace`. The current context is only
    changed with `use`, or if none is set. Raises UserError.
    """
    arn, before = str(cluster["arn"]), _view()
    old = _context(before, context)
    if old and old.get("cluster") != arn and not replace:
        raise UserError(
            f"the context {context} already belongs to {old.get('cluster')}",
            "--context NAME chooses another name, --replace replaces this context",
        )
    file = _update(session, str(cluster["name"]), context)
    current, namespace = before.get("current-context"), old.get("namespace")
    if current and not use:
        Kubectl().text("config", "set", "current-context", current)
    if namespace and old.get("cluster") == arn:
        Kubectl().text("config", "set-context", context, f"--namespace={namespace}")
    after = _view()
    if _context(after, context).get("cluster") != arn:
        hint = "kubectl uses the first file of KUBECONFIG that has a context"
        raise UserError(f"{file} was written, but the context {context} is another cluster's", hint, 1)
    return Entry(file, after != before)


def _update(session: Session, cluster: str, context: str) -> str:
    """Run the AWS CLI and return the file that it wrote. Raises UserError."""
    words = ["aws", "eks", "update-kubeconfig", "--name", command_line.operand(cluster, "the name of the cluster")]
    words += ["--region", session.region, "--alias", command_line.operand(context, "--context")]
    words += ["--profile", session.profile] if session.profile else []
    title = " ".join(words[:3])
    try:
        done = command_line.captured(words, seconds=SECONDS, largest=LARGEST)
    except command_line.TooLarge as problem:
        raise UserError(f"{title} printed {problem}", None, 3) from None
    except FileNotFoundError:
        raise UserError("aws is not on PATH", programs.how_to_install("aws")) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{title} did not finish in {SECONDS} s", None, 3) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        reason = (lines or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"{title} failed: {reason}", None, 3 if done.returncode in NO_ANSWER else 2)
    answer = done.stdout.decode(errors="replace")
    written = re.search(r"context .{1,300} (?:to|in) (.+)", answer)
    return written[1] if written else answer.strip()


def _view() -> dict[str, Any]:
    return dict(Kubectl().json("config", "view", "--raw"))


def _context(config: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(named(config, "contexts", name).get("context") or {})
