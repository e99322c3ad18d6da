"""What a cluster consists of in its account, by our tag, in the order in which it can be deleted.

Ours is what carries the tag `trainyard/cluster` with the cluster's name: eksctl puts it on its stacks and
groups, CloudFormation on what it makes. What belongs to the cluster without it is a leftover: it
is listed with its price, and never deleted from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.aws.policies import OWNER_TAG, TEAM_TAG
from tools.aws.session import AwsError, Session
from tools.cluster.spec import Spec
from tools.facts.eks import VERSIONS
from tools.facts.instances import INSTANCES

SOURCE = Path(__file__).resolve().parents[1] / "facts" / "aws_prices.yaml"
PRICES: dict[str, Any] = YAML(typ="safe", pure=True).load(SOURCE)
INSTANCE_PRICES = "us-east-1, on demand, 2026-07-20"
HOURS_A_MONTH = 730
ROLE_LENGTH, DIGEST_LENGTH = 64, 9  # of an IAM role's name; of the digest and its hyphen
STACK_TAG = "aws:cloudformation:stack-name"
HOLDS = "foreign node group"  # what keeps a cluster from being deleted
LIVE = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Resource:
    """One thing in the account. `price` is USD an hour; None is unknown. `why` is why it is not deleted."""

    kind: str
    id: str
    detail: str
    price: float | None = 0.0
    why: str | None = None


def owned(session: Session, spec: Spec) -> list[Resource]:
    """Return what is ours, in the order of deletion. Raises AwsError where AWS does not show all of it."""
    ours = {OWNER_TAG: spec.name}
    own = (
        _node_groups(session, spec, ours),
        _instances(session, ours),
        _clusters(session, spec, ours),
    )
    # With a cluster of our own these go by themselves; somebody else's keeps its nodes.
    added = (_pod_identities(session, spec, ours), _access_entries(session, spec, ours))
    listings = (
        *(added if spec.adopted else own),
        _stacks(session, spec, ours),
        _launch_templates(session, ours),
        _interfaces(session, ours),
        _volumes(session, ours),
        _groups(session, ours),
        _roles(session, spec, ours),
        _providers(session, ours),
    )
    return [one for listing in listings for one in listing]


def leftovers(session: Session, spec: Spec) -> list[Resource]:
    """Return what belongs to the cluster's work and is not ours to delete: data, and what others made.

    Also what has our names and not our tag: somebody has taken it off, and means something by it.
    """
    found = [*_file_systems(session, spec), *_foreign_groups(session, spec), *_without_tag(session, spec)]
    mark = {f"kubernetes.io/cluster/{spec.name}": "owned"}
    why = "made by a controller in the cluster: it deletes it with its object"
    for one in (*_volumes(session, mark), *_interfaces(session, mark)):
        found.append(Resource(one.kind, one.id, one.detail, one.price, why))
    return found


def held(session: Session, spec: Spec, ours: list[Resource]) -> list[Resource]:
    """Return those of `ours` that cannot go while something stays, each with why: nothing is begun with them.

    A kept file system holds its network's stack and its security groups; a cluster without our tag would go
    with its stack. Raises AwsError.
    """
    reasons: dict[str, str] = {}
    for row in _file_system_rows(session, spec):
        for name in _holders(session, row):
            reasons[name] = f"{row['FileSystemId']} is in it: delete that first, then yard cluster down again"
    cluster = None if spec.adopted else describe_cluster(session, spec)
    if cluster is not None and OWNER_TAG not in (cluster.get("tags") or {}):
        reasons[f"eksctl-{spec.name}-cluster"] = "the cluster would go with it, and lacks our tag"
    return [replace(one, why=reasons[one.id]) for one in ours if one.id in reasons]


def _holders(session: Session, row: dict[str, Any]) -> Iterator[str]:
    """Yield the stacks of a file system's network, and its security groups with theirs."""
    if row.get("VpcId"):
        filters = [{"Name": "vpc-id", "Values": [row["VpcId"]]}]
        for vpc in session.pages("ec2", "describe_vpcs", "Vpcs", Filters=filters):
            yield _tags(vpc).get(STACK_TAG, "")
    filters = [{"Name": "network-interface-id", "Values": row.get("NetworkInterfaceIds") or ["none"]}]
    rows = session.pages("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    ids = sorted({group["GroupId"] for one in rows for group in one.get("Groups") or []})
    filters = [{"Name": "group-id", "Values": ids or ["none"]}]
    for group in session.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters):
        yield group["GroupId"]
        yield _tags(group).get(STACK_TAG, "")


