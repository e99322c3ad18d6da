"""Print the facts that AWS has about a cluster as NAME=value lines, or write them into its cluster.env.

The facts are names, ARNs, VPC, subnets, zones, security groups, file system, registry and roles of an EKS
cluster, or with --hyperpod of the HyperPod cluster around it. Missing facts are listed and never written.

\b
Examples:
  yard cluster facts gpu
  yard cluster facts gpu --write
  yard cluster facts gpu-hyperpod --hyperpod ml-cluster --write

\b
Exit codes: 0 success, 2 no such cluster, 3 AWS did not answer or denied access.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import cluster_env, discover
from tools.cluster.spec import Spec
from tools.core import output


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--hyperpod", metavar="NAME", help="Read the HyperPod cluster NAME and its EKS cluster.")
@click.option("--write", is_flag=True, help="Write the facts into cluster.env.")
@_options.as_json
def command(spec: Spec, session: Session, hyperpod: str | None, write: bool, as_json: bool) -> None:
    found = discover.discover(session, spec, hyperpod)
    if as_json:
        output.data({"facts": found.facts, "missing": found.missing})
    else:
        for name, value in found.facts.items():
            output.line(f"{name}={value}")
    for line in found.missing:
        output.note(f"not found: {line}")
    if write:
        changed = cluster_env.write(spec.directory / cluster_env.FILE, found.facts)
        output.note(f"{spec.source}: changed {', '.join(changed) or 'nothing'}")
        output.note(f"next: yard cluster config {spec.title}")
