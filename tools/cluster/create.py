"""Makes a cluster with eksctl, or adds to an adopted one: command by command, each one repeatable.

What exists is looked up in AWS before each command, and what came of it is looked up behind it: eksctl's word
alone proves nothing. Flags: eksctl v0.230.0, pkg/ctl/create.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tools.aws.policies import OWNER_TAG
from tools.aws.session import Session
from tools.cluster.eksctl import FILE
from tools.cluster.inventory import describe_cluster
from tools.cluster.spec import SYSTEM, Spec
from tools.core import repo
from tools.core.errors import UserError
from tools.core.repo import shown

INSTALL = "https://docs.aws.amazon.com/eks/latest/eksctl/installation.html"
# The plugins are ours (clusters/<name>/plugins): two of one resource fight over the kubelet's registration.
OWN_PLUGINS = ("--install-nvidia-plugin=false", "--install-neuron-plugin=false")
LAST_LINES = 5
ACTIVE_SECONDS = 1800  # a control plane takes a quarter of an hour

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One command, of eksctl or yard, and what it is for."""

    title: str
    words: tuple[str, ...]


def steps(spec: Spec, exists: bool) -> list[Step]:
    """Return the commands that make the cluster whole; eksctl passes over what is there already."""
    file = f"--config-file={shown(spec.directory / FILE)}"
    if not exists:
        words = ("eksctl", "create", "cluster", file, "--write-kubeconfig=false", *OWN_PLUGINS)
        return [Step("control plane, nodes, add-ons and identities: about 20 minutes", words)]
    added = [
        Step("who may talk to it", ("eksctl", "create", "accessentry", file)),
        Step("add-ons", ("eksctl", "create", "addon", file)),
        # eksctl fails on an association that is there; ours brings it to what is wanted.
        Step("what its pods may", ("yard", "cluster", "identity", spec.title, "--apply")),
    ]
    if spec.adopted:
        return added
    return [Step("node groups", ("eksctl", "create", "nodegroup", file, *OWN_PLUGINS)), *added]


def check(session: Session, spec: Spec) -> bool:
    """Return whether the cluster exists. Raises UserError where it is not ours to make or to add to."""
    row = describe_cluster(session, spec)
    if row is None and spec.adopted:
        raise UserError(
            f"{spec.source}: there is no cluster {spec.name} to adopt", "yard cluster facts --hyperpod"
        )
    if row is not None and not spec.adopted and (row.get("tags") or {}).get(OWNER_TAG) != spec.name:
        hint = f"ADOPTED=true in {spec.source} adds to it, and yard cluster adopt does"
        raise UserError(f"the cluster {spec.name} exists and is not tagged {OWNER_TAG}={spec.name}", hint)
    return row is not None


def settle(session: Session, spec: Spec, say: Say) -> None:
    """Wait for a control plane that an earlier run began. Raises UserError (1) where it does not come up."""
    status = str((describe_cluster(session, spec) or {}).get("status"))
    if status in ("CREATING", "UPDATING", "PENDING"):
        say(f"the cluster {spec.name} is {status}: waited for")
        session.wait("eks", "cluster_active", "DescribeCluster", ACTIVE_SECONDS, name=spec.name)
        status = str((describe_cluster(session, spec) or {}).get("status"))
    if status != "ACTIVE":
        hint = f"yard cluster down {spec.title}, then again" if status == "FAILED" else "wait, then again"
        raise UserError(f"the cluster {spec.name} is {status}", hint, 1)


def run(step: Step, title: str, say: Say) -> None:
    """Run a command and pass on its lines; UserError with what it complained of where it fails."""
    words = step.words
    if words[0] == "yard":
        words = (sys.executable, "-m", "tools.cli", *words[1:])
    elif shutil.which("eksctl") is None:
        raise UserError("no eksctl on PATH", f"install eksctl 0.230 or newer: {INSTALL}")
    last: deque[str] = deque(maxlen=LAST_LINES)
    process = subprocess.Popen(
        words,
        cwd=repo.root(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line.strip())
                say(f"  {line.rstrip()}")
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode != 0:
        said = [line for line in reversed(last) if line]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        cause = next(iter((*errors, *said)), "it said nothing")
        hint = f"repeat the command: it goes on; yard cluster down {title} starts over"
        # What yard could not tell stays that; eksctl's code says nothing but that it failed.
        code = process.returncode if step.words[0] == "yard" and process.returncode in (2, 3) else 1
        raise UserError(f"{' '.join(step.words[:3])} failed: {cause}", hint, code)


def proof(session: Session, spec: Spec) -> list[str]:
    """Return what AWS says of the finished cluster; UserError (1) where it is not what was asked for."""
    row = describe_cluster(session, spec)
    if row is None or row.get("status") != "ACTIVE":
        found = "not there" if row is None else row.get("status")
        raise UserError(f"the cluster {spec.name} is {found}", "repeat the command: it goes on", 1)
    lines = [f"cluster {spec.name}: ACTIVE, Kubernetes {row.get('version')}, {row['arn']}"]
    if spec.adopted:
        return lines
    names = set(session.pages("eks", "list_nodegroups", "nodegroups", clusterName=spec.name))
    for name in (SYSTEM, *(group.name for group in spec.groups)):
        if name not in names:
            raise UserError(f"the node group {name} is not there", "repeat the command: it goes on", 1)
        group = session.call("eks", "describe_nodegroup", clusterName=spec.name, nodegroupName=name)[
            "nodegroup"
        ]
        if group.get("status") != "ACTIVE":
            raise UserError(
                f"the node group {name} is {group.get('status')}", "repeat the command: it goes on", 1
            )
        lines.append(
            f"node group {name}: ACTIVE, {(group.get('scalingConfig') or {}).get('desiredSize')} nodes"
        )
    return lines
