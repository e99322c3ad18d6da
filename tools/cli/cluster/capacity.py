"""Check whether N instances of a type can be started: zone, subnet addresses, quota, reservation, permission."""

from tools.aws import Session
from tools.cluster import capacity, finding
from tools.cluster import spec as specs
from tools.core import output, repo
from tools.facts.instances import instance


def command(
    kind: str,
    count: int,
    zone: str | None,
    vpc: str | None,
    name: str | None,
    spot: bool,
    region: str | None,
    profile: str | None,
    as_json: bool,
) -> int:
    spec = specs.load(repo.project(), name) if name else None
    session = Session(region or (spec.get("AWS_REGION") if spec else None), profile)
    known = (spec.get("CLUSTER_VPC_ID") or spec.get("VPC_ID")) if spec else None
    wanted = capacity.Wanted(instance(kind), count, zone, vpc or known, spot)
    findings = capacity.check(session, wanted)
    answer = capacity.verdict(findings, wanted)
    if as_json:
        output.data({"verdict": finding.as_data([answer])[0], "layers": finding.as_data(findings)})
    else:
        finding.show(findings)
        output.line(f"{answer.state.value}: {answer.summary}", state=answer.state)
    return answer.state.exit_code
