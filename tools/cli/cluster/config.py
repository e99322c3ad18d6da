"""Write a cluster's eksctl.yaml from its facts and the tables; refuse what cannot work.

Without an account it checks types, zones, versions, reservations and prefixes by the tables. With --verify it
also asks AWS: does the zone offer the type, does EKS still offer the version, and these add-on versions.

\b
Examples:
  yard cluster config gpu              write clusters/gpu/eksctl.yaml
  yard cluster config gpu --check      fail when the file is not what the facts make
  yard cluster config gpu --verify     ask AWS about zones, versions and add-ons first

\b
Exit codes: 0 good, 1 the file differs or AWS says no, 2 a fact is wrong, 3 AWS could not be asked.
"""

from __future__ import annotations

import datetime

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import eksctl, offers
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError
from tools.core.repo import shown


@click.command(help=__doc__, short_help="write eksctl.yaml from the facts")
@_options.cluster_and_account
@click.option("--check", is_flag=True, help="Write nothing; fail when the file differs.")
@click.option("--verify", is_flag=True, help="Ask AWS about zones, versions and add-ons.")
@_options.as_json
def command(spec: Spec, session: Session, check: bool, verify: bool, as_json: bool) -> None:
    remark = eksctl.support(spec, datetime.datetime.now(datetime.UTC).date())
    if remark:
        output.note(f"{spec.at('KUBERNETES_VERSION')}: {remark}")
    addons = None
    if verify:
        offers.verify_zones(session, spec)
        offers.verify_version(session, spec)
        addons = offers.addon_versions(session, spec.version)
    text = eksctl.text(spec, addons)
    path = spec.directory / eksctl.FILE
    same = path.is_file() and path.read_text(encoding="utf-8") == text
    if check and not same:
        what = "is not what its facts make" if path.is_file() else "is not there"
        raise UserError(f"{shown(path)} {what}", f"yard cluster config {spec.title}", 1)
    if not same:
        path.write_text(text, encoding="utf-8")
    if as_json:
        output.data({"file": shown(path), "changed": not same, "remark": remark})
    else:
        output.line(f"{shown(path)}: {'as the facts make it' if same else 'written'}")
