"""What a cluster consists of in its AWS account, in the order in which it can be deleted.

Ours is what has the tag `trainyard/cluster` with the cluster's region and name, and a proof that tagging
cannot make (tools/cluster/ownership.py). eksctl sets the tag on its stacks and groups, and CloudFormation on
what they create. What belongs to the cluster without both is a leftover: it is listed and never deleted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tools.aws import Session
from tools.aws.policies import OWNER_TAG, TEAM_TAG, owner
from tools.cluster import ownership
from tools.cluster.ownership import DOUBT, STACK_TAG, Evidence, Row, Tags, is_role, tags_of
from tools.cluster.spec import Spec
from tools.core.tables import load
from tools.facts.eks import VERSIONS
from tools.facts.instances import INSTANCES

PRICES: dict[str, Any] = load("facts/aws_prices.yaml")
INSTANCE_PRICES = "us-east-1, on demand, 2026-07-20"
HOURS_A_MONTH = 730
HOLDS = "foreign node group"  # EKS does not delete a cluster that has one
LIVE = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Resource:
    """A resource in the account. `price` is in USD an hour, None if unknown. `why` is why it is kept.

    `made` tells it from a later one with the same name: the id or the time that AWS gave it.
    """

    kind: str
    id: str
    detail: str
    price: float | None = 0.0
    why: str | None = None
    made: str = ""


Listing = Callable[[Evidence], Iterator[Resource]]


def owned(session: Session, spec: Spec) -> list[Resource]:
    """Return our resources in the order of deletion. Raises AwsError if AWS does not list all of them."""
    return [one for one in _listed(Evidence(session, spec)) if one.why is None]


def _listed(evidence: Evidence) -> list[Resource]:
    """Return what has our tag of the kinds that `down` deletes."""
    return [one for kind in _kinds(evidence.spec) for one in LISTINGS[kind](evidence)]


def still_ours(session: Session, spec: Spec, resource: Resource) -> bool:
    """Return whether AWS lists a resource with both proofs now, and it is the same one. Raises AwsError."""
    listed = LISTINGS[resource.kind](Evidence(session, spec))
    return any(one.id == resource.id and one.made == resource.made for one in listed if one.why is None)


def survey(session: Session, spec: Spec) -> tuple[list[Resource], list[Resource]]:
    """Return our resources, and what belongs to the cluster and is not ours to delete.

    That includes resources with our names and without our tag, because someone removed the tag on purpose,
    and those with our tag and without the second proof, because another user may have set it.
    """
    evidence = Evidence(session, spec)
    listed = _listed(evidence)
    found = [*_file_systems(session, spec), *_foreign_groups(evidence), *_without_tag(evidence)]
    found += [one for one in listed if one.why is not None]
    found += [*_volumes(session, evidence.ours), *_launch_templates(evidence)]
    mark = {f"kubernetes.io/cluster/{spec.name}": "owned"}
    why = "created by a controller in the cluster, which deletes it with its object"
    theirs = (*_volumes(session, mark), *_interfaces(evidence, mark))
    found += [replace(one, why=why) for one in theirs]
    return [one for one in listed if one.why is None], found


def held(session: Session, spec: Spec, ours: list[Resource]) -> list[Resource]:
    """Return those of `ours` that cannot be deleted while something else is kept, each with the reason.

    A kept file system holds the stack of its network and its security groups. A cluster that is not ours
    would be deleted with its stack. In an adopted cluster, an identity provider stays that roles of others
    use. Raises AwsError.
    """
    reasons: dict[str, str] = {}
    for row in _file_system_rows(session, spec):
        why = f"used by {row['FileSystemId']}: delete that first, then run yard cluster down again"
        reasons |= dict.fromkeys(_holders(session, row), why)
    evidence = Evidence(session, spec)
    if not spec.adopted and evidence.cluster is not None and not evidence.is_cluster_ours:
        lost = "has lost our tag" if not evidence.has_tag(evidence.cluster) else "is not provably ours"
        reasons[f"eksctl-{spec.name}-cluster"] = f"the cluster {lost} and would be deleted with it"
    for one in ours if spec.adopted else ():
        users = list(_users_of(evidence, one.id, ours)) if one.kind == "identity provider" else []
        reasons |= dict.fromkeys([one.id] if users else [], f"used by {', '.join(users)}")
    return [replace(one, why=reasons[one.id]) for one in ours if one.id in reasons]


def _users_of(evidence: Evidence, provider: str, ours: list[Resource]) -> Iterator[str]:
    """Yield the roles of others that trust an identity provider."""
    mine = {one.id for one in ours if one.kind == "role"}
    for row in evidence.session.pages("iam", "list_roles", "Roles"):
        if provider in str(row.get("AssumeRolePolicyDocument")) and row["RoleName"] not in mine:
            yield row["RoleName"]


def _holders(session: Session, row: Row) -> Iterator[str]:
    """Yield the stack of a file system's network, and its security groups with their stacks."""
    if row.get("VpcId"):
        for vpc in session.ec2("Vpcs", {"vpc-id": [row["VpcId"]]}):
            yield tags_of(vpc).get(STACK_TAG, "")
    filters = {"network-interface-id": row.get("NetworkInterfaceIds") or ["none"]}
    rows = session.ec2("NetworkInterfaces", filters)
    ids = sorted({group["GroupId"] for one in rows for group in one.get("Groups") or []})
    for group in session.ec2("SecurityGroups", {"group-id": ids or ["none"]}):
        yield group["GroupId"]
        yield tags_of(group).get(STACK_TAG, "")


