"""Show the nodes of a cluster: readiness, type, zone, use of devices, EFA and pods, health."""

from pathlib import Path

from tools.cluster import nodes, snapshot
from tools.core import State, UserError, output
from tools.kube import Kubectl

HEADS = ("node", "ready", "instance", "zone", "devices", "efa", "pods", "health")


def command(context: str | None, recorded: Path | None, keep: Path | None, as_json: bool) -> int:
    found = snapshot.load(recorded) if recorded else snapshot.collect(Kubectl(context), kinds=("nodes", "pods"))
    if keep:
        found.save(keep)
    if "nodes" in found.unseen:
        raise UserError(f"the nodes are unknown: {found.unseen['nodes']}", None, 3)
    rows = nodes.table(found)
    if as_json:
        output.data([vars(one) for one in rows])
    else:
        hidden = "pods" in found.unseen  # used counts are question marks then
        states = [State.FAIL if not one.ready else State.WARN if one.troubles else None for one in rows]
        output.table([HEADS, *(_cells(one, hidden) for one in rows)], indent="", head=True, states=states)
    if not rows:
        raise UserError("the cluster has no nodes", "yard cluster scale CLUSTER GROUP N", 1)
    return 1 if any(one.troubles or not one.ready for one in rows) else 0


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
