"""Show the AWS identity in use: account, role or user, region; or why there is none."""

import click

from tools.aws import principals
from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.core import output


@click.command()
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