def gateways(session: Session, spec: Spec) -> list[Resource]:
    """Return the NAT gateways with our tag. They are deleted with their stack and have a price until then."""
    filters = {**_tagged(Evidence(session, spec).ours), "state": ["available", "pending"]}
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


def _tagged(tags: Tags) -> dict[str, list[str]]:
    return {f"tag:{name}": [value] for name, value in tags.items()}


def _proven(is_proven: bool) -> str | None:
    """Return why a resource with our tag is kept, or None where it is proven to be ours."""
    return None if is_proven else DOUBT


def _described(row: Row, *words: str, since: Any = None) -> str:
    """Return the words about a resource with its Name, VPC and start, by which a person knows it."""
    named = tags_of(row).get("Name", "")
    named = named if named.isprintable() else ascii(named)  # a line break would forge a line of the list
    parts = [" ".join(word for word in words if word), f"Name {named}" if named else "", row.get("VpcId")]
    return ", ".join(str(part) for part in (*parts, f"since {since}" if since else "") if part)


def _unstacked(evidence: Evidence, key: str, filters: dict[str, list[str]]) -> Iterator[Row]:
    """Yield EC2's resources that match filters, except those that are deleted with their stack."""
    for row in evidence.session.ec2(key, filters):
        if tags_of(row).get(STACK_TAG) not in evidence.stacks:
            yield row


def _volumes(session: Session, tags: Tags) -> Iterator[Resource]:
    """Yield the volumes with a tag that nothing uses. A volume is data, so none is deleted."""
    for row in session.ec2("Volumes", {**_tagged(tags), "status": ["available"]}):
        detail = _described(row, f"{row['Size']} GiB, not attached", since=row.get("CreateTime"))
        why = f"may hold data: aws ec2 delete-volume --volume-id {row['VolumeId']}"
        rate = PRICES["ebs_gb_month"].get(row.get("VolumeType"))
        price = None if rate is None else row["Size"] * rate / HOURS_A_MONTH
        yield Resource("volume", row["VolumeId"], detail, price, why)


def _launch_templates(evidence: Evidence) -> Iterator[Resource]:
    """Yield the launch templates with our tag outside of our stacks. Nothing proves whose they are."""
    for row in _unstacked(evidence, "LaunchTemplates", _tagged(evidence.ours)):
        detail = _described(row, row["LaunchTemplateName"], since=row.get("CreateTime"))
        yield Resource("launch template", row["LaunchTemplateId"], detail, 0.0, DOUBT)


def _interfaces(evidence: Evidence, tags: Tags) -> Iterator[Resource]:
    filters = {**_tagged(tags), "status": ["available"]}
    for row in _unstacked(evidence, "NetworkInterfaces", filters):
        number = row["NetworkInterfaceId"]
        why = _proven(evidence.is_inside(row))
        yield Resource("network interface", number, _described(row, "not attached"), 0.0, why)


def _groups(evidence: Evidence) -> Iterator[Resource]:
    for row in _unstacked(evidence, "SecurityGroups", _tagged(evidence.ours)):
        why = _proven(evidence.is_inside(row))
        yield Resource("security group", row["GroupId"], _described(row, row["GroupName"]), 0.0, why)


def _members(
    evidence: Evidence, listing: tuple[str, str], operation: str, parameter: str, key: str
) -> Iterator[tuple[str, Row, Row]]:
    """Yield what EKS lists for the cluster: the id, the listed row, and the answer of `operation`."""
    if evidence.cluster is None:
        return
    where = {"clusterName": evidence.spec.name}
    for row in evidence.session.pages("eks", *listing, **where):
        id_ = row if isinstance(row, str) else row[parameter]
        yield id_, row, evidence.session.call("eks", operation, **where, **{parameter: id_})[key]


