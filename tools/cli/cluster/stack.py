"""Print or deploy a CloudFormation template of what eksctl does not create for nodes with EFA.

The template has placement groups, launch templates with an EFA interface for each network card, a security
group that allows all traffic to and from itself, and one for the file system. --deploy needs the facts of the
VPC, which `yard cluster init CLUSTER --eks NAME` finds.

\b
Examples:
  yard cluster stack gpu > stack.json
  yard cluster stack gpu --deploy

\b
Exit codes: 0 success, 1 the stack failed, 2 a fact is missing, or no group uses EFA,
3 AWS did not answer or denied access.
"""

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import stack
from tools.cluster.spec import Spec
from tools.core import output


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--deploy", is_flag=True, help="Create or update the stack, and wait for it.")
def command(spec: Spec, session: Session, deploy: bool) -> None:
    if not deploy:
        output.block(stack.text(spec), raw=True)
        return
    output.note(f"deploying {stack.name(spec)}: about two minutes")
    output.line(f"{stack.name(spec)}: {stack.deploy(session, spec)}")
