"""Reads the facts of a cluster from AWS: of an EKS cluster, or of the HyperPod cluster around one.

A value that AWS does not have is left out; no fact is ever set to an empty text or to null.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from tools.aws import AwsError, Session
from tools.aws.policies import OWNER_TAG
from tools.cluster.ownership import Row, tags_of
from tools.cluster.spec import NODES, SYSTEM, Spec
from tools.core import UserError, did_you_mean
from tools.facts.instances import HYPERPOD_PREFIX, INSTANCES

# EKS's capacity types, and the words of cluster.env. Others need the id of a reservation.
MARKETS = {"ON_DEMAND": "", "SPOT": "spot"}


@dataclass
class Found:
    """Facts by name, why others are unknown, and a line for each thing that is missing or not ready."""

    facts: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any) -> None:
        # A line break in a value would be a fact of its own in cluster.env.
        if value not in (None, "", [], "null", "None") and str(value).isprintable():
            self.facts[name] = str(value)


def discover(session: Session, spec: Spec, eks: str | None, hyperpod: str | None = None) -> tuple[Found, Row]:
    """Return the facts of the EKS cluster `eks`, or of the HyperPod cluster `hyperpod`, and the EKS cluster.

    `spec` is the directory as it is, without facts where it is new. Raises AwsError.
    """
    found = Found()
    identity = session.identity()
    found.put("AWS_REGION", session.region)
    found.put("AWS_ACCOUNT_ID", identity["account"])
    domain = "amazonaws.com.cn" if session.region.startswith("cn-") else "amazonaws.com"
    found.put("ECR_REGISTRY", f"{identity['account']}.dkr.ecr.{session.region}.{domain}")
    rows: list[Row] = []
    if hyperpod:
        eks, rows = _hyperpod(session, hyperpod, found)
    assert eks is not None
    cluster: Row = _cluster(session, eks)
    _eks(cluster, found)
    if not hyperpod and not spec.facts and OWNER_TAG not in tags_of(cluster):
        found.put("ADOPTED", "true")
    places = _network(session, spec, cluster["resourcesVpcConfig"], found)
    if "CLUSTER_VPC_ID" in found.facts:
        _lustre(session, spec, found.facts["CLUSTER_VPC_ID"], found)
    if not any(name.startswith(NODES) for name in spec.facts):
        _node_groups(session, eks, places, found)
        for row in rows:
            _instance_group(session, row, found)
    return found, cluster


def _cluster(session: Session, name: str) -> Row:
    """Return the EKS cluster. Raises AwsError with the nearest name where it does not exist."""
    row: Row | None = (session.find("eks", "describe_cluster", name=name) or {}).get("cluster")
    if row is None:
        there = list(session.pages("eks", "list_clusters", "clusters"))
        hint = did_you_mean(name, there) or f"it has: {', '.join(there) or 'none'}"
        raise AwsError("missing", f"no EKS cluster {name} in {session.region}", hint)
    return row


def _hyperpod(session: Session, name: str, found: Found) -> tuple[str, list[Row]]:
    """Add the facts of a HyperPod cluster; return the name of its EKS cluster, and its instance groups."""
    cluster = session.call("sagemaker", "describe_cluster", ClusterName=name)
    eks = (cluster.get("Orchestrator") or {}).get("Eks") or {}
    arn = str(eks.get("ClusterArn") or "")
    if ":cluster/" not in arn:
        hint = "trainyard needs a HyperPod cluster that EKS orchestrates"
        raise UserError(f"the HyperPod cluster {name} has no EKS cluster", hint)
    found.put("ADOPTED", "true")
    found.put("HYPERPOD_CLUSTER_NAME", cluster.get("ClusterName") or name)
    found.put("HYPERPOD_CLUSTER_ARN", cluster.get("ClusterArn"))
    groups = cluster.get("InstanceGroups") or []
    if cluster.get("ClusterStatus") != "InService":
        found.missing.append(f"the HyperPod cluster {name} is {cluster.get('ClusterStatus')}, not InService")
    found.missing += [line for one in groups if (line := _not_in_service(one))]
    found.put("HYPERPOD_EXECUTION_ROLE_ARN", next((one.get("ExecutionRole") for one in groups), None))
    scripts = next((one.get("LifeCycleConfig", {}).get("SourceS3Uri") for one in groups), None)
    bucket = re.match(r"s3://([^/]+)", scripts or "")
    found.put("HYPERPOD_BUCKET", bucket and bucket[1])
    shared = cluster.get("VpcConfig")
    return arn.rpartition(":cluster/")[2], [{"OverrideVpcConfig": shared, **one} for one in groups]


def _not_in_service(group: Row) -> str | None:
    """Return a line about an instance group that is not in service or not complete, else None."""
    status, name = group.get("Status") or "InService", group.get("InstanceGroupName")
    there, wanted = group.get("CurrentCount"), group.get("TargetCount")
    if status == "InService" and there == wanted:
        return None
    return f"the instance group {name} is {status}: {there} of {wanted} nodes"


def _eks(cluster: Row, found: Found) -> None:
    facts = {"CLUSTER_NAME": "name", "CLUSTER_ARN": "arn"}
    facts |= {"KUBERNETES_VERSION": "version", "CLUSTER_ROLE_ARN": "roleArn"}
    for name, key in facts.items():
        found.put(name, cluster.get(key))
    vpc = cluster["resourcesVpcConfig"]
    groups = [vpc.get("clusterSecurityGroupId"), *(vpc.get("securityGroupIds") or [])]
    found.put("CLUSTER_SECURITY_GROUP_IDS", ",".join(dict.fromkeys(one for one in groups if one)))


def _node_groups(session: Session, cluster: str, places: dict[str, str], found: Found) -> None:
    """Add the managed node groups: type, fewest and most nodes, zones, and how they are bought."""
    for name in session.pages("eks", "list_nodegroups", "nodegroups", clusterName=cluster):
        where = {"clusterName": cluster, "nodegroupName": name}
        row = session.call("eks", "describe_nodegroup", **where)["nodegroup"]
        kinds, sizes = row.get("instanceTypes") or [], row.get("scalingConfig") or {}
        zones = {places.get(one, "") for one in row.get("subnets") or []}
        market = MARKETS.get(str(row.get("capacityType") or "ON_DEMAND"))
        fact = NODES + re.sub(r"[^A-Z0-9]+", "_", name.upper())
        if len(kinds) != 1 or market is None:
            found.unknown[fact] = "several types, or those of a launch template, or a reservation"
            continue
        _put_group(found, fact, kinds[0], (sizes.get("minSize"), sizes.get("maxSize")), zones, market)


def _instance_group(session: Session, row: Row, found: Found) -> None:
    """Add an instance group of HyperPod, whose nodes are always there."""
    subnets = (row.get("OverrideVpcConfig") or {}).get("Subnets") or []
    rows = session.call("ec2", "describe_subnets", SubnetIds=subnets)["Subnets"] if subnets else []
    fact = NODES + re.sub(r"[^A-Z0-9]+", "_", str(row.get("InstanceGroupName")).upper())
    count, zones = row.get("TargetCount"), {one["AvailabilityZone"] for one in rows}
    _put_group(found, fact, str(row.get("InstanceType")), (count, count), zones, "")


def _put_group(found: Found, fact: str, kind: str, size: tuple[Any, Any], zones: set[str], market: str) -> None:
    """Add a fact about a group of nodes that tools/cluster/spec.py can read, or why it is unknown."""
    machine = INSTANCES.get(kind.removeprefix(HYPERPOD_PREFIX))
    there = sorted(zones & set(found.facts.get("ZONES", "").split(",")))
    if machine is None:
        found.unknown[fact] = f"{kind} is not in the table of instance types"
    elif machine.efa and len(there) != 1:
        found.unknown[fact] = f"nodes of {kind} use EFA, and their one zone is unknown"
    elif fact == f"{NODES}{SYSTEM.upper()}" and found.facts.get("ADOPTED") != "true":
        pass  # eksctl.yaml always has it
    elif isinstance(size[1], int) and size[1] > 0:
        found.put(fact, f"{machine.name} {size[0]}-{size[1]} {','.join(there)} {market}".strip())
    else:
        found.unknown[fact] = "it has no nodes"


def _network(session: Session, spec: Spec, vpc: Row, found: Found) -> dict[str, str]:
    """Add VPC, zones and private subnets, which give nodes no public address. Return zones by subnet."""
    ids = vpc.get("subnetIds") or []
    if not ids:
        found.missing.append("the cluster has no subnets")
        return {}
    subnets = session.call("ec2", "describe_subnets", SubnetIds=ids)["Subnets"]
    found.put("CLUSTER_VPC_ID", subnets[0].get("VpcId"))
    found.put("ZONES", ",".join(sorted({one["AvailabilityZone"] for one in subnets})))
    private = [one for one in subnets if not one.get("MapPublicIpOnLaunch")]
    if not private:
        found.missing.append("the cluster has no private subnet: its nodes would have public addresses")
    # Of several subnets in a zone, the one with most free addresses wins.
    private.sort(key=lambda one: (one.get("AvailableIpAddressCount", 0), one["SubnetId"]))
    by_zone = {one["AvailabilityZone"]: one["SubnetId"] for one in private}
    found.put("CLUSTER_SUBNETS", ",".join(f"{zone}={by_zone[zone]}" for zone in sorted(by_zone)))
    zone = next((zone for group in spec.groups for zone in group.zones if zone in by_zone), None)
    if "FSX_SUBNET_ID" in spec.facts and (zone or len(by_zone) == 1):
        found.put("FSX_SUBNET_ID", by_zone[zone or next(iter(by_zone))])
    if "FSX_SECURITY_GROUP_IDS" in spec.facts:
        found.put("FSX_SECURITY_GROUP_IDS", _file_groups(session, spec, vpc))
    return {one["SubnetId"]: one["AvailabilityZone"] for one in subnets}


def _file_groups(session: Session, spec: Spec, vpc: Row) -> str | None:
    """Return the security groups of cluster.env if all of them exist, else the cluster's own."""
    named = [one.strip() for one in (spec.get("FSX_SECURITY_GROUP_IDS") or "").split(",") if one.strip()]
    listed = session.ec2("SecurityGroups", {"group-id": named}) if named else ()
    there = {one["GroupId"] for one in listed}
    if named and there == set(named):
        return ",".join(named)
    return vpc.get("clusterSecurityGroupId")


