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

import json
from typing import Any

from tools.aws import AwsError, Session
from tools.aws.policies import OWNER_TAG
from tools.cluster import ownership
from tools.cluster.ownership import Evidence
from tools.cluster.spec import Spec
from tools.core import UserError, tables
from tools.facts.instances import Instance
from tools.kube import Object

# Families whose network card 0 has no EFA: 17 cards, 16 interfaces (DescribeInstanceTypes, recorded by moto).
PLAIN_FIRST = ("p6-b300",)
STACK_SECONDS = 900


def name(spec: Spec) -> str:
    return f"trainyard-{spec.name.replace('_', '-')}"


def template(spec: Spec) -> Object:
    """Return the template. Raises UserError where no node group of the cluster has EFA."""
    groups = [group for group in spec.groups if group.efa]
    if not groups:
        raise UserError(f"{spec.source}: no node group uses EFA", "such a cluster needs only eksctl.yaml")
    table, tags = tables.load("cluster/stack.yaml"), _tags(spec)
    found: Object = tables.filled(table["template"], {"name": spec.name})
    resources, outputs = found["Resources"], found["Outputs"]
    for one in resources.values():
        if one["Type"] == "AWS::EC2::SecurityGroup":
            one["Properties"]["Tags"] = tags
    for group in groups:
        key = "".join(part.capitalize() for part in group.name.split("-"))
        names = {"key": key, "type": group.instance.name, "reservation": group.reservation or ""}
        made = tables.filled(table["launch template"], names)
        data = made["Properties"]["LaunchTemplateData"]
        data["NetworkInterfaces"] = interfaces(group.instance, {"Ref": "NodeSecurityGroup"})
        data |= tables.filled(table["markets"][group.market if group.reservation else "placement"], names)
        for one in (*made["Properties"]["TagSpecifications"], *data["TagSpecifications"]):
            one["Tags"] = tags
        if group.reservation is None:  # a reservation has its own placement
            placement = {"Strategy": "cluster", "Tags": tags}
            resources[f"{key}PlacementGroup"] = {"Type": "AWS::EC2::PlacementGroup", "Properties": placement}
        resources[f"{key}LaunchTemplate"] = made
        outputs[f"{key}LaunchTemplate"] = {"Value": {"Ref": f"{key}LaunchTemplate"}}
    return found


def text(spec: Spec) -> str:
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
    vpc = spec.need("CLUSTER_VPC_ID")
    group = spec.need("CLUSTER_SECURITY_GROUP_IDS").partition(",")[0]
    parameters = {
        "StackName": name(spec),
        "TemplateBody": text(spec),
        "Tags": _tags(spec),
        "Parameters": [
            {"ParameterKey": "VpcId", "ParameterValue": vpc},
            {"ParameterKey": "ClusterSecurityGroupId", "ParameterValue": group},
        ],
    }
    waiter = "stack_create_complete"
    old = _stack(session, spec)
    if old is not None and not Evidence(session, spec).has_tag(old):
        marks = ownership.marks(session.region, spec)
        raise UserError(f"the stack {name(spec)} exists and is not tagged {OWNER_TAG}={marks[OWNER_TAG]}")
    if old is None:
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
    found = _stack(session, spec)
    return str(found["StackStatus"]) if found else None


def _stack(session: Session, spec: Spec) -> Object | None:
    found = session.get("cloudformation", "describe_stacks", "Stacks", StackName=name(spec))
    return found[0] if found else None


def _wait(session: Session, spec: Spec, waiter: str) -> str:
    if session.wait("cloudformation", waiter, "DescribeStacks", STACK_SECONDS, StackName=name(spec)):
        return str(status(session, spec))
    events = session.call("cloudformation", "describe_stack_events", StackName=name(spec))["StackEvents"]
    failed = [one for one in events if "FAILED" in one.get("ResourceStatus", "")]
    reason = failed[-1].get("ResourceStatusReason", "no reason given") if failed else "timeout"
    raise UserError(f"the stack {name(spec)} is {status(session, spec)}: {reason}", None, 1)


def _tags(spec: Spec) -> list[Object]:
    return ownership.pairs(ownership.marks(spec.region, spec))
