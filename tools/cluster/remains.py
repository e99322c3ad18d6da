"""What stays in the account after `yard cluster down`, with its price: images, logs, checkpoints, addresses.

Nothing here is ever deleted: none of it has a second proof that it is the cluster's (tools/cluster/ownership.py). What
cannot be listed is named as such, because a person may delete a cluster without the right to read all of this.
"""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from tools.aws import AwsError, Session
from tools.cluster.inventory import HOURS_A_MONTH, PRICES, Resource
from tools.cluster.ownership import Row, marks, tags_of
from tools.cluster.spec import Spec
from tools.core import output

UNLISTED = "could not be listed"
GB = 10**9
MOST_OBJECTS = 100_000  # that are counted: S3 lists 1,000 of them a request
LOGS = ("/aws/eks/{}/", "/aws/containerinsights/{}/")
Listing = Callable[[Session, Spec], Iterator[Resource]]


def remains(session: Session, spec: Spec) -> list[Resource]:
    """Return what stays and is not part of the cluster's own inventory."""
    found: list[Resource] = []
    for kind, listing in LISTINGS.items():
        try:
            found += listing(session, spec)
        except AwsError as problem:
            if problem.hides_all:
                raise
            found.append(Resource(kind, UNLISTED, problem.message, None, problem.hint or UNLISTED))
    return found


def _gb(amount: float, rate: str) -> float:
    """The price in USD an hour of bytes that are kept."""
    return amount / GB * float(PRICES[rate]) / HOURS_A_MONTH


def _is_marked(session: Session, spec: Spec, row: Row) -> bool:
    """Whether a thing has our tag, or one that Kubernetes' controllers set for this cluster."""
    tags = tags_of(row)
    theirs = f"kubernetes.io/cluster/{spec.name}" in tags or tags.get("elbv2.k8s.aws/cluster") == spec.name
    return theirs or marks(session.region, spec).items() <= tags.items()


def _repositories(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield ECR's repositories with our tag, and those with the name of one of our images."""
    for row in session.pages("ecr", "describe_repositories", "repositories"):
        name = row["repositoryName"]
        tags = session.call("ecr", "list_tags_for_resource", resourceArn=row["repositoryArn"])
        if not (name.rpartition("/")[2].startswith("trainer-") or _is_marked(session, spec, {"tags": _plain(tags)})):
            continue
        images = list(session.pages("ecr", "describe_images", "imageDetails", repositoryName=name))
        size = sum(image.get("imageSizeInBytes") or 0 for image in images)
        why = f"other clusters may use it: aws ecr delete-repository --force --repository-name {name}"
        detail = f"{len(images)} images, {output.size(size)}"
        yield Resource("image repository", name, detail, _gb(size, "ecr_gb_month"), why)


def _plain(answer: Row) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in answer.get("tags") or []}


def _projects(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield CodeBuild's projects with our tag or name. An idle one costs nothing."""
    names = list(session.pages("codebuild", "list_projects", "projects"))
    for start in range(0, len(names), 100):
        for row in session.call("codebuild", "batch_get_projects", names=names[start : start + 100])["projects"]:
            tags = {"tags": {one["key"]: one["value"] for one in row.get("tags") or []}}
            if row["name"].startswith("trainyard") or _is_marked(session, spec, tags):
                why = f"not created by yard: aws codebuild delete-project --name {row['name']}"
                yield Resource("build project", row["name"], "costs nothing while it builds nothing", 0.0, why)


def _logs(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield the log groups that EKS and Container Insights name after the cluster."""
    for prefix in LOGS:
        where = prefix.format(spec.name)
        for row in session.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=where):
            name, size = row["logGroupName"], row.get("storedBytes") or 0
            days = row.get("retentionInDays")
            kept = f"kept for {output.count(days, 'day')}" if days else "kept for ever"
            why = f"may be needed: aws logs delete-log-group --log-group-name {name}"
            yield Resource("log group", name, f"{output.size(size)}, {kept}", _gb(size, "logs_gb_month"), why)


def _runs(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield the prefix of the team's runs with the size of what is below it, of which MOST_OBJECTS are counted."""
    bucket, prefix = spec.get("S3_BUCKET"), spec.get("S3_RUNS_PREFIX")
    if not bucket or not prefix:
        return
    rows = session.pages("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix)
    sizes = [int(row["Size"]) for row in itertools.islice(rows, MOST_OBJECTS)]
    if sizes:
        more = next(rows, None) is not None
        why = f"holds checkpoints and models: aws s3 rm --recursive s3://{bucket}/{prefix}"
        number = f"{'more than ' if more else ''}{len(sizes):,} objects"
        detail = f"{number}, {output.size(sum(sizes))}, without earlier versions"
        price = None if more else _gb(sum(sizes), "s3_gb_month")
        yield Resource("runs", f"s3://{bucket}/{prefix}", detail, price, why)


def _balancers(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield load balancers that a controller in the cluster has created."""
    rows = {row["LoadBalancerArn"]: row for row in session.pages("elbv2", "describe_load_balancers", "LoadBalancers")}
    arns = sorted(rows)
    for start in range(0, len(arns), 20):
        asked = session.call("elbv2", "describe_tags", ResourceArns=arns[start : start + 20])
        for found in asked["TagDescriptions"]:
            arn = found["ResourceArn"]
            if _is_marked(session, spec, found):
                remove = f"aws elbv2 delete-load-balancer --load-balancer-arn {arn}"
                detail = f"{rows[arn].get('Type')}, without its traffic, since {_day(rows[arn].get('CreatedTime'))}"
                why, price = f"delete its Service or Ingress, or {remove}", PRICES["load_balancer_hour"]
                yield Resource("load balancer", rows[arn]["LoadBalancerName"], detail, price, why)


def _classic(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield classic load balancers, which a Service gets without a controller of its own."""
    rows = session.pages("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    names = sorted(row["LoadBalancerName"] for row in rows)
    for start in range(0, len(names), 20):
        asked = session.call("elb", "describe_tags", LoadBalancerNames=names[start : start + 20])
        for found in asked["TagDescriptions"]:
            if _is_marked(session, spec, found):
                name = found["LoadBalancerName"]
                why = f"delete its Service, or aws elb delete-load-balancer --load-balancer-name {name}"
                yield Resource("classic load balancer", name, "without its traffic", None, why)


def _addresses(session: Session, spec: Spec) -> Iterator[Resource]:
    for row in session.ec2("Addresses", {}):
        if _is_marked(session, spec, row):
            used = "in use" if row.get("AssociationId") else "not in use"
            why = f"others may know it: aws ec2 release-address --allocation-id {row['AllocationId']}"
            yield Resource("elastic IP", str(row.get("PublicIp")), used, PRICES["public_ipv4_hour"], why)


def _day(moment: Any) -> str:
    return moment.astimezone(UTC).date().isoformat() if isinstance(moment, datetime) else "unknown"


LISTINGS: dict[str, Listing] = {
    "image repository": _repositories,
    "build project": _projects,
    "log group": _logs,
    "runs": _runs,
    "load balancer": _balancers,
    "classic load balancer": _classic,
    "elastic IP": _addresses,
}
