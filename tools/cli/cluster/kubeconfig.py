"""Add the cluster to the kubeconfig with `aws eks update-kubeconfig`.

The current context stays, unless none is set or --use is given.

\b
Examples:
  yard cluster kubeconfig gpu
  yard cluster kubeconfig gpu --context team-gpu --use

\b
Exit codes: 0 success, 1 the cluster is not ACTIVE, 2 no such cluster, the name is taken, or the AWS CLI is
missing or failed, 3 AWS did not answer or denied access.
"""

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import kubeconfig
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--context", metavar="NAME", help="The name of the context. Default: the cluster's.")
@click.option("--use", is_flag=True, help="Make it the current context.")
@click.option("--replace", is_flag=True, help="Replace the context of another cluster.")
@_options.as_json
def command(spec: Spec, session: Session, context: str | None, use: bool, replace: bool, as_json: bool) -> None:
    cluster = session.call("eks", "describe_cluster", name=spec.name)["cluster"]
    if cluster.get("status") != "ACTIVE":
        raise UserError(f"the cluster {spec.name} is {cluster.get('status')}", "wait until it is ACTIVE", 1)
    name = context or spec.title
    entry = kubeconfig.add(session, cluster, name, replace, use)
    if as_json:
        output.data({"file": entry.file, "context": name, "changed": entry.changed})
    else:
        output.line(f"{entry.file}: context {name} {'written' if entry.changed else 'is up to date'}")
    if (cluster.get("resourcesVpcConfig") or {}).get("endpointPublicAccess") is False:
        output.note("the API server is private; reach it from its VPC, a VPN or a bastion host")
    output.note(f"next: kubectl --context {name} get nodes")
