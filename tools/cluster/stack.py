"""The CloudFormation template of what eksctl lacks: placement, launch templates with EFA, security groups.

One launch template and placement group for each node group that speaks EFA. Its interfaces: one a network
card, card 0 as device 0 and every other as device 1 (EC2 user guide, EFA on instances with several cards).
The nodes' security group lets everything pass from and to itself, as EFA needs, and nothing in from elsewhere
but the control plane; the file system's lets in Lustre from the nodes.

eksctl.yaml does not use these launch templates: beside `launchTemplate` eksctl refuses instanceType,
volumeSize, disablePodIMDS and overrideBootstrapCommand, which makes the disks a RAID (v0.230.0, pkg/apis,
validation.go); and with efaEnabled it makes the same interfaces, group and placement itself (pkg/cfn/builder,
managed_launch_template.go). They are for nodes that others make: Terraform, Karpenter, or
`aws eks create-nodegroup`. The file system's security group is for every cluster.
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
# Their network card 0 has no EFA: 17 cards, 16 interfaces (DescribeInstanceTypes, as moto records it).
PLAIN_FIRST = ("p6-b300",)
VOLUME_GIB = 200
STACK_SECONDS = 900


def name(spec: Spec) -> str:
    """Return the stack's name."""
    return f"trainyard-{spec.name.replace('_', '-')}"


def template(spec: Spec) -> Object:
    """Return the template. Raises UserError where no group of the cluster speaks EFA."""
    groups = [group for group in spec.groups if group.efa]
    if not groups:
        raise UserError(
            f"{spec.source}: no node group speaks EFA", "eksctl.yaml holds all that such a cluster needs"
        )
    resources: Object = {**_security(spec)}
    outputs: Object = {
        "NodeSecurityGroup": {"Value": {"Ref": "NodeSecurityGroup"}},
        "FileSystemSecurityGroup": {"Value": {"Ref": "FileSystemSecurityGroup"}},
    }
    for group in groups:
        key = "".join(part.capitalize() for part in group.name.split("-"))
        if group.reservation is None:  # a reservation has its own place
            resources[f"{key}PlacementGroup"] = {
                "Type": "AWS::EC2::PlacementGroup",
                "Properties": {"Strategy": "cluster", "Tags": _tags(spec)},
            }
        resources[f"{key}LaunchTemplate"] = _launch_template(spec, group, key)
        outputs[f"{key}LaunchTemplate"] = {"Value": {"Ref": f"{key}LaunchTemplate"}}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"What eksctl lacks for the cluster {spec.name} (trainyard)",
        "Parameters": {
            "VpcId": {"Type": "AWS::EC2::VPC::Id", "Description": "The cluster's VPC"},
            "ClusterSecurityGroupId": {
                "Type": "AWS::EC2::SecurityGroup::Id",
                "Description": "The security group that EKS made for the control plane",
            },
        },
        "Resources": resources,
        "Outputs": outputs,
    }


def text(spec: Spec) -> str:
    """Return the template as JSON, which CloudFormation takes as it takes YAML."""
    return json.dumps(template(spec), indent=2) + "\n"


def interfaces(machine: Instance, group: Any) -> list[Object]:
    """Return the launch template's interfaces: EFA on each network card that has it, the first on card 0."""
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
    """Create the stack, or update it, and wait for it; return its status. Raises AwsError, UserError."""
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
    """Return the stack's status, None where there is none. Raises AwsError."""
    try:
        rows = session.call("cloudformation", "describe_stacks", StackName=name(spec))["Stacks"]
    except AwsError as problem:
        if "does not exist" in problem.message:
            return None
        raise
    return str(rows[0]["StackStatus"])


def _wait(session: Session, spec: Spec, waiter: str) -> str:
    if session.wait("cloudformation", waiter, "DescribeStacks", STACK_SECONDS, StackName=name(spec)):
        return str(status(session, spec))
    events = session.call("cloudformation", "describe_stack_events", StackName=name(spec))["StackEvents"]
    failed = [one for one in events if "FAILED" in one.get("ResourceStatus", "")]
    reason = failed[-1].get("ResourceStatusReason", "no reason given") if failed else "it took too long"
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
        # Nodes that eksctl makes have the control plane's group and not ours.
        for title, source in (("Nodes", nodes), ("Cluster", cluster), ("Itself", files)):
            rule = _rule("Ingress", files, "tcp", first, last, Source=source)
            resources[f"Lustre{first}From{title}"] = rule
    return resources


def _group(spec: Spec, description: str) -> Object:
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