def gateways(session: Session, spec: Spec) -> list[Resource]:
    """Return the NAT gateways with our tag, which go with their stack and cost until then."""
    filters = [_tag_filter({OWNER_TAG: spec.name}), {"Name": "state", "Values": ["available", "pending"]}]
    rows = session.pages("ec2", "describe_nat_gateways", "NatGateways", Filters=filters)
    return [
        Resource("NAT gateway", row["NatGatewayId"], row.get("VpcId", ""), PRICES["nat_gateway_hour"])
        for row in rows
    ]


def total(resources: list[Resource]) -> tuple[float, int]:
    """Return USD an hour of what has a price, and how many resources have none."""
    known = sum(one.price for one in resources if one.price is not None)
    return known, sum(one.price is None for one in resources)


def instance_price(kind: str, lifecycle: str = "") -> float | None:
    """Return the on-demand price of a type in USD an hour, None where it is unknown or bought otherwise."""
    found = INSTANCES.get(kind)
    return found.price_usd_per_hour if found and lifecycle not in ("spot", "capacity-block") else None


def role_prefix(cluster: str) -> str:
    """Return what the name of each role begins with that `yard cluster identity` makes for a cluster.

    The name of a long one is cut, and ends in a digest: the tag tells whose it is.
    """
    return f"trainyard-{cluster}-"[: ROLE_LENGTH - DIGEST_LENGTH]


def _tag_filter(tags: dict[str, str]) -> dict[str, Any]:
    ((key, value),) = tags.items()
    return {"Name": f"tag:{key}", "Values": [value]}


def _tags(row: dict[str, Any]) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in row.get("Tags") or row.get("TagSet") or []}


def describe_cluster(session: Session, spec: Spec) -> dict[str, Any] | None:
    """Return the EKS cluster as EKS describes it, None where there is none. Raises AwsError."""
    try:
        found: dict[str, Any] = session.call("eks", "describe_cluster", name=spec.name)["cluster"]
    except AwsError as problem:
        if problem.kind == "missing":
            return None
        raise
    return found


def _node_groups(session: Session, spec: Spec, ours: dict[str, str]) -> Iterator[Resource]:
    if describe_cluster(session, spec) is None:
        return
    for name in session.pages("eks", "list_nodegroups", "nodegroups", clusterName=spec.name):
        row = session.call("eks", "describe_nodegroup", clusterName=spec.name, nodegroupName=name)[
            "nodegroup"
        ]
        if ours.items() <= (row.get("tags") or {}).items():
            detail = f"{row.get('status')}, {(row.get('scalingConfig') or {}).get('desiredSize')} nodes"
            yield Resource("node group", name, detail)


