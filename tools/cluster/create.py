"""Creates a cluster with eksctl, or adds to an adopted one. Each command can be repeated.

What exists is read from AWS before the commands, and the result is read from AWS after them: the exit code of
eksctl alone proves nothing. Flags: eksctl v0.230.0, pkg/ctl/create.
"""

from tools.aws import Session
from tools.aws.policies import OWNER_TAG, owner
from tools.cluster.eksctl import FILE
from tools.cluster.ownership import describe_cluster, tags_of
from tools.cluster.spec import SYSTEM, Spec
from tools.cluster.steps import Step
from tools.core import Say, UserError, repo
from tools.kube import Object

# clusters/<name>/plugins installs the plugins: two for one resource would conflict in the kubelet.
OWN_PLUGINS = ("--install-nvidia-plugin=false", "--install-neuron-plugin=false")
ACTIVE_SECONDS = 1800  # a control plane takes about 15 minutes
AGAIN = "repeat the command to continue"


def steps(spec: Spec, exists: bool) -> list[Step]:
    """Return the commands that complete the cluster. eksctl skips what exists."""
    file = f"--config-file={repo.shown(spec.directory / FILE)}"
    # eksctl's roles would trust every cluster of the account.
    roles = Step("roles of pods", ("yard", "cluster", "identity", spec.title, "--apply"))
    if not exists:
        words = ("eksctl", "create", "cluster", file, "--write-kubeconfig=false", *OWN_PLUGINS)
        return [Step("control plane, nodes and add-ons: about 20 minutes", words), roles]
    added = [
        Step("access entries", ("eksctl", "create", "accessentry", file)),
        Step("add-ons", ("eksctl", "create", "addon", file)),
        roles,
    ]
    if spec.adopted:
        return added
    return [Step("node groups", ("eksctl", "create", "nodegroup", file, *OWN_PLUGINS)), *added]


def check(session: Session, spec: Spec) -> bool:
    """Return whether the cluster exists. Raises UserError where it is not ours to create or to change."""
    row = describe_cluster(session, spec)
    if row is None and spec.adopted:
        message = f"{spec.source}: the cluster {spec.name} does not exist, so it cannot be adopted"
        raise UserError(message, "yard cluster init NAME --hyperpod NAME")
    wanted = owner(session.region, spec.name)
    if row is not None and not spec.adopted and tags_of(row).get(OWNER_TAG) != wanted:
        hint = f"to add to it, set ADOPTED=true in {spec.source} and run yard cluster adopt"
        raise UserError(f"the cluster {spec.name} exists and is not tagged {OWNER_TAG}={wanted}", hint)
    return row is not None


def settle(session: Session, spec: Spec, say: Say) -> None:
    """Wait for a control plane that an earlier run started. Raises UserError (1) where it does not start."""
    status = str((describe_cluster(session, spec) or {}).get("status"))
    if status in ("CREATING", "UPDATING", "PENDING"):
        say(f"waiting for the cluster {spec.name}, which is {status}")
        session.wait("eks", "cluster_active", "DescribeCluster", ACTIVE_SECONDS, name=spec.name)
        status = str((describe_cluster(session, spec) or {}).get("status"))
    if status != "ACTIVE":
        hint = f"yard cluster down {spec.title}, then repeat" if status == "FAILED" else "wait, then repeat"
        raise UserError(f"the cluster {spec.name} is {status}", hint, 1)


def proof(session: Session, spec: Spec) -> list[str]:
    """Return the state of the finished cluster in AWS. Raises UserError (1) where it is incomplete."""
    row = describe_cluster(session, spec)
    _need_active(f"the cluster {spec.name}", row)
    assert row is not None
    lines = [f"cluster {spec.name}: ACTIVE, Kubernetes {row.get('version')}, {row['arn']}"]
    for name in () if spec.adopted else (SYSTEM, *(group.name for group in spec.groups)):
        group = session.get("eks", "describe_nodegroup", "nodegroup", clusterName=spec.name, nodegroupName=name)
        _need_active(f"the node group {name}", group)
        nodes = ((group or {}).get("scalingConfig") or {}).get("desiredSize")
        lines.append(f"node group {name}: ACTIVE, {nodes} nodes")
    return lines


def _need_active(title: str, found: Object | None) -> None:
    status = "missing" if found is None else found.get("status")
    if status != "ACTIVE":
        raise UserError(f"{title} is {status}", AGAIN, 1)
