"""Check whether N instances of a type can be started: zone, subnet addresses, quota, reservation, permission.

\b
Examples:
  yard cluster capacity p5.48xlarge 4 --region us-west-2
  yard cluster capacity g5.8xlarge 8 --cluster gpu --zone us-west-2a
  yard cluster capacity g5.8xlarge 8 --spot

\b
Exit codes: 0 reserved and free, 1 a check failed, 2 unknown type or cluster, 3 unknown: no known obstacle,
or AWS did not answer or denied access.
"""

import click

from tools.aws.session import Session
from tools.cli.cluster import _options
from tools.cluster import capacity, finding
from tools.cluster import spec as specs
from tools.core import output, repo
from tools.facts.instances import instance


@click.command(help=__doc__)
@click.argument("kind", metavar="TYPE")
@click.argument("count", metavar="N", type=click.IntRange(1, 10_000))
@click.option("--zone", metavar="NAME", help="Only in this zone.")
@click.option("--vpc", metavar="ID", help="Check the subnets of this VPC.")
@click.option("--cluster", "name", metavar="NAME", help="Use region and VPC of a directory under clusters/.")
@click.option("--spot", is_flag=True, help="Check spot instances.")
@click.option("--region", metavar="NAME", help="The AWS region.")
@click.option("--profile", metavar="NAME", help="The profile in ~/.aws.")
@_options.as_json
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
) -> None:
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
        output.line(f"{answer.state.value}: {answer.summary}")
    raise click.exceptions.Exit(answer.state.exit_code)
