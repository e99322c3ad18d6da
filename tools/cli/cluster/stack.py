"""Print or deploy a CloudFormation template of what eksctl does not create for nodes with EFA."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, stack
from tools.core import output


@_options.cluster_and_account
def command(spec: Spec, session: Session, deploy: bool) -> None:
    if not deploy:
        output.block(stack.text(spec), raw=True)
        return
    output.note(f"deploying {stack.name(spec)}: about two minutes")
    output.line(f"{stack.name(spec)}: {stack.deploy(session, spec)}")