def _foreign_groups(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield node groups in our cluster that are not ours: EKS keeps a cluster that has one."""
    if spec.adopted:
        return
    row = describe_cluster(session, spec)
    if row is None or (row.get("tags") or {}).get(OWNER_TAG) != spec.name:
        return
    ours = {one.id for one in _node_groups(session, spec, {OWNER_TAG: spec.name})}
    for name in session.pages("eks", "list_nodegroups", "nodegroups", clusterName=spec.name):
        if name not in ours:
            yield Resource(
                HOLDS, name, "without our tag", None, "somebody else's, and the cluster stays with it"
            )


def _without_tag(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield the cluster, its stacks and its roles, by their names, where they are without our tag."""
    why = "lacks our tag: put it back, or delete it by hand"
    cluster = None if spec.adopted else describe_cluster(session, spec)
    if cluster is not None and OWNER_TAG not in (cluster.get("tags") or {}):
        price = _control_plane(str(cluster.get("version")))
        yield Resource("cluster", spec.name, str(cluster.get("status")), price, why)
    starts = (f"eksctl-{spec.name}-cluster", f"eksctl-{spec.name}-nodegroup-", f"trainyard-{spec.name}")
    for row in session.pages("cloudformation", "describe_stacks", "Stacks"):
        name, gone = row["StackName"], row["StackStatus"] == "DELETE_COMPLETE"
        own = name in (starts[0], starts[2]) or name.startswith(starts[1])
        if own and not gone and OWNER_TAG not in _tags(row):
            yield Resource("stack", name, row["StackStatus"], 0.0, why)
    for row in session.pages("iam", "list_roles", "Roles"):
        if row["RoleName"].startswith(role_prefix(spec.name)):
            tags = _tags(session.call("iam", "list_role_tags", RoleName=row["RoleName"]))
            if OWNER_TAG not in tags:
                yield Resource("role", row["RoleName"], "of a service account", 0.0, why)


def _clusters(session: Session, spec: Spec, ours: dict[str, str]) -> Iterator[Resource]:
    row = describe_cluster(session, spec)
    if row is not None and ours.items() <= (row.get("tags") or {}).items():
        detail = f"{row.get('status')}, Kubernetes {row.get('version')}"
        yield Resource("cluster", spec.name, detail, _control_plane(str(row.get("version"))))


def _control_plane(version: str) -> float | None:
    """Return the price of a control plane: extended support costs more, an unknown version has none."""
    support = VERSIONS.get(version)
    if support is None:
        return None
    late = support.standard_until < datetime.now(UTC).date()
    return float(PRICES["eks_cluster_hour"]["extended" if late else "standard"])


def _instances(session: Session, ours: dict[str, str]) -> Iterator[Resource]:
    filters = [_tag_filter(ours), {"Name": "instance-state-name", "Values": list(LIVE)}]
    for reservation in session.pages("ec2", "describe_instances", "Reservations", Filters=filters):
        for row in reservation["Instances"]:
            kind, lifecycle = row["InstanceType"], row.get("InstanceLifecycle", "")
            state = row["State"]["Name"]
            price = instance_price(kind, lifecycle) if state in ("pending", "running") else 0.0
            yield Resource(
                "instance", row["InstanceId"], f"{kind} {lifecycle} {state}".replace("  ", " "), price
            )


def _stacks(session: Session, spec: Spec, ours: dict[str, str]) -> Iterator[Resource]:
    """Yield our stacks: those of node groups and of pods' roles before the cluster's own."""
    rows = [
        row
        for row in session.pages("cloudformation", "describe_stacks", "Stacks")
        if ours.items() <= _tags(row).items() and row["StackStatus"] != "DELETE_COMPLETE"
    ]
    last = f"eksctl-{spec.name}-cluster"
    for row in sorted(rows, key=lambda row: (row["StackName"] == last, row["StackName"])):
        yield Resource("stack", row["StackName"], row["StackStatus"])


def _launch_templates(session: Session, ours: dict[str, str]) -> Iterator[Resource]:
    rows = session.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=[_tag_filter(ours)])
    for row in rows:
        if STACK_TAG not in _tags(row):
            yield Resource("launch template", row["LaunchTemplateId"], row["LaunchTemplateName"])


