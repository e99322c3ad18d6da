"""The CloudFormation template, checked with AWS's linter and created in moto."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.aws.account import make_network
from tests.aws.conftest import Change, Yard
from tools.aws.session import Session
from tools.cluster import spec as specs
from tools.cluster import stack
from tools.core import repo
from tools.core.errors import UserError
from tools.facts.instances import INSTANCES

# moto warns about resources of the stack that it lacks.
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS")
EFA_TYPES = [name for name, found in INSTANCES.items() if found.efa and found.accelerators]


def test_awss_linter_accepts_the_templates(tmp_path: Path) -> None:
    """cfn-lint on both templates; the control is one with a misspelt property."""
    texts = {name: stack.text(specs.load(repo.root(), name)) for name in ("gpu", "trn1")}
    texts["control"] = texts["trn1"].replace('"NetworkCardIndex"', '"NetworkCard"', 1)
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    program = Path(sys.executable).with_name("cfn-lint")
    command = [str(program), "--format", "json", "--regions", "us-west-2", "--", str(tmp_path / "*.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    found = {Path(one["Filename"]).stem for one in json.loads(done.stdout)}
    assert found == {"control"}, done.stdout


@pytest.fixture
def deployed(session: Session, change: Change) -> Callable[..., dict[str, Any]]:
    """A function that creates the stack of a cluster with these facts and returns its outputs."""
    network = make_network(session, ["us-west-2a"])

    def deploy(**facts: str | None) -> dict[str, Any]:
        found = {"CLUSTER_VPC_ID": network.vpc, "CLUSTER_SECURITY_GROUP_IDS": network.group}
        spec = change("gpu", **found, **facts)
        assert stack.deploy(session, spec) == "CREATE_COMPLETE"
        rows = session.call("cloudformation", "describe_stacks", StackName=stack.name(spec))["Stacks"]
        return {one["OutputKey"]: one["OutputValue"] for one in rows[0]["Outputs"]}

    return deploy


def launch_template(session: Session, number: str) -> dict[str, Any]:
    rows = session.call("ec2", "describe_launch_template_versions", LaunchTemplateId=number)
    found: dict[str, Any] = rows["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return found


def test_the_interfaces_of_every_type_are_those_of_the_table(
    session: Session, deployed: Callable[..., dict[str, Any]]
) -> None:
    """A stack with a group of each type with EFA, and the card and device numbers that EC2 needs."""
    groups: dict[str, str | None] = {f"NODES_T{at}": f"{kind} 0-2 us-west-2a" for at, kind in enumerate(EFA_TYPES)}
    outputs = deployed(NODES_G5=None, NODES_P4D=None, NODES_P5=None, **groups)
    for at, kind in enumerate(EFA_TYPES):
        data = launch_template(session, outputs[f"T{at}LaunchTemplate"])
        cards = data["NetworkInterfaces"]
        listed = session.call("ec2", "describe_instance_types", InstanceTypes=[kind])["InstanceTypes"]
        network = listed[0]["NetworkInfo"]
        kinds = [one["InterfaceType"] for one in cards]
        # p6-b300 has one card more than EFA interfaces, the first.
        plain = network["MaximumNetworkCards"] - network["EfaInfo"]["MaximumEfaInterfaces"]
        assert kinds == ["interface"] * plain + ["efa"] * INSTANCES[kind].efa, kind
        assert [one["NetworkCardIndex"] for one in cards] == list(range(len(cards)))
        assert [one["DeviceIndex"] for one in cards] == [0] + [1] * (len(cards) - 1)
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


def test_nodes_are_open_to_themselves_and_not_to_the_internet(
    session: Session, deployed: Callable[..., dict[str, Any]]
) -> None:
    outputs = deployed()
    ids = [outputs["NodeSecurityGroup"], outputs["FileSystemSecurityGroup"]]
    nodes, files = (
        next(one for one in session.call("ec2", "describe_security_groups")["SecurityGroups"] if one["GroupId"] == id_)
        for id_ in ids
    )
    # moto's CloudFormation has no egress rules, so these are read from the template.
    egress = stack.template(specs.load(repo.root(), "gpu"))["Resources"]["NodesAmongThemselvesOut"]["Properties"]
    assert egress["DestinationSecurityGroupId"] == egress["GroupId"] == {"Ref": "NodeSecurityGroup"}
    peers = [
        pair["GroupId"]
        for rule in nodes["IpPermissions"]
        if rule["IpProtocol"] == "-1"
        for pair in rule["UserIdGroupPairs"]
    ]
    assert nodes["GroupId"] in peers
    for group in (nodes, files):
        assert [rule["IpRanges"] for rule in group["IpPermissions"] if rule["IpRanges"]] == []
    ports = {
        (rule["FromPort"], rule["ToPort"], pair["GroupId"])
        for rule in files["IpPermissions"]
        for pair in rule["UserIdGroupPairs"]
    }
    control_plane = specs.load(repo.root(), "gpu").need("CLUSTER_SECURITY_GROUP_IDS")
    wanted = [*ids, control_plane]  # the last is the group of eksctl's nodes
    assert ports == {(first, last, id_) for first, last in ((988, 988), (1018, 1023)) for id_ in wanted}


def test_a_reservation_replaces_the_placement_group(session: Session, deployed: Callable[..., dict[str, Any]]) -> None:
    outputs = deployed()
    template = stack.template(specs.load(repo.root(), "gpu"))["Resources"]
    assert "P4dPlacementGroup" in template
    assert "P5PlacementGroup" not in template
    data = launch_template(session, outputs["P5LaunchTemplate"])
    target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target["CapacityReservationId"] == "cr-0123456789abcdef0"
    assert data["InstanceMarketOptions"]["MarketType"] == "capacity-block"


def test_a_second_deployment_is_an_update(session: Session, deployed: Callable[..., dict[str, Any]]) -> None:
    deployed()
    rows = session.call("cloudformation", "describe_stacks")["Stacks"]
    assert [row["StackName"] for row in rows] == ["trainyard-gpu"]
    assert {"Key": "trainyard/cluster", "Value": "us-west-2/gpu"} in rows[0]["Tags"]


def test_without_a_vpc_nothing_is_created(session: Session, change: Change) -> None:
    with pytest.raises(UserError, match="CLUSTER_VPC_ID is not set"):
        stack.deploy(session, change("gpu"))
    assert session.call("cloudformation", "describe_stacks")["Stacks"] == []


def test_a_cluster_without_efa_needs_no_stack(yard: Yard) -> None:
    ran = yard("stack", "cpu-demo")
    assert (ran.code, "no node group uses EFA" in ran.err) == (2, True)
