"""Reads the facts of a cluster from AWS: of an EKS cluster, or of the HyperPod cluster around one.

A value that AWS does not have is left out; no fact is ever set to an empty text or to null.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tools.aws.session import AwsError, Session
from tools.cluster.spec import Spec
from tools.core.errors import UserError


@dataclass
class Found:
    """Facts by name, and a line for each thing that is missing or not ready."""

    facts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any) -> None:
        # A line break in a value would be a fact of its own in cluster.env.
        if value not in (None, "", [], "null", "None") and str(value).isprintable():
            self.facts[name] = str(value)


def discover(session: Session, spec: Spec, hyperpod: str | None) -> Found:
    """Return the facts of the cluster in `spec`, or of the HyperPod cluster `hyperpod`.

    Before the EKS cluster exists, only those of the account. Raises AwsError.
    """
    found = Found()
    identity = session.identity()
    found.put("AWS_REGION", session.region)
    found.put("AWS_ACCOUNT_ID", identity["account"])
    found.put("ECR_REGISTRY", f"{identity['account']}.dkr.ecr.{session.region}.{_domain(session.region)}")
    hyperpod = hyperpod or spec.get("HYPERPOD_CLUSTER_NAME")
    name = _hyperpod(session, hyperpod, found) if hyperpod else spec.name
    try:
        cluster = session.call("eks", "describe_cluster", name=name)["cluster"]
    except AwsError as problem:
        if problem.kind != "missing":
            raise
        found.missing.append(f"no EKS cluster {name} in {session.region} yet; these are facts of the account")
        return found
    _eks(session, cluster, found)
    _network(session, spec, cluster["resourcesVpcConfig"], found)
    if "CLUSTER_VPC_ID" in found.facts:
        _lustre(session, spec, found.facts["CLUSTER_VPC_ID"], found)
    return found


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _hyperpod(session: Session, name: str, found: Found) -> str:
    """Add the facts of a HyperPod cluster and return the name of its EKS cluster."""
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
    return arn.rpartition(":cluster/")[2]


def _not_in_service(group: dict[str, Any]) -> str | None:
    """Return a line about an instance group that is not in service or not complete, else None."""
    status, name = group.get("Status") or "InService", group.get("InstanceGroupName")
    there, wanted = group.get("CurrentCount"), group.get("TargetCount")
    if status == "InService" and there == wanted:
        return None
    return f"the instance group {name} is {status}: {there} of {wanted} nodes"


def _eks(session: Session, cluster: dict[str, Any], found: Found) -> None:
    found.put("CLUSTER_NAME", cluster["name"])
    found.put("CLUSTER_ARN", cluster.get("arn"))
    found.put("KUBERNETES_VERSION", cluster.get("version"))
    found.put("CLUSTER_ROLE_ARN", cluster.get("roleArn"))
    vpc = cluster["resourcesVpcConfig"]
    groups = [vpc.get("clusterSecurityGroupId"), *(vpc.get("securityGroupIds") or [])]
    found.put("CLUSTER_SECURITY_GROUP_IDS", ",".join(dict.fromkeys(one for one in groups if one)))


def _network(session: Session, spec: Spec, vpc: dict[str, Any], found: Found) -> None:
    """Add VPC, zones and private subnets. A subnet is private if it gives nodes no public address."""
    ids = vpc.get("subnetIds") or []
    if not ids:
        found.missing.append("the cluster has no subnets")
        return
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


def _file_groups(session: Session, spec: Spec, vpc: dict[str, Any]) -> str | None:
    """Return the security groups of cluster.env if all of them exist, else the cluster's own."""
    named = [one.strip() for one in (spec.get("FSX_SECURITY_GROUP_IDS") or "").split(",") if one.strip()]
    listed = session.ec2("SecurityGroups", {"group-id": named}) if named else ()
    there = {one["GroupId"] for one in listed}
    if named and there == set(named):
        return ",".join(named)
    return vpc.get("clusterSecurityGroupId")


def _lustre(session: Session, spec: Spec, vpc: str, found: Found) -> None:
    """Add the Lustre file system of the VPC; of several, the one that cluster.env names."""
    if "FSX_FILE_SYSTEM_ID" not in spec.facts:
        return
    every = [
        one
        for one in session.pages("fsx", "describe_file_systems", "FileSystems")
        if one.get("FileSystemType") == "LUSTRE"
    ]
    systems = [one for one in every if one.get("VpcId", vpc) == vpc]
    named = [one for one in every if one["FileSystemId"] == spec.get("FSX_FILE_SYSTEM_ID")]
    foreign = [one for one in named if one not in systems]
    if foreign:
        place = foreign[0].get("VpcId")
        found.missing.append(f"{foreign[0]['FileSystemId']} is in {place}, and the cluster is in {vpc}")
    chosen = [one for one in systems if one in named] or systems
    if len(chosen) != 1:
        ids = ", ".join(one["FileSystemId"] for one in chosen)
        found.missing.append(
            f"several Lustre file systems: {ids}" if chosen else f"no Lustre file system in {vpc}"
        )
        return
    (system,) = chosen
    found.put("FSX_FILE_SYSTEM_ID", system["FileSystemId"])
    found.put("FSX_MOUNT_NAME", (system.get("LustreConfiguration") or {}).get("MountName"))
    found.put("FSX_CAPACITY_GIB", system.get("StorageCapacity"))
