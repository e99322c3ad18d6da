"""Delete a cluster: what has the tag trainyard/cluster=REGION/NAME and is provably of this cluster."""

import click

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cli.cluster.cost import words
from tools.cluster import Spec, inventory, teardown
from tools.cluster.remains import remains
from tools.core import UserError, output


@_options.cluster_and_account
def command(spec: Spec, session: Session, dry_run: bool, yes: bool, expect: int | None, as_json: bool) -> int:
    if expect is not None and not yes:
        raise UserError("--expect needs --yes")
    ours, left = inventory.survey(session, spec)
    staying = inventory.held(session, spec, ours)
    ours, left = _without(ours, staying), [*left, *staying, *remains(session, spec)]
    account = session.identity()["account"]
    if as_json and not (yes or dry_run):
        raise UserError("--json cannot ask for confirmation", "add --yes or --dry-run")
    if not as_json:
        _show(spec, account, session.region, ours, left)
    if dry_run or not ours:
        _tell(ours, left, False, as_json)
        return 1 if ours or staying else 0
    held = [one.id for one in left if one.kind == inventory.HOLDS]
    if held:
        message = f"nothing was deleted: the cluster has node groups without our tag: {', '.join(held)}"
        raise UserError(message, f"aws eks delete-nodegroup --cluster-name {spec.name} --nodegroup-name NAME", 1)
    if yes:
        _compare(len(ours), expect)
    else:
        _ask(spec)
        _refuse_changes(ours, _plan(spec, session)[0])
    for number, one in enumerate(ours, start=1):
        output.note(f"[{number}/{len(ours)}] {one.kind} {one.id}")
        teardown.delete(session, spec, one, output.note)
    again, staying = _plan(spec, session)
    if again:
        names = ", ".join(f"{one.kind} {one.id}" for one in again)
        raise UserError(f"not deleted: {names}", f"yard cluster down {spec.title}", 1)
    _tell(ours, left, True, as_json)
    if staying:
        names = "; ".join(f"{one.kind} {one.id}: {one.why}" for one in staying)
        raise UserError(f"everything else is deleted: {names}", f"yard cluster down {spec.title}", 1)
    if not as_json:
        gone = output.count(len(ours), "resource")
        output.line(f"{spec.name}: {gone} deleted; nothing that is provably ours is left")
    return 0


def _plan(spec: Spec, session: Session) -> tuple[list[inventory.Resource], list[inventory.Resource]]:
    """Return what is ours to delete, and what of ours stays because something else needs it."""
    ours = inventory.owned(session, spec)
    staying = inventory.held(session, spec, ours)
    return _without(ours, staying), staying


def _compare(there: int, expect: int | None) -> None:
    """Raise UserError unless the number of resources is the one that the user has seen."""
    if expect is None:
        hint = f"read the list; if all of it is to be deleted: --yes --expect {there}"
        raise UserError(f"--yes needs --expect N: {output.count(there, 'resource')} would be deleted", hint)
    if there != expect:
        message = f"nothing was deleted: --expect {expect}, but {output.count(there, 'resource')} would be"
        raise UserError(message, f"{abs(there - expect)} {'more' if there > expect else 'fewer'}: --dry-run", 1)


def _refuse_changes(shown: list[inventory.Resource], now: list[inventory.Resource]) -> None:
    """Raise UserError where other resources would be deleted than those that were shown."""
    before, after = ({(one.kind, one.id, one.made) for one in rows} for rows in (shown, now))
    lines = [
        f"{sign} {kind} {id_}"
        for sign, rows in (("+", after - before), ("-", before - after))
        for kind, id_, _ in sorted(rows)
    ]
    if lines:
        message = f"nothing was deleted: the list has changed since it was shown: {', '.join(lines)}"
        raise UserError(message, "repeat the command and read the new list", 1)


def _without(ours: list[inventory.Resource], staying: list[inventory.Resource]) -> list[inventory.Resource]:
    kept = {(one.kind, one.id) for one in staying}
    return [one for one in ours if (one.kind, one.id) not in kept]


def _tell(ours: list[inventory.Resource], left: list[inventory.Resource], deleted: bool, as_json: bool) -> None:
    if as_json:
        rows = {"delete": [vars(one) for one in ours], "keep": [vars(one) for one in left]}
        output.data({**rows, "deleted": deleted})


def _show(
    spec: Spec, account: str, region: str, ours: list[inventory.Resource], left: list[inventory.Resource]
) -> None:
    output.line(f"{spec.name} in account {account}, {region}")
    for one in ours:
        price = "" if one.price == 0 else f"  {words(one.price)}"
        output.line(f"  delete  {one.kind} {one.id} ({one.detail}){price}")
    if not ours:
        output.line("  nothing with our tag")
    for one in left:
        output.line(f"  keep    {one.kind} {one.id} ({one.detail})  {words(one.price)}; {one.why}")
    known, unknown = inventory.total(left)
    if left:
        rest = f", and {output.count(unknown, 'resource')} without a price" if unknown else ""
        output.line(f"  what is kept costs {known * inventory.HOURS_A_MONTH:,.2f} $ a month{rest}")


def _ask(spec: Spec) -> None:
    try:
        answer = output.ask(f"type {spec.name} to delete it")
    except click.Abort:
        answer = ""
    if answer.strip() != spec.name:
        raise UserError("nothing was deleted", "--yes --expect N deletes without confirmation", 2)