def _group_rows(evidence: Evidence) -> Iterator[tuple[str, Row, Row]]:
    listing = ("list_nodegroups", "nodegroups")
    return _members(evidence, listing, "describe_nodegroup", "nodegroupName", "nodegroup")


def _node_groups(evidence: Evidence) -> Iterator[Resource]:
    for name, _, row in _group_rows(evidence):
        if evidence.has_tag(row):
            detail = f"{row.get('status')}, {(row.get('scalingConfig') or {}).get('desiredSize')} nodes"
            why = _proven(evidence.is_cluster_ours)
            yield Resource("node group", name, detail, 0.0, why, str(row.get("createdAt")))


def _pod_identities(evidence: Evidence) -> Iterator[Resource]:
    listing = ("list_pod_identity_associations", "associations")
    operation = "describe_pod_identity_association"
    for id_, listed, row in _members(evidence, listing, operation, "associationId", "association"):
        if evidence.has_tag(row):
            account = f"{listed['namespace']}/{listed['serviceAccount']}"
            tags = {**tags_of(row), ownership.ACCOUNT_TAG: account}
            name = str(row.get("roleArn")).rpartition("/")[2]
            why = _proven(is_role(evidence.place, evidence.spec.name, name, tags))
            yield Resource("pod identity", id_, f"{account} has {name}", 0.0, why)


def _access_entries(evidence: Evidence) -> Iterator[Resource]:
    listing = ("list_access_entries", "accessEntries")
    operation = "describe_access_entry"
    for arn, _, row in _members(evidence, listing, operation, "principalArn", "accessEntry"):
        if evidence.has_tag(row) and tags_of(row).get(STACK_TAG) not in evidence.stacks:
            why = _proven(ownership.ENTRY_GROUP in (row.get("kubernetesGroups") or []))
            yield Resource("access entry", arn, "of a role or user", 0.0, why, str(row.get("createdAt")))


def _foreign_groups(evidence: Evidence) -> Iterator[Resource]:
    """Yield node groups of others in our cluster: EKS does not delete a cluster that has one."""
    if evidence.spec.adopted or evidence.cluster is None or not evidence.is_cluster_ours:
        return
    for name, _, row in _group_rows(evidence):
        if not evidence.has_tag(row):
            why = "not created by trainyard; the cluster cannot be deleted while it exists"
            yield Resource(HOLDS, name, "without our tag", None, why)


def _without_tag(evidence: Evidence) -> Iterator[Resource]:
    """Yield the cluster, its stacks and its roles, found by name, where they have no tag of ours."""
    spec, why = evidence.spec, "has lost our tag: set it again, or delete the resource by hand"
    cluster = None if spec.adopted else evidence.cluster
    if cluster is not None and OWNER_TAG not in tags_of(cluster):
        price = control_plane_price(str(cluster.get("version")))
        yield Resource("cluster", spec.name, str(cluster.get("status")), price, why)
    for row in evidence.stack_rows:
        if evidence.is_stack_name(row["StackName"]) and OWNER_TAG not in tags_of(row):
            yield Resource("stack", row["StackName"], row["StackStatus"], 0.0, why)
    for row, tags in _role_rows(evidence):
        if OWNER_TAG not in tags:
            yield Resource("role", row["RoleName"], "of a service account", 0.0, why)


def _clusters(evidence: Evidence) -> Iterator[Resource]:
    row = evidence.cluster
    if row is not None and evidence.has_tag(row):
        version, vpc = row.get("version"), (row.get("resourcesVpcConfig") or {}).get("vpcId") or ""
        made = str(row.get("createdAt"))
        detail = _described({"VpcId": vpc}, f"{row.get('status')}, Kubernetes {version}", since=made)
        price, why = control_plane_price(str(version)), _proven(evidence.is_cluster_ours)
        yield Resource("cluster", evidence.spec.name, detail, price, why, made)


def control_plane_price(version: str) -> float | None:
    """Return the price of a control plane in USD an hour. Extended support costs more."""
    support = VERSIONS.get(version)
    if support is None:
        return None
    late = support.standard_until < datetime.now(UTC).date()
    return float(PRICES["eks_cluster_hour"]["extended" if late else "standard"])


def _instances(evidence: Evidence) -> Iterator[Resource]:
    filters = {**_tagged(evidence.ours), "instance-state-name": list(LIVE)}
    for reservation in evidence.session.ec2("Reservations", filters):
        for row in reservation["Instances"]:
            kind, lifecycle = row["InstanceType"], row.get("InstanceLifecycle", "")
            state, made = row["State"]["Name"], str(row.get("LaunchTime"))
            price = instance_price(kind, lifecycle) if state in ("pending", "running") else 0.0
            detail = _described(row, kind, lifecycle, state, since=made)
            why = _proven(evidence.is_inside(row))
            yield Resource("instance", row["InstanceId"], detail, price, why, made)


