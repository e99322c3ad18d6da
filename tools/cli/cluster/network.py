"""Check the network of a cluster's nodes: security groups, SSH, zones, placement, CNI, Lustre, pods per node."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, finding, network, snapshot
from tools.core import output
from tools.kube import Kubectl


@_options.cluster_or_context
def command(spec: Spec, session: Session, kubectl: Kubectl, prefixes: str | None, as_json: bool) -> int:
    if prefixes:
        output.note(network.set_prefixes(session, spec, prefixes == "on"))
    if spec.context is None:
        found = network.check(session, spec)
    else:
        seen = snapshot.collect(kubectl, kinds=("nodes", "pods", snapshot.DAEMONS))
        found = network.check_context(session, spec, seen)
    return finding.report(found, as_json).exit_code
