"""What a cluster consists of in its AWS account, by tag, in the order in which it can be deleted.

Ours is what has the tag `trainyard/cluster` with the cluster's name: eksctl sets it on its stacks and groups,
and CloudFormation on what they create. What belongs to the cluster without the tag is a leftover: it is
listed with its price and never deleted from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
HOLDS = "foreign node group"  # EKS does not delete a cluster that has one
LIVE = ("pending", "running", "stopping", "stopped")

Tags = dict[str, str]
Row = dict[str, Any]
# Kinds of EC2 resources: key of the listing, key of the id, what is shown of a row, price, and whether a
# resource in use is left out.
EC2: dict[str, tuple[str, str, Callable[[Row], str], float | None, bool]] = {
    "launch template": (
        "LaunchTemplates",
        "LaunchTemplateId",
        lambda row: row["LaunchTemplateName"],
        0.0,
        False,
    ),
    "network interface": ("NetworkInterfaces", "NetworkInterfaceId", lambda row: "not attached", 0.0, True),
    "volume": ("Volumes", "VolumeId", lambda row: f"{row['Size']} GiB, not attached", None, True),
    "security group": ("SecurityGroups", "GroupId", lambda row: row["GroupName"], 0.0, False),
}


@dataclass(frozen=True)
class Resource:
    """A resource in the account. `price` is in USD an hour, None if unknown. `why` is why it is kept."""

    kind: str
    id: str
    detail: str
    price: float | None = 0.0
    why: str | None = None


def owned(session: Session, spec: Spec) -> list[Resource]:
    """Return our resources in the order of deletion. Raises AwsError if AWS does not list all of them."""
    ours = {OWNER_TAG: spec.name}
    # With our own cluster, pod identities and access entries are deleted by EKS. An adopted one keeps its
    # nodes.
    first = (
        (_pod_identities(session, spec, ours), _access_entries(session, spec, ours))
        if spec.adopted
        else (_node_groups(session, spec, ours), _instances(session, ours), _clusters(session, spec, ours))
    )
    listings = (
        *first,
        _stacks(session, spec, ours),
        _ec2(session, "launch template", ours),
        _ec2(session, "network interface", ours),
        _ec2(session, "volume", ours),
        _ec2(session, "security group", ours),
        _roles(session, spec, ours),
        _providers(session, ours),
    )
    return [one for listing in listings for one in listing]


def leftovers(session: Session, spec: Spec) -> list[Resource]:
    """Return what belongs to the cluster and is not ours to delete: data, and what others created.

    That includes resources with our names and without our tag, because someone removed the tag on purpose.
    """
    found = [*_file_systems(session, spec), *_foreign_groups(session, spec), *_without_tag(session, spec)]
    mark = {f"kubernetes.io/cluster/{spec.name}": "owned"}
    why = "created by a controller in the cluster, which deletes it with its object"
    for kind in ("volume", "network interface"):
        found += [replace(one, why=why) for one in _ec2(session, kind, mark)]
    return found


def held(session: Session, spec: Spec, ours: list[Resource]) -> list[Resource]:
    """Return those of `ours` that cannot be deleted while something else is kept, each with the reason.

    A kept file system holds the stack of its network and its security groups. A cluster without our tag would
    be deleted with its stack. Raises AwsError.
    """
    reasons: dict[str, str] = {}
    for row in _file_system_rows(session, spec):
        why = f"used by {row['FileSystemId']}: delete that first, then run yard cluster down again"
        reasons |= dict.fromkeys(_holders(session, row), why)
    cluster = None if spec.adopted else describe_cluster(session, spec)
    if cluster is not None and OWNER_TAG not in (cluster.get("tags") or {}):
        reasons[f"eksctl-{spec.name}-cluster"] = "the cluster has lost our tag and would be deleted with it"
    return [replace(one, why=reasons[one.id]) for one in ours if one.id in reasons]


def _holders(session: Session, row: Row) -> Iterator[str]:
    """Yield the stack of a file system's network, and its security groups with their stacks."""
    if row.get("VpcId"):
        for vpc in session.ec2("Vpcs", {"vpc-id": [row["VpcId"]]}):
            yield _tags(vpc).get(STACK_TAG, "")
    filters = {"network-interface-id": row.get("NetworkInterfaceIds") or ["none"]}
    rows = session.ec2("NetworkInterfaces", filters)
    ids = sorted({group["GroupId"] for one in rows for group in one.get("Groups") or []})
    for group in session.ec2("SecurityGroups", {"group-id": ids or ["none"]}):
        yield group["GroupId"]
        yield _tags(group).get(STACK_TAG, "")


def gateways(session: Session, spec: Spec) -> list[Resource]:
    """Return the NAT gateways with our tag. They are deleted with their stack and have a price until then."""
    filters = {**_tagged({OWNER_TAG: spec.name}), "state": ["available", "pending"]}
    return [
        Resource("NAT gateway", row["NatGatewayId"], row.get("VpcId", ""), PRICES["nat_gateway_hour"])
        for row in session.ec2("NatGateways", filters)
    ]


