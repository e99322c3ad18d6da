"""Show the AWS identity in use: account, role or user, region; or why there is none."""

from tools.aws import Session, principals
from tools.cli.cluster import _options
from tools.core import output


@_options.account
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
