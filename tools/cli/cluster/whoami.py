"""Show the AWS identity in use: account, role or user, region; or why there is none.

\b
Examples:
  yard cluster whoami
  yard cluster whoami --profile training --region us-east-2

\b
Exit codes: 0 success, 2 no region is set, 3 no valid credentials, or AWS did not answer.
"""

import click

from tools.aws import principals
from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.core import output


@click.command(help=__doc__)
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
        rows.append(("", "its path, which access entries need, is unknown without iam:GetRole"))
    output.table([*rows, ("region", session.region)], indent="")
