"""Set the number of nodes of a node group, within the limits of cluster.env."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, inventory
from tools.core import UserError, did_you_mean, output


@_options.cluster_and_account
def command(spec: Spec, session: Session, group: str, count: int, dry_run: bool, as_json: bool) -> int:
    known = {one.name: one for one in spec.groups}
    if group not in known:
        hint = did_you_mean(group, known) or f"groups: {', '.join(known) or 'none'}"
        raise UserError(f"{spec.source} has no node group {group}", hint)
    wanted = known[group]
    if not wanted.least <= count <= wanted.most:
        message = f"{wanted.at}: {count} is not within {wanted.least}-{wanted.most}"
        raise UserError(message, "change the fact first")
    names = {"clusterName": spec.name, "nodegroupName": group}
    old = session.call("eks", "describe_nodegroup", **names)["nodegroup"]["scalingConfig"]
    new = {"minSize": wanted.least, "maxSize": wanted.most, "desiredSize": count}
    lines = [f"{key}: {old.get(key)} -> {value}" for key, value in new.items() if old.get(key) != value]
    price = inventory.instance_price(wanted.instance.name, "spot" if wanted.market == "spot" else "")
    rate = "unknown $/h" if price is None else f"{price * count:,.2f} $/h"
    if not as_json:
        shown = ", ".join(lines) or f"already {output.count(count, 'node')}"
        output.line(f"{spec.name}/{group}: {shown} ({rate} for its nodes)")
    if lines and not dry_run:
        session.call("eks", "update_nodegroup_config", **names, scalingConfig=new)
        now = session.call("eks", "describe_nodegroup", **names)["nodegroup"]["scalingConfig"]
        if now.get("desiredSize") != count:
            message = f"EKS accepted the change, but reports {now.get('desiredSize')} nodes"
            raise UserError(message, "repeat the command", 1)
    if as_json:
        hourly = None if price is None else round(price * count, 4)
        output.data({"group": group, "changes": lines, "applied": bool(lines) and not dry_run, "usd_per_hour": hourly})
    return 1 if dry_run and lines else 0
