"""A CloudFormation template of what eksctl does not create: launch templates with EFA, security groups.

Each node group with EFA gets a launch template and a placement group. The launch template has one interface
for each network card: card 0 is device 0, every other card is device 1 (EC2 user guide, EFA on instances with
several cards). The security group of the nodes allows all traffic to and from itself, as EFA needs, and from
the control plane. The security group of the file system allows Lustre from the nodes.

eksctl.yaml does not use these launch templates: with `launchTemplate`, eksctl refuses instanceType,
volumeSize, disablePodIMDS and overrideBootstrapCommand, which sets up the RAID (v0.230.0, pkg/apis,
validation.go). With efaEnabled it creates equal interfaces, group and placement itself (pkg/cfn/builder,
managed_launch_template.go). They are for nodes that other tools create: Terraform, Karpenter or `aws eks
create-nodegroup`. The security group of the file system is for every cluster.
"""

from __future__ import annotations

import json
from typing import Any

from tools.aws.policies import OWNER_TAG
from tools.aws.session import AwsError, Session
from tools.cluster.spec import NodeGroup, Spec
from tools.core.errors import UserError
from tools.facts.instances import Instance
from tools.kube.manifests import Object

# FSx for Lustre user guide, file system access control: 988 and 1018-1023, between clients and servers.
LUSTRE_PORTS = ((988, 988), (1018, 1023))
# Families whose network card 0 has no EFA: 17 cards, 16 interfaces (DescribeInstanceTypes, recorded by moto).
PLAIN_FIRST = ("p6-b300",)
VOLUME_GIB = 200
STACK_SECONDS = 900


def name(spec: Spec) -> str:
    return f"trainyard-{spec.name.replace('_', '-')}"


def template(spec: Spec) -> Object:
    """Return the template. Raises UserError where no node group of the cluster has EFA."""
    groups = [group for group in spec.groups if group.efa]
    if not groups:
        raise UserError(f"{spec.source}: no node group uses EFA", "such a cluster needs only eksctl.yaml")
    resources: Object = {**_security(spec)}
    outputs: Object = {
        "NodeSecurityGroup": {"Value": {"Ref": "NodeSecurityGroup"}},
        "FileSystemSecurityGroup": {"Value": {"Ref": "FileSystemSecurityGroup"}},
    }
    for group in groups:
        key = "".join(part.capitalize() for part in group.name.split("-"))
        if group.reservation is None:  # a reservation has its own placement
            resources[f"{key}PlacementGroup"] = {
                "Type": "AWS::EC2::PlacementGroup",
                "Properties": {"Strategy": "cluster", "Tags": _tags(spec)},
            }
        resources[f"{key}LaunchTemplate"] = _launch_template(spec, group, key)
        outputs[f"{key}LaunchTemplate"] = {"Value": {"Ref": f"{key}LaunchTemplate"}}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"EFA launch templates and security groups of the cluster {spec.name} (trainyard)",
        "Parameters": {
            "VpcId": {"Type": "AWS::EC2::VPC::Id", "Description": "The cluster's VPC"},
            "ClusterSecurityGroupId": {
                "Type": "AWS::EC2::SecurityGroup::Id",
                "Description": "The security group that EKS created for the control plane",
            },
        },
        "Resources": resources,
        "Outputs": outputs,
    }


def text(spec: Spec) -> str:
    """Return the template as JSON."""
    return json.dumps(template(spec), indent=2) + "\n"


def interfaces(machine: Instance, group: Any) -> list[Object]:
    """Return the interfaces of a launch template, one for each network card."""
    plain = machine.name.partition(".")[0] in PLAIN_FIRST
    return [
        {
            "Description": f"{'ENA' if plain and card == 0 else 'EFA'} on network card {card}",
            "NetworkCardIndex": card,
            "DeviceIndex": 0 if card == 0 else 1,
            "InterfaceType": "interface" if plain and card == 0 else "efa",
            "Groups": [group],
            "DeleteOnTermination": True,
        }
        for card in range(machine.efa + plain)
    ]


def deploy(session: Session, spec: Spec) -> str:
    """Create or update the stack, wait for it, and return its status. Raises AwsError, UserError."""
    parameters = {
        "StackName": name(spec),
        "TemplateBody": text(spec),
        "Parameters": [
            {"ParameterKey": "VpcId", "ParameterValue": spec.need("CLUSTER_VPC_ID")},
            {"ParameterKey": "ClusterSecurityGroupId", "ParameterValue": _cluster_group(spec)},
        ],
        "Tags": _tags(spec),
    }
    waiter = "stack_create_complete"
    if status(session, spec) is None:
        session.call("cloudformation", "create_stack", **parameters)
    else:
        waiter = "stack_update_complete"
        try:
            session.call("cloudformation", "update_stack", **parameters)
        except AwsError as problem:
            if "No updates are to be performed" not in problem.message:
                raise
            return f"{status(session, spec)}, unchanged"
    return _wait(session, spec, waiter)