def _lustre(session: Session, spec: Spec, vpc: str, found: Found) -> None:
    """Add the Lustre file system of the VPC; of several, the one that cluster.env names."""
    if spec.facts and "FSX_FILE_SYSTEM_ID" not in spec.facts:
        return
    listed = session.pages("fsx", "describe_file_systems", "FileSystems")
    every = [one for one in listed if one.get("FileSystemType") == "LUSTRE"]
    systems = [one for one in every if one.get("VpcId", vpc) == vpc]
    named = [one for one in every if one["FileSystemId"] == spec.get("FSX_FILE_SYSTEM_ID")]
    foreign = [one for one in named if one not in systems]
    if foreign:
        place = foreign[0].get("VpcId")
        found.missing.append(f"{foreign[0]['FileSystemId']} is in {place}, and the cluster is in {vpc}")
    chosen = [one for one in systems if one in named] or systems
    if len(chosen) != 1:
        ids = ", ".join(one["FileSystemId"] for one in chosen)
        found.missing.append(f"several Lustre file systems: {ids}" if chosen else f"no Lustre file system in {vpc}")
        return
    (system,) = chosen
    found.put("FSX_FILE_SYSTEM_ID", system["FileSystemId"])
    found.put("FSX_MOUNT_NAME", (system.get("LustreConfiguration") or {}).get("MountName"))
    found.put("FSX_CAPACITY_GIB", system.get("StorageCapacity"))
