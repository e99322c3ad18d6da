"""Say who AWS takes you for: account, role, region; or the reason why it takes you for nobody.

\b
Examples:
  yard cluster whoami
  yard cluster whoami --profile training --region us-east-2

\b
Exit codes: 0 known, 3 no credentials, expired, or AWS was not reached.
"""

from __future__ import annotations

import click

from tools.aws import principals
from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.core import output


@click.command(help=__doc__, short_help="who AWS takes you for")
@_options.account
@_options.as_json
def command(session: Session, as_json: bool) -> None:
    identity = session.identity()
    who = principals.resolve(session, identity["arn"])
    if as_json:
        principal = {"arn": who.arn, "kind": who.kind, "name": who.name, "certain": who.certain}
        output.data({**identity, "principal": principal, "region": session.region})
        return
    rows = [("account", identity["account"]), ("caller", identity["arn"]), (who.kind, who.arn)]
    if not who.certain:
        rows.append(("", "its path is not known: that takes iam:GetRole, and access entries need it"))
    output.table([*rows, ("region", session.region)], indent="")
