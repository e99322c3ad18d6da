"""Show what a cluster costs per hour now: nodes, control plane, NAT gateways, disks and file systems."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, inventory
from tools.cluster import context as contexts
from tools.core import output
from tools.kube import Kubectl

UNSEEN = "the API server does not show gateways, load balancers, disks, file systems and other machines"


@_options.cluster_or_context
def command(spec: Spec, session: Session, kubectl: Kubectl, as_json: bool) -> int:
    if spec.context is None:
        ours, left = inventory.survey(session, spec)
        found = [*ours, *inventory.gateways(session, spec), *left]
    else:
        found = contexts.costs(kubectl, spec)
    found = [one for one in found if one.price is None or one.price > 0]
    unseen = UNSEEN if spec.context is not None else None
    known, unknown = inventory.total(found)
    dates = {"machines": inventory.INSTANCE_PRICES, "other": f"us-east-1, {inventory.PRICES['date']}"}
    if as_json:
        rows = [vars(one) for one in found]
        sums = {"usd_per_hour": round(known, 4), "unknown": unknown, "unseen": unseen}
        output.data({**sums, "prices": dates, "resources": rows})
    else:
        for one in found:
            output.line(f"{words(one.price):>12}  {one.kind} {one.id} ({one.detail})")
        rest = f", and {output.count(unknown, 'resource')} without a price" if unknown else ""
        output.line(f"{words(known):>12}  per hour{rest}; {known * inventory.HOURS_A_MONTH:,.0f} $ per month")
        output.note(f"list prices: instances {dates['machines']}; others {dates['other']}; yours may differ")
    if unseen:
        output.note(f"CANNOT TELL what else costs: {unseen}; yard cluster cost CLUSTER asks AWS")
    return 3 if unknown or unseen else 0


def words(price: float | None) -> str:
    return "unknown" if price is None else f"{price:,.3f} $/h"
