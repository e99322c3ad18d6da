"""Print what AWS knows of a cluster as NAME=value lines, or write them into its cluster.env.

Takes an EKS cluster, or with --hyperpod the HyperPod cluster around one: names, ARNs, VPC, subnets, zones,
security groups, file system, registry, roles. What AWS does not have is named, and never written as null.

\b
Examples:
  yard cluster facts gpu
  yard cluster facts gpu --write
  yard cluster facts gpu-hyperpod --hyperpod ml-cluster --write

\b
Exit codes: 0 found, 2 no such cluster, 3 AWS could not be asked.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import discover
from tools.cluster.platform import FACTS
from tools.cluster.spec import Spec
from tools.core import output


@click.command(help=__doc__, short_help="what AWS knows of a cluster")
@_options.cluster_and_account
@click.option("--hyperpod", metavar="NAME", help="A HyperPod cluster; its EKS cluster is looked up.")
@click.option("--write", is_flag=True, help="Set them in cluster.env.")
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
        changed = discover.write(spec.directory / FACTS, found.facts)
        output.note(f"{spec.source}: {', '.join(changed) or 'nothing'} changed")
        output.note(f"next: yard cluster config {spec.title}")
