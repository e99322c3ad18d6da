"""Check the network of a cluster's nodes: security groups, SSH, zones, placement, CNI, Lustre, pods per node.

Without CLUSTER, the cluster is that of the current context. If the kubeconfig shows that it is on EKS, AWS is
asked too; otherwise security groups and SSH are CANNOT TELL.

\b
Examples:
  yard cluster network gpu
  yard cluster network --context k3s
  yard cluster network gpu --prefix-delegation on     allow more pods per node
  yard cluster network gpu --prefix-delegation off

\b
Exit codes: 0 passed, 1 a check failed, 2 no such cluster, 3 AWS did not answer or denied access.
"""

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import finding, network, snapshot
from tools.cluster.spec import Spec
from tools.core import output
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__)
@_options.cluster_or_context
@click.option(
    "--prefix-delegation", "prefixes", type=click.Choice(["on", "off"]), help="Turn it on or off in the VPC CNI."
)
@_options.as_json
def command(spec: Spec, session: Session, kubectl: Kubectl, prefixes: str | None, as_json: bool) -> None:
    if prefixes:
        output.note(network.set_prefixes(session, spec, prefixes == "on"))
    if spec.context is None:
        found = network.check(session, spec)
    else:
        seen = snapshot.collect(kubectl, kinds=("nodes", "pods", snapshot.DAEMONS))
        found = network.check_context(session, spec, seen)
    raise click.exceptions.Exit(finding.report(found, as_json).exit_code)
