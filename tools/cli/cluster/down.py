"""Delete a cluster: everything with the tag trainyard/cluster=NAME, in dependency order, and nothing else.

The resources to delete and to keep are listed with their prices before you are asked to confirm. File systems
are kept and listed with the command that deletes them. Repeat an interrupted run to continue it. An adopted
cluster keeps its control plane and nodes.

\b
Examples:
  yard cluster down cpu-demo
  yard cluster down cpu-demo --dry-run
  yard cluster down cpu-demo --yes

\b
Exit codes: 0 everything is deleted, 1 something is not deleted, or with --dry-run: something would be, 2 not
confirmed, 3 AWS did not answer or denied access.
"""

from __future__ import annotations

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cli.cluster.cost import words
from tools.cluster import inventory, teardown
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--dry-run", is_flag=True, help="List the resources without deleting them.")
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@_options.as_json
def command(spec: Spec, session: Session, dry_run: bool, yes: bool, as_json: bool) -> None:
    ours, left = inventory.owned(session, spec), inventory.leftovers(session, spec)
    staying = inventory.held(session, spec, ours)
    ours, left = _without(ours, staying), [*left, *staying]
    account = session.identity()["account"]
    if as_json and not (yes or dry_run):
        raise UserError("--json cannot ask for confirmation", "add --yes or --dry-run")
    if not as_json:
        _show(spec, account, session.region, ours, left)
    if dry_run or not ours:
        _tell(ours, left, False, as_json)
        raise click.exceptions.Exit(1 if ours or staying else 0)
    held = [one.id for one in left if one.kind == inventory.HOLDS]
    if held:
        message = f"nothing was deleted: the cluster has node groups without our tag: {', '.join(held)}"
        hint = f"aws eks delete-nodegroup --cluster-name {spec.name} --nodegroup-name NAME"
        raise UserError(message, hint, 1)
    if not yes:
        _ask(spec)
    for number, one in enumerate(ours, start=1):
        output.note(f"[{number}/{len(ours)}] {one.kind} {one.id}")
        teardown.delete(session, spec, one, output.note)
    again = _without(inventory.owned(session, spec), staying)
    if again:
        names = ", ".join(f"{one.kind} {one.id}" for one in again)
        raise UserError(f"not deleted: {names}", f"yard cluster down {spec.title}", 1)
    _tell(ours, left, True, as_json)
    if staying:
        names = "; ".join(f"{one.kind} {one.id}: {one.why}" for one in staying)
        raise UserError(f"everything else is deleted: {names}", f"yard cluster down {spec.title}", 1)
    if not as_json:
        gone = output.count(len(ours), "resource")
        output.line(f"{spec.name}: {gone} deleted; nothing with our tag is left")


def _without(ours: list[inventory.Resource], staying: list[inventory.Resource]) -> list[inventory.Resource]:
    kept = {(one.kind, one.id) for one in staying}
    return [one for one in ours if (one.kind, one.id) not in kept]


def _tell(
    ours: list[inventory.Resource], left: list[inventory.Resource], deleted: bool, as_json: bool
) -> None:
    if as_json:
        rows = {"delete": [vars(one) for one in ours], "keep": [vars(one) for one in left]}
        output.data({**rows, "deleted": deleted})


def _show(
    spec: Spec,
    account: str,
    region: str,
    ours: list[inventory.Resource],
    left: list[inventory.Resource],
) -> None:
    output.line(f"{spec.name} in account {account}, {region}")
    for one in ours:
        price = "" if one.price == 0 else f"  {words(one.price)}"
        output.line(f"  delete  {one.kind} {one.id} ({one.detail}){price}")
    if not ours:
        output.line("  nothing with our tag")
    for one in left:
        output.line(f"  keep    {one.kind} {one.id} ({one.detail})  {words(one.price)}; {one.why}")


def _ask(spec: Spec) -> None:
    try:
        answer = click.prompt(f"type {spec.name} to delete it", err=True, default="", show_default=False)
    except click.Abort:
        answer = ""
    if answer.strip() != spec.name:
        raise UserError("nothing was deleted", "--yes deletes without confirmation", 2)
