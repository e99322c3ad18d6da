"""Creates resources of a cluster in moto: VPC, subnets, EKS cluster, instances, file system."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tools.aws.session import Session

ROLE = "arn:aws:iam::123456789012:role/eks"


@dataclass(frozen=True)
class Network:
    """A VPC with one private subnet per zone, and the security group of its nodes."""

    vpc: str
    subnets: dict[str, str]
    group: str


def make_stack(session: Session, name: str, cidr: str | None = None, **tags: str) -> str:
    """Create a stack, with a VPC if it gets a range; return the id of the VPC."""
    vpc = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": f"{cidr}.0.0/16"}, "DeletionPolicy": "Retain"}
    topic = {"Type": "AWS::SNS::Topic"}
    template = json.dumps({"Resources": {"Vpc": vpc} if cidr else {"Topic": topic}})
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    session.call("cloudformation", "create_stack", StackName=name, TemplateBody=template, Tags=pairs)
    rows = session.call("cloudformation", "describe_stack_resources", StackName=name)["StackResources"]
    return str(rows[0]["PhysicalResourceId"]) if cidr else ""


def make_network(session: Session, zones: list[str], cidr: str = "10.0", vpc: str = "") -> Network:
    """Create a /24 in each zone of a VPC, a new one by default, and a group that is open to itself."""
    vpc = vpc or session.call("ec2", "create_vpc", CidrBlock=f"{cidr}.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate(zones):
        block = f"{cidr}.{number}.0/24"
        made = session.call("ec2", "create_subnet", VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)
        subnets[zone] = made["Subnet"]["SubnetId"]
    group = make_group(session, vpc, "nodes")
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    session.call("ec2", "authorize_security_group_ingress", GroupId=group, IpPermissions=itself)
    session.call("ec2", "authorize_security_group_egress", GroupId=group, IpPermissions=itself)
    return Network(vpc, subnets, group)


def make_group(session: Session, vpc: str, name: str, **tags: str) -> str:
    made = session.call("ec2", "create_security_group", GroupName=name, Description=name, VpcId=vpc)
    group = str(made["GroupId"])
    tag(session, group, **tags)
    return group


def make_cluster(session: Session, name: str, network: Network, version: str = "1.35", **tags: str) -> None:
    vpc = {"subnetIds": list(network.subnets.values()), "securityGroupIds": [network.group]}
    session.call("eks", "create_cluster", name=name, version=version, roleArn=ROLE, resourcesVpcConfig=vpc, tags=tags)


def make_nodes(session: Session, kind: str, count: int, network: Network, zone: str, **tags: str) -> list[str]:
    made = session.call(
        "ec2",
        "run_instances",
        ImageId="ami-12c6146b",
        InstanceType=kind,
        MinCount=count,
        MaxCount=count,
        SubnetId=network.subnets[zone],
        SecurityGroupIds=[network.group],
    )
    ids = [str(one["InstanceId"]) for one in made["Instances"]]
    for one in ids:
        tag(session, one, **tags)
    return ids


def tag(session: Session, resource: str, **tags: str) -> None:
    """Tag an EC2 resource. `__` in a name becomes a slash."""
    if tags:
        pairs = [{"Key": key.replace("__", "/"), "Value": value} for key, value in tags.items()]
        session.call("ec2", "create_tags", Resources=[resource], Tags=pairs)


def make_lustre(session: Session, network: Network, zone: str, **tags: str) -> dict[str, Any]:
    pairs = [{"Key": key.replace("__", "/"), "Value": value} for key, value in tags.items()]
    made = session.call(
        "fsx",
        "create_file_system",
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[network.subnets[zone]],
        SecurityGroupIds=[network.group],
        Tags=pairs or [{"Key": "x", "Value": "y"}],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    )
    found: dict[str, Any] = made["FileSystem"]
    return found


def make_bucket(session: Session, name: str, versioned: bool = True) -> None:
    """Create a bucket unless it exists."""
    if any(one["Name"] == name for one in session.call("s3", "list_buckets")["Buckets"]):
        return
    where = {"LocationConstraint": session.region}
    session.call("s3", "create_bucket", Bucket=name, CreateBucketConfiguration=where)
    if versioned:
        enabled = {"Status": "Enabled"}
        session.call("s3", "put_bucket_versioning", Bucket=name, VersioningConfiguration=enabled)
