"""Delete what a cluster consists of: everything with our tag, in dependency order, and nothing else.

It lists first, with what it costs an hour and what will be left, and asks. Data is left: file systems are
listed with the command that deletes them. A run that was stopped is repeated, and goes on. An adopted cluster
keeps its control plane and nodes.

\b
Examples:
  yard cluster down cpu-demo
  yard cluster down cpu-demo --dry-run
  yard cluster down cpu-demo --yes

\b
Exit codes: 0 gone, 1 something does not go, or with --dry-run: there is something, 3 AWS could not be asked.
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


@click.command(help=__doc__, short_help="delete the cluster and what is tagged its own")
@_options.cluster_and_account
@click.option("--dry-run", is_flag=True, help="List only.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_options.as_json
def command(spec: Spec, session: Session, dry_run: bool, yes: bool, as_json: bool) -> None:
    ours, left = inventory.owned(session, spec), inventory.leftovers(session, spec)
    staying = inventory.held(session, spec, ours)
    ours, left = _without(ours, staying), [*left, *staying]
    account = session.identity()["account"]
    if as_json and not (yes or dry_run):
        raise UserError("--json does not ask", "--yes or --dry-run with it")
    if not as_json:
        _show(spec, account, session.region, ours, left)
    if dry_run or not ours:
        _tell(ours, left, False, as_json)
        raise click.exceptions.Exit(1 if ours or staying else 0)
    held = [one.id for one in left if one.kind == inventory.HOLDS]
    if held:
        message = f"nothing was deleted: the cluster has node groups without our tag: {', '.join(held)}"
        raise UserError(
            message, f"aws eks delete-nodegroup --cluster-name {spec.name} --nodegroup-name NAME", 1
        )
    if not yes:
        _ask(spec)
    for number, one in enumerate(ours, start=1):
        output.note(f"[{number}/{len(ours)}] {one.kind} {one.id}")
        teardown.delete(session, spec, one, output.note)
    again = _without(inventory.owned(session, spec), staying)
    if again:
        names = ", ".join(f"{one.kind} {one.id}" for one in again)
        raise UserError(f"still there: {names}", f"yard cluster down {spec.title}", 1)
    _tell(ours, left, True, as_json)
    if staying:
        names = "; ".join(f"{one.kind} {one.id}: {one.why}" for one in staying)
        raise UserError(f"all but this is gone: {names}", f"yard cluster down {spec.title}", 1)
    if not as_json:
        gone = output.count(len(ours), "resource")
        output.line(f"{spec.name}: {gone} deleted, and none with our tag is left")


def _without(ours: list[inventory.Resource], staying: list[inventory.Resource]) -> list[inventory.Resource]:
    kept = {(one.kind, one.id) for one in staying}
    return [one for one in ours if (one.kind, one.id) not in kept]


def _tell(
    ours: list[inventory.Resource], left: list[inventory.Resource], deleted: bool, as_json: bool
) -> None:
    """Print it as data, where that is asked for."""
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
        raise UserError("nothing was deleted", "--yes does not ask", 2)