def _stacks(evidence: Evidence) -> Iterator[Resource]:
    """Yield the stacks with our tag, the cluster's own last."""
    rows = [row for row in evidence.stack_rows if evidence.has_tag(row)]
    last = f"eksctl-{evidence.spec.name}-cluster"
    for row in sorted(rows, key=lambda row: (row["StackName"] == last, row["StackName"])):
        name, why = row["StackName"], _proven(row["StackName"] in evidence.stacks)
        detail = _described({}, row["StackStatus"], since=row.get("CreationTime"))
        yield Resource("stack", name, detail, 0.0, why, str(row.get("StackId")))


def _role_rows(evidence: Evidence) -> Iterator[tuple[Row, Tags]]:
    """Yield the roles that may be the cluster's with their tags, which IAM's listing leaves out."""
    prefix = ownership.role_prefix(evidence.session.region, evidence.spec.name)
    for row in evidence.session.pages("iam", "list_roles", "Roles"):
        if row["RoleName"].startswith(prefix):
            yield row, tags_of(evidence.session.call("iam", "list_role_tags", RoleName=row["RoleName"]))


def _roles(evidence: Evidence) -> Iterator[Resource]:
    for row, tags in _role_rows(evidence):
        if evidence.ours.items() <= tags.items():
            why = _proven(is_role(evidence.place, evidence.spec.name, row["RoleName"], tags))
            detail = f"of the service account {tags.get(ownership.ACCOUNT_TAG)}"
            yield Resource("role", row["RoleName"], detail, 0.0, why, str(row.get("RoleId")))


def _providers(evidence: Evidence) -> Iterator[Resource]:
    """Yield the identity providers with our tag. Ours is that of the issuer of our cluster."""
    session = evidence.session
    for row in session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]:
        arn = row["Arn"]
        tags = session.call("iam", "list_open_id_connect_provider_tags", OpenIDConnectProviderArn=arn)
        if evidence.has_tag(tags):
            is_issuer = arn.partition(":oidc-provider/")[2] == (ownership.issuer_of(evidence.cluster) or "none")
            why = _proven(is_issuer and (evidence.spec.adopted or evidence.is_cluster_ours))
            yield Resource("identity provider", arn, "of a cluster's service accounts", 0.0, why)


# The kinds that `down` deletes. The cluster proves its provider, and the stack the VPC of the groups in it.
LISTINGS: dict[str, Listing] = {
    "pod identity": _pod_identities,
    "access entry": _access_entries,
    "node group": _node_groups,
    "instance": _instances,
    "identity provider": _providers,
    "cluster": _clusters,
    "network interface": lambda evidence: _interfaces(evidence, evidence.ours),
    "security group": _groups,
    "stack": _stacks,
    "role": _roles,
}


def _kinds(spec: Spec) -> list[str]:
    """Return the kinds in the order of deletion.

    With our own cluster, EKS deletes pod identities and access entries. An adopted one keeps its nodes.
    """
    kept = ("node group", "instance", "cluster") if spec.adopted else ("pod identity", "access entry")
    return [kind for kind in LISTINGS if kind not in kept]


def _file_systems(session: Session, spec: Spec) -> Iterator[Resource]:
    for row in _file_system_rows(session, spec):
        throughput = (row.get("LustreConfiguration") or {}).get("PerUnitStorageThroughput")
        rate = PRICES["lustre_gib_month"].get(throughput)
        price = None if rate is None else row["StorageCapacity"] * rate / HOURS_A_MONTH
        why = f"holds data: aws fsx delete-file-system --file-system-id {row['FileSystemId']}"
        yield Resource("file system", row["FileSystemId"], f"Lustre, {row['StorageCapacity']} GiB", price, why)


def _file_system_rows(session: Session, spec: Spec) -> Iterator[Row]:
    """Yield the Lustre file systems of the cluster's team, with our tag, or named in cluster.env."""
    for row in session.pages("fsx", "describe_file_systems", "FileSystems"):
        tags = tags_of(row)
        ours = tags.get(OWNER_TAG) == owner(session.region, spec.name)
        named = row["FileSystemId"] == spec.get("FSX_FILE_SYSTEM_ID")
        if ours or named or tags.get(TEAM_TAG) == spec.get("TEAM_NAMESPACE"):
            yield row
