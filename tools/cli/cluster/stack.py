"""Print the CloudFormation template of what eksctl lacks, or create and update its stack.

Placement groups, launch templates with one EFA interface a network card, a security group that is open to
itself and to nobody else, and the file system's own. `yard cluster facts CLUSTER --write` finds the VPC.

\b
Examples:
  yard cluster stack gpu > stack.json
  yard cluster stack gpu --deploy

\b
Exit codes: 0 good, 1 the stack failed, 2 a fact is missing, 3 AWS could not be asked.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import stack
from tools.cluster.spec import Spec
from tools.core import output


@click.command(help=__doc__, short_help="what eksctl lacks, as CloudFormation")
@_options.cluster_and_account
@click.option("--deploy", is_flag=True, help="Create the stack, or update it, and wait for it.")
def command(spec: Spec, session: Session, deploy: bool) -> None:
    if not deploy:
        output.line(stack.text(spec).rstrip("\n"))
        return
    output.note(f"deploying {stack.name(spec)}: a minute or two")
    output.line(f"{stack.name(spec)}: {stack.deploy(session, spec)}")
