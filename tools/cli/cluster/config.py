"""Generate eksctl.yaml from the facts of the cluster, and refuse facts that cannot work.

Types, zones, versions, reservations and prefixes are checked offline. With --verify, AWS is asked which types
the zones offer, and which Kubernetes and add-on versions EKS offers.

\b
Examples:
  yard cluster config gpu              write clusters/gpu/eksctl.yaml
  yard cluster config gpu --check      fail if eksctl.yaml is out of date
  yard cluster config gpu --verify     check zones, versions and add-ons with AWS first

\b
Exit codes: 0 success, 1 the file is out of date or AWS does not offer something, 2 a fact is wrong,
3 AWS did not answer or denied access.
"""

import datetime

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import eksctl, offers
from tools.cluster.spec import Spec
from tools.core import output
from tools.core.errors import UserError
from tools.core.repo import shown


@click.command(help=__doc__)
@_options.cluster_and_account
@click.option("--check", is_flag=True, help="Write nothing. Fail if the file is out of date.")
@click.option("--verify", is_flag=True, help="Check zones, versions and add-ons with AWS.")
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
        what = "out of date" if path.is_file() else "missing"
        raise UserError(f"{shown(path)} is {what}", f"yard cluster config {spec.title}", 1)
    if not same:
        path.write_text(text, encoding="utf-8")
    if as_json:
        output.data({"file": shown(path), "changed": not same, "remark": remark})
    else:
        output.line(f"{shown(path)}: {'up to date' if same else 'written'}")