def total(resources: list[Resource]) -> tuple[float, int]:
    """Return the sum of the known prices in USD an hour, and the number of resources without a price."""
    known = sum(one.price for one in resources if one.price is not None)
    return known, sum(one.price is None for one in resources)


def instance_price(kind: str, lifecycle: str = "") -> float | None:
    """Return the on-demand price of a type in USD an hour, or None if it is unknown or bought otherwise."""
    found = INSTANCES.get(kind)
    return found.price_usd_per_hour if found and lifecycle not in ("spot", "capacity-block") else None


def role_prefix(cluster: str) -> str:
    """Return the prefix of the roles that `yard cluster identity` creates for a cluster.

    A long name is shortened, so other clusters can share the prefix; the tag names the cluster.
    """
    return f"trainyard-{cluster}-"[: ROLE_LENGTH - DIGEST_LENGTH]


def describe_cluster(session: Session, spec: Spec) -> Row | None:
    """Return the cluster as EKS describes it, or None where it does not exist. Raises AwsError."""
    found = session.find("eks", "describe_cluster", name=spec.name)
    return found["cluster"] if found else None


def need_cluster(session: Session, spec: Spec) -> Row:
    """Return the cluster as EKS describes it. Raises AwsError, also where it does not exist."""
    found = describe_cluster(session, spec)
    if found is None:
        raise AwsError("missing", f"the EKS cluster {spec.name} does not exist in {session.region}", None)
    return found


def _tags(row: Row) -> Tags:
    return {one["Key"]: one["Value"] for one in row.get("Tags") or row.get("TagSet") or []}


def _tagged(tags: Tags) -> dict[str, list[str]]:
    return {f"tag:{name}": [value] for name, value in tags.items()}


def _ec2(session: Session, kind: str, tags: Tags) -> Iterator[Resource]:
    """Yield EC2's resources of a kind with a tag, except those that belong to a stack."""
    key, id_, detail, price, only_unused = EC2[kind]
    filters = _tagged(tags) | ({"status": ["available"]} if only_unused else {})
    for row in session.ec2(key, filters):
        if STACK_TAG not in _tags(row):
            yield Resource(kind, row[id_], detail(row), price)


def _members(
    session: Session, spec: Spec, listing: tuple[str, str], operation: str, parameter: str, key: str
) -> Iterator[tuple[str, Row, Row]]:
    """Yield what EKS lists for the cluster: the id, the listed row, and the answer of `operation`."""
    if describe_cluster(session, spec) is None:
        return
    where = {"clusterName": spec.name}
    for row in session.pages("eks", *listing, **where):
        id_ = row if isinstance(row, str) else row[parameter]
        yield id_, row, session.call("eks", operation, **where, **{parameter: id_})[key]


def _is_ours(row: Row, ours: Tags) -> bool:
    return ours.items() <= (row.get("tags") or {}).items()


def _group_rows(session: Session, spec: Spec) -> Iterator[tuple[str, Row, Row]]:
    listing = ("list_nodegroups", "nodegroups")
    return _members(session, spec, listing, "describe_nodegroup", "nodegroupName", "nodegroup")


def _node_groups(session: Session, spec: Spec, ours: Tags) -> Iterator[Resource]:
    for name, _, row in _group_rows(session, spec):
        if _is_ours(row, ours):
            detail = f"{row.get('status')}, {(row.get('scalingConfig') or {}).get('desiredSize')} nodes"
            yield Resource("node group", name, detail)


def _pod_identities(session: Session, spec: Spec, ours: Tags) -> Iterator[Resource]:
    listing = ("list_pod_identity_associations", "associations")
    operation = "describe_pod_identity_association"
    for id_, listed, row in _members(session, spec, listing, operation, "associationId", "association"):
        if _is_ours(row, ours):
            yield Resource("pod identity", id_, f"{listed['namespace']}/{listed['serviceAccount']}")


def _access_entries(session: Session, spec: Spec, ours: Tags) -> Iterator[Resource]:
    listing = ("list_access_entries", "accessEntries")
    operation = "describe_access_entry"
    for arn, _, row in _members(session, spec, listing, operation, "principalArn", "accessEntry"):
        if _is_ours(row, ours):
            yield Resource("access entry", arn, "of a role or user")


