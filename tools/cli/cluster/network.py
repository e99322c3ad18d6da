"""Check the network of a cluster's nodes: security groups, SSH, zones, placement, CNI, Lustre, pods per node.

\b
Examples:
  yard cluster network gpu
  yard cluster network gpu --prefix-delegation on     allow more pods per node
  yard cluster network gpu --prefix-delegation off

\b
Exit codes: 0 passed, 1 a check failed, 2 no such cluster, 3 AWS did not answer or denied access.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import finding, network
from tools.cluster.spec import Spec
from tools.core import output


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option(
    "--prefix-delegation",
    "prefixes",
    type=click.Choice(["on", "off"]),
    help="Turn it on or off in the VPC CNI.",
)
@_options.as_json
def command(spec: Spec, session: Session, prefixes: str | None, as_json: bool) -> None:
    if prefixes:
        output.note(network.set_prefixes(session, spec, prefixes == "on"))
    raise click.exceptions.Exit(finding.report(network.check(session, spec), as_json).exit_code)
