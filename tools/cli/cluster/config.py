"""Generate eksctl.yaml from the facts of the cluster, and refuse facts that cannot work."""

import datetime

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, eksctl, offers
from tools.core import UserError, output, repo


@_options.cluster_and_account
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
        raise UserError(f"{repo.shown(path)} is {what}", f"yard cluster config {spec.title}", 1)
    if not same:
        path.write_text(text, encoding="utf-8")
    line = f"{repo.shown(path)}: {'up to date' if same else 'written'}"
    output.answer({"file": repo.shown(path), "changed": not same, "remark": remark}, [line], as_json)