def _foreign_groups(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield node groups of others in our cluster: EKS does not delete a cluster that has one."""
    cluster = None if spec.adopted else describe_cluster(session, spec)
    ours = {OWNER_TAG: spec.name}
    for name, _, row in _group_rows(session, spec) if cluster and _is_ours(cluster, ours) else ():
        if not _is_ours(row, ours):
            why = "not created by trainyard; the cluster cannot be deleted while it exists"
            yield Resource(HOLDS, name, "without our tag", None, why)


def _without_tag(session: Session, spec: Spec) -> Iterator[Resource]:
    """Yield the cluster, its stacks and its roles, found by name, where they have no tag of ours."""
    why = "has lost our tag: set it again, or delete the resource by hand"
    cluster = None if spec.adopted else describe_cluster(session, spec)
    if cluster is not None and OWNER_TAG not in (cluster.get("tags") or {}):
        price = _control_plane(str(cluster.get("version")))
        yield Resource("cluster", spec.name, str(cluster.get("status")), price, why)
    names = re.compile(rf"(eksctl-{spec.name}-(cluster|nodegroup-.*)|trainyard-{spec.name})")
    for row in session.pages("cloudformation", "describe_stacks", "Stacks"):
        gone = row["StackStatus"] == "DELETE_COMPLETE"
        if names.fullmatch(row["StackName"]) and not gone and OWNER_TAG not in _tags(row):
            yield Resource("stack", row["StackName"], row["StackStatus"], 0.0, why)
    for name, tags in _role_tags(session, spec):
        if OWNER_TAG not in tags:
            yield Resource("role", name, "of a service account", 0.0, why)


def _clusters(session: Session, spec: Spec, ours: Tags) -> Iterator[Resource]:
    row = describe_cluster(session, spec)
    if row is not None and _is_ours(row, ours):
        detail = f"{row.get('status')}, Kubernetes {row.get('version')}"
        yield Resource("cluster", spec.name, detail, _control_plane(str(row.get("version"))))


def _control_plane(version: str) -> float | None:
    """Return the price of a control plane in USD an hour. Extended support costs more."""
    support = VERSIONS.get(version)
    if support is None:
        return None
    late = support.standard_until < datetime.now(UTC).date()
    return float(PRICES["eks_cluster_hour"]["extended" if late else "standard"])


def _instances(session: Session, ours: Tags) -> Iterator[Resource]:
    for reservation in session.ec2("Reservations", {**_tagged(ours), "instance-state-name": list(LIVE)}):
        for row in reservation["Instances"]:
            kind, lifecycle = row["InstanceType"], row.get("InstanceLifecycle", "")
            state = row["State"]["Name"]
            price = instance_price(kind, lifecycle) if state in ("pending", "running") else 0.0
            detail = " ".join(one for one in (kind, lifecycle, state) if one)
            yield Resource("instance", row["InstanceId"], detail, price)


def _stacks(session: Session, spec: Spec, ours: Tags) -> Iterator[Resource]:
    """Yield our stacks, the cluster's own last."""
    rows = [
        row
        for row in session.pages("cloudformation", "describe_stacks", "Stacks")
        if ours.items() <= _tags(row).items() and row["StackStatus"] != "DELETE_COMPLETE"
    ]
    last = f"eksctl-{spec.name}-cluster"
    for row in sorted(rows, key=lambda row: (row["StackName"] == last, row["StackName"])):
        yield Resource("stack", row["StackName"], row["StackStatus"])


def _role_tags(session: Session, spec: Spec) -> Iterator[tuple[str, Tags]]:
    """Yield the roles that may be the cluster's with their tags, which IAM's listing leaves out."""
    for row in session.pages("iam", "list_roles", "Roles"):
        if row["RoleName"].startswith(role_prefix(spec.name)):
            tags = session.call("iam", "list_role_tags", RoleName=row["RoleName"])
            yield row["RoleName"], _tags(tags)


def _roles(session: Session, spec: Spec, ours: Tags) -> Iterator[Resource]:
    for name, tags in _role_tags(session, spec):
        if ours.items() <= tags.items():
            yield Resource("role", name, "of a service account")


def _providers(session: Session, ours: Tags) -> Iterator[Resource]:
    """Yield the identity providers that `yard cluster identity --irsa` created."""
    for row in session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]:
        arn = row["Arn"]
        tags = session.call("iam", "list_open_id_connect_provider_tags", OpenIDConnectProviderArn=arn)
        if ours.items() <= _tags(tags).items():
            yield Resource("identity provider", arn, "of a cluster's service accounts")


def _file_systems(session: Session, spec: Spec) -> Iterator[Resource]:
    for row in _file_system_rows(session, spec):
        throughput = (row.get("LustreConfiguration") or {}).get("PerUnitStorageThroughput")
        rate = PRICES["lustre_gib_month"].get(throughput)
        price = None if rate is None else row["StorageCapacity"] * rate / HOURS_A_MONTH
        why = f"holds data: aws fsx delete-file-system --file-system-id {row['FileSystemId']}"
        detail = f"Lustre, {row['StorageCapacity']} GiB"
        yield Resource("file system", row["FileSystemId"], detail, price, why)


def _file_system_rows(session: Session, spec: Spec) -> Iterator[Row]:
    """Yield the Lustre file systems of the cluster's team, with our tag, or named in cluster.env."""
    for row in session.pages("fsx", "describe_file_systems", "FileSystems"):
        tags = _tags(row)
        ours = tags.get(OWNER_TAG) == spec.name
        named = row["FileSystemId"] == spec.get("FSX_FILE_SYSTEM_ID")
        if ours or named or tags.get(TEAM_TAG) == spec.get("TEAM_NAMESPACE"):
            yield row