def status(session: Session, spec: Spec) -> str | None:
    """Return the stack's status, or None where it does not exist. Raises AwsError."""
    found = session.find("cloudformation", "describe_stacks", StackName=name(spec))
    return str(found["Stacks"][0]["StackStatus"]) if found else None


def _wait(session: Session, spec: Spec, waiter: str) -> str:
    if session.wait("cloudformation", waiter, "DescribeStacks", STACK_SECONDS, StackName=name(spec)):
        return str(status(session, spec))
    events = session.call("cloudformation", "describe_stack_events", StackName=name(spec))["StackEvents"]
    failed = [one for one in events if "FAILED" in one.get("ResourceStatus", "")]
    reason = failed[-1].get("ResourceStatusReason", "no reason given") if failed else "timeout"
    raise UserError(f"the stack {name(spec)} is {status(session, spec)}: {reason}", None, 1)


def _cluster_group(spec: Spec) -> str:
    return spec.need("CLUSTER_SECURITY_GROUP_IDS").partition(",")[0]


def _tags(spec: Spec) -> list[Object]:
    return [{"Key": OWNER_TAG, "Value": spec.name}]


def _security(spec: Spec) -> Object:
    nodes, files = {"Ref": "NodeSecurityGroup"}, {"Ref": "FileSystemSecurityGroup"}
    cluster = {"Ref": "ClusterSecurityGroupId"}
    resources = {
        "NodeSecurityGroup": _group(spec, "Nodes that speak EFA: everything among themselves"),
        "NodesAmongThemselvesIn": _rule("Ingress", nodes, "-1", Source=nodes),
        "NodesAmongThemselvesOut": _rule("Egress", nodes, "-1", Destination=nodes),
        "NodesOut": {
            "Type": "AWS::EC2::SecurityGroupEgress",
            "Properties": {"GroupId": nodes, "IpProtocol": "-1", "CidrIp": "0.0.0.0/0"},
        },
        "NodesFromControlPlane": _rule("Ingress", nodes, "-1", Source=cluster),
        "FileSystemSecurityGroup": _group(spec, "Lustre file system: its ports, from nodes and itself"),
    }
    for first, last in LUSTRE_PORTS:
        # Nodes created by eksctl have the control plane's group instead of ours.
        for title, source in (("Nodes", nodes), ("Cluster", cluster), ("Itself", files)):
            rule = _rule("Ingress", files, "tcp", first, last, Source=source)
            resources[f"Lustre{first}From{title}"] = rule
    return resources


def _group(spec: Spec, description: str) -> Object:
    # A changed description would replace the group, and with it the network of running nodes.
    return {
        "Type": "AWS::EC2::SecurityGroup",
        "Properties": {
            "GroupDescription": description,
            "VpcId": {"Ref": "VpcId"},
            "Tags": _tags(spec),
        },
    }


def _rule(
    direction: str,
    group: Object,
    protocol: str,
    first: int | None = None,
    last: int | None = None,
    **peer: Object,
) -> Object:
    ports = {} if first is None else {"FromPort": first, "ToPort": last}
    ((side, other),) = peer.items()
    properties = {"GroupId": group, "IpProtocol": protocol, **ports, f"{side}SecurityGroupId": other}
    return {"Type": f"AWS::EC2::SecurityGroup{direction}", "Properties": properties}


def _launch_template(spec: Spec, group: NodeGroup, key: str) -> Object:
    tags = [
        {"ResourceType": kind, "Tags": _tags(spec)} for kind in ("instance", "volume", "network-interface")
    ]
    disk = {
        "VolumeType": "gp3",
        "VolumeSize": VOLUME_GIB,
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    data: Object = {
        "InstanceType": group.instance.name,
        "NetworkInterfaces": interfaces(group.instance, {"Ref": "NodeSecurityGroup"}),
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": disk}],
        "TagSpecifications": tags,
        **_market(group, key),
    }
    own = [{"ResourceType": "launch-template", "Tags": _tags(spec)}]
    return {
        "Type": "AWS::EC2::LaunchTemplate",
        "Properties": {"LaunchTemplateData": data, "TagSpecifications": own},
    }


def _market(group: NodeGroup, key: str) -> Object:
    if group.reservation is None:
        return {"Placement": {"GroupName": {"Ref": f"{key}PlacementGroup"}}}
    target = {"CapacityReservationTarget": {"CapacityReservationId": group.reservation}}
    block = {"InstanceMarketOptions": {"MarketType": "capacity-block"}}
    return {
        "CapacityReservationSpecification": target,
        **(block if group.market == "capacity-block" else {}),
    }