def _interfaces(session: Session, tags: dict[str, str]) -> Iterator[Resource]:
    filters = [_tag_filter(tags), {"Name": "status", "Values": ["available"]}]
    for row in session.pages("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=filters):
        if STACK_TAG not in _tags(row):
            yield Resource("network interface", row["NetworkInterfaceId"], "attached to nothing")


def _volumes(session: Session, tags: dict[str, str]) -> Iterator[Resource]:
    filters = [_tag_filter(tags), {"Name": "status", "Values": ["available"]}]
    for row in session.pages("ec2", "describe_volumes", "Volumes", Filters=filters):
        if STACK_TAG not in _tags(row):
            yield Resource("volume", row["VolumeId"], f"{row['Size']} GiB, attached to nothing", None)


def _groups(session: Session, ours: dict[str, str]) -> Iterator[Resource]:
    for row in session.pages(
        "ec2", "describe_security_groups", "SecurityGroups", Filters=[_tag_filter(ours)]
    ):
        if STACK_TAG not in _tags(row):
            yield Resource("security group", row["GroupId"], row["GroupName"])


def _roles(session: Session, spec: Spec, ours: dict[str, str]) -> Iterator[Resource]:
    """Yield the roles that `yard cluster identity` made; IAM lists roles without their tags."""
    for row in session.pages("iam", "list_roles", "Roles"):
        name = row["RoleName"]
        if not name.startswith(role_prefix(spec.name)):
            continue
        tags = session.call("iam", "list_role_tags", RoleName=name)
        if ours.items() <= _tags(tags).items():
            yield Resource("role", name, "of a service account")


def _providers(session: Session, ours: dict[str, str]) -> Iterator[Resource]:
    """Yield the identity providers that `yard cluster identity --irsa` made."""
    for row in session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]:
        arn = row["Arn"]
        tags = session.call("iam", "list_open_id_connect_provider_tags", OpenIDConnectProviderArn=arn)
        if ours.items() <= _tags(tags).items():
            yield Resource("identity provider", arn, "of a cluster's service accounts")


def _pod_identities(session: Session, spec: Spec, ours: dict[str, str]) -> Iterator[Resource]:
    if describe_cluster(session, spec) is None:
        return
    where = {"clusterName": spec.name}
    for row in session.pages("eks", "list_pod_identity_associations", "associations", **where):
        number = row["associationId"]
        found = session.call("eks", "describe_pod_identity_association", **where, associationId=number)
        if ours.items() <= (found["association"].get("tags") or {}).items():
            yield Resource("pod identity", number, f"{row['namespace']}/{row['serviceAccount']}")


def _access_entries(session: Session, spec: Spec, ours: dict[str, str]) -> Iterator[Resource]:
    if describe_cluster(session, spec) is None:
        return
    where = {"clusterName": spec.name}
    for arn in session.pages("eks", "list_access_entries", "accessEntries", **where):
        found = session.call("eks", "describe_access_entry", **where, principalArn=arn)["accessEntry"]
        if ours.items() <= (found.get("tags") or {}).items():
            yield Resource("access entry", arn, "of a role or user")


def _file_systems(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield Lustre file systems of the cluster's team, or tagged ours: they hold data."""
    for row in _file_system_rows(session, spec):
        throughput = (row.get("LustreConfiguration") or {}).get("PerUnitStorageThroughput")
        rate = PRICES["lustre_gib_month"].get(throughput)
        price = None if rate is None else row["StorageCapacity"] * rate / HOURS_A_MONTH
        why = f"holds data: aws fsx delete-file-system --file-system-id {row['FileSystemId']}"
        yield Resource(
            "file system", row["FileSystemId"], f"Lustre, {row['StorageCapacity']} GiB", price, why
        )


def _file_system_rows(session: Session, spec: Spec) -> Iterator[dict[str, Any]]:
    for row in session.pages("fsx", "describe_file_systems", "FileSystems"):
        tags = _tags(row)
        ours = tags.get(OWNER_TAG) == spec.name
        named = row["FileSystemId"] == spec.get("FSX_FILE_SYSTEM_ID")
        if ours or named or tags.get(TEAM_TAG) == spec.get("TEAM_NAMESPACE"):
            yield row
