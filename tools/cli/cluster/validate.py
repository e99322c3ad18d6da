"""Check whether a cluster has everything that a job needs: of CLUSTER, or of the current context."""

from pathlib import Path

from tools.aws import Session
from tools.cli.cluster import _options
from tools.cluster import Spec, bucket, finding, snapshot, validate
from tools.cluster.finding import Finding
from tools.core import UserError, output
from tools.kube import Kubectl


@_options.cluster_and_context
def command(
    spec: Spec, session: Session, kubectl: Kubectl, fix: bool, recorded: Path | None, keep: Path | None, as_json: bool
) -> int:
    if recorded and fix:
        raise UserError("a saved snapshot cannot be fixed", "leave out --from or --fix")
    found = snapshot.load(recorded) if recorded else snapshot.collect(kubectl, spec.namespace)
    if keep:
        found.save(keep)
    findings = validate.check(spec, found) + ([] if recorded else validate.ask(kubectl, spec, found))
    if fix:
        findings = _fix(spec, kubectl, findings)
    findings += [] if recorded else bucket.check(session, spec)
    return finding.report(findings, as_json).exit_code


def _fix(spec: Spec, kubectl: Kubectl, findings: list[Finding]) -> list[Finding]:
    changes = validate.fixes(spec, findings)
    if not changes:
        output.note("nothing to fix from here")
        return findings
    for change in changes:
        reason = validate.apply(kubectl, change)
        output.note(f"NOT fixed: {change.line}: {reason}" if reason else f"changed: {change.line}")
    seen = snapshot.collect(kubectl, spec.namespace)
    after = validate.check(spec, seen) + validate.ask(kubectl, spec, seen)
    for change in validate.fixes(spec, after):
        output.note(f"not in effect: {change.line}")
    return after
