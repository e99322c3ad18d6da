"""Add a cluster to the kubeconfig, and leave everything else in it as it is.

\b
Examples:
  yard cluster kubeconfig gpu
  yard cluster kubeconfig gpu --context team-gpu --use

\b
Exit codes: 0 it is there, 2 no such cluster or the name is taken, 3 AWS could not be asked.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import kubeconfig
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError


@click.command(help=__doc__, short_help="add the cluster to the kubeconfig")
@_options.cluster_and_account
@click.option("--context", metavar="NAME", help="The context's name; else the cluster's.")
@click.option("--use", is_flag=True, help="Make it the current context.")
@click.option("--replace", is_flag=True, help="Take the name from another cluster's context.")
@_options.as_json
def command(
    spec: Spec, session: Session, context: str | None, use: bool, replace: bool, as_json: bool
) -> None:
    cluster = session.call("eks", "describe_cluster", name=spec.name)["cluster"]
    if cluster.get("status") != "ACTIVE":
        raise UserError(f"the cluster {spec.name} is {cluster.get('status')}", "wait until it is ACTIVE", 1)
    name = context or spec.title
    file = kubeconfig.target(name)
    changed = kubeconfig.merge(
        file, kubeconfig.entries(cluster, session.region, name, session.profile), replace, use
    )
    if as_json:
        output.data({"file": str(file), "context": name, "changed": changed})
    else:
        output.line(f"{file}: context {name} {'written' if changed else 'is there already'}")
    if (cluster.get("resourcesVpcConfig") or {}).get("endpointPublicAccess") is False:
        output.note("its API server is private: reached from its VPC only, or through a VPN or a bastion")
    output.note(f"next: kubectl --context {name} get nodes")
