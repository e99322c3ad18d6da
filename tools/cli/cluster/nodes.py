"""Show the nodes of a cluster: readiness, type, zone, use of devices, EFA and pods, health.

On HyperPod, deep health checks run when instances are created or updated, if the cluster enables them, and on
demand: aws sagemaker start-cluster-health-check. A node takes no pods while they run.

\b
Examples:
  yard cluster nodes
  yard cluster nodes --context gpu --json
  yard cluster nodes --save evidence/        save the snapshot
  yard cluster nodes --from evidence/        read a saved snapshot

\b
Exit codes: 0 all nodes are healthy, 1 a node has a problem or there are no nodes, 2 no such context or
snapshot, 3 the cluster did not answer or denied access.
"""

from pathlib import Path

import click

from tools.cli.cluster import _options
from tools.cluster import nodes, snapshot
from tools.core import output
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl

HEADS = ("node", "ready", "instance", "zone", "devices", "efa", "pods", "health")


@click.command(help=__doc__)
@click.option("--context", metavar="NAME", help="The context of the kubeconfig.")
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="Read a saved snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Save the snapshot.")
@_options.as_json
def command(context: str | None, recorded: Path | None, keep: Path | None, as_json: bool) -> None:
    found = snapshot.load(recorded) if recorded else snapshot.collect(Kubectl(context), kinds=("nodes", "pods"))
    if keep:
        found.save(keep)
    if "nodes" in found.unseen:
        raise UserError(f"the nodes are unknown: {found.unseen['nodes']}", None, 3)
    rows = nodes.table(found)
    if as_json:
        output.data([vars(one) for one in rows])
    else:
        _show(rows, "pods" in found.unseen)
    if not rows:
        raise UserError("the cluster has no nodes", "yard cluster scale CLUSTER GROUP N", 1)
    if any(one.troubles or not one.ready for one in rows):
        raise click.exceptions.Exit(1)


def _show(rows: list[nodes.Node], hidden: bool) -> None:
    """Print the table. If pods may not be listed, used counts are question marks."""
    output.table([HEADS, *(_cells(one, hidden) for one in rows)], indent="")


def _cells(node: nodes.Node, hidden: bool) -> tuple[str, ...]:
    state = "cordoned" if node.ready and node.cordoned else "yes" if node.ready else "NO"

    def share(used: int, there: int) -> str:
        return f"{'?' if hidden else used}/{there}" if there else "-"

    return (
        node.name,
        state,
        node.instance,
        node.zone,
        share(node.devices_used, node.devices),
        share(node.efa_used, node.efa),
        share(node.pods_used, node.pods),
        "; ".join(node.troubles) or node.health or "healthy",
    )
