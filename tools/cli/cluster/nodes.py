"""Show a cluster's nodes: ready, instance, zone, devices and EFA used, pods, health by condition and label.

On HyperPod deep health checks run when instances are made or updated, where the cluster asks for them, and
when somebody starts them: aws sagemaker start-cluster-health-check. Meanwhile a node takes no work.

\b
Examples:
  yard cluster nodes
  yard cluster nodes --context gpu --json
  yard cluster nodes --save evidence/        keep what it was read from
  yard cluster nodes --from evidence/        read it again, without a cluster

\b
Exit codes: 0 all are well, 1 a node is not ready or has a trouble, or there is none, 3 cannot be seen.
"""

from __future__ import annotations

from pathlib import Path

import click

from tools.cli.cluster import _options
from tools.cluster import nodes
from tools.cluster import state as kube
from tools.core import output
from tools.core.errors import UserError
from tools.kube.kubectl import Kubectl

HEADS = ("node", "ready", "instance", "zone", "devices", "efa", "pods", "health")


@click.command(help=__doc__, short_help="nodes, what is free on them, how they feel")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="DIR", help="A kept snapshot.")
@click.option("--save", "keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the snapshot.")
@_options.as_json
def command(context: str | None, recorded: Path | None, keep: Path | None, as_json: bool) -> None:
    state = kube.load(recorded) if recorded else kube.collect(Kubectl(context), ("nodes", "pods"))
    if keep:
        state.save(keep)
    if "nodes" in state.unseen:
        raise UserError(f"nodes cannot be seen: {state.unseen['nodes']}", None, 3)
    rows = nodes.table(state)
    if as_json:
        output.data([one.as_data() for one in rows])
    else:
        _show(rows, "pods" in state.unseen)
    if not rows:
        raise UserError("the cluster has no node", "yard cluster scale CLUSTER GROUP N", 1)
    if any(one.troubles or not one.ready for one in rows):
        raise click.exceptions.Exit(1)


def _show(rows: list[nodes.Node], hidden: bool) -> None:
    """Print the table; without a right to see pods, what is used is a question mark."""
    lines = [HEADS, *(_cells(one, hidden) for one in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADS))]
    for line in lines:
        output.line("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


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
        "; ".join(node.troubles) or node.health or "well",
    )
