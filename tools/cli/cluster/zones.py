"""List the zones that offer an instance type, those with the most free subnet addresses first."""

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import offers
from tools.core import UserError, output
from tools.facts.instances import instance


@_options.account
def command(kind: str, vpc: str | None, session: Session, as_json: bool) -> None:
    name = instance(kind).name
    there = offers.offering(session, name)
    spare = offers.spare_addresses(session, vpc)
    rows = sorted(there, key=lambda zone: (-spare.get(zone.name, 0), zone.name))
    found = [{"name": one.name, "id": one.id, "spare": spare.get(one.name, 0)} for one in rows]
    output.answer(found, (f"{one['name']}  {one['id']}  {one['spare']:,} free addresses" for one in found), as_json)
    if not rows:
        raise UserError(f"no zone of {session.region} offers {name}", "choose another --region", 1)
