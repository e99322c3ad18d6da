"""Judge the network of a cluster's nodes: groups, SSH, zones, placement, CNI, Lustre, room for pods.

\b
Examples:
  yard cluster network gpu
  yard cluster network gpu --prefix-delegation on     more pods a node
  yard cluster network gpu --prefix-delegation off    and back

\b
Exit codes: 0 fit for a job, 1 something is not, 2 no such cluster, 3 not everything could be seen.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import finding, network
from tools.cluster.spec import Spec
from tools.core import output


@click.command(help=__doc__, short_help="is the nodes' network fit for a job")
@_options.cluster_and_account
@click.option(
    "--prefix-delegation", "prefixes", type=click.Choice(["on", "off"]), help="Set it in the VPC CNI."
)
@_options.as_json
def command(spec: Spec, session: Session, prefixes: str | None, as_json: bool) -> None:
    if prefixes:
        output.note(network.set_prefixes(session, spec, prefixes == "on"))
    findings = network.judge(session, spec)
    level = finding.worst(findings)
    if as_json:
        output.data({"verdict": level.value, "findings": finding.as_data(findings)})
    else:
        finding.show(findings)
    raise click.exceptions.Exit(finding.exit_code(level))
