"""Add access entries, the Pod Identity agent and roles of pods to a cluster not created by trainyard."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cli.cluster.create import execute
from tools.cluster import Spec
from tools.core import UserError


@_options.cluster_and_account
def command(spec: Spec, session: Session, dry_run: bool, as_json: bool) -> None:
    if not spec.adopted:
        hint = "set it to add to an existing cluster, or use yard cluster create"
        raise UserError(f"{spec.source}: ADOPTED=true is not set", hint)
    execute(spec, session, dry_run, as_json)
