"""The nodes' network in moto: each planted fault is found, and its control passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.aws.account import Network, make_cluster, make_group, make_network, make_nodes
from tests.aws.conftest import Change, Gaps, Yard, refusal
from tools.aws.session import Session
from tools.cluster import network
from tools.cluster.finding import Finding
from tools.cluster.spec import Spec
from tools.core.verdict import State

ZONES = ["us-west-2a", "us-west-2b"]


class Addon:
    """The VPC CNI add-on, which moto lacks."""

    def __init__(self, gaps: Gaps, version: str = "v1.21.1-eksbuild.8") -> None:
        values = '{"x": 1, "enableNetworkPolicy": "true"}'
        self.row = {"addonName": "vpc-cni", "addonVersion": version, "configurationValues": values}
        gaps["eks", "describe_addon"] = lambda **_: {"addon": self.row}
        gaps["eks", "update_addon"] = self.update

    def update(self, clusterName: str, addonName: str, configurationValues: str, **_: Any) -> dict[str, Any]:
        self.row["configurationValues"] = configurationValues
        return {"update": {"id": "1"}}


@pytest.fixture
def net(session: Session, gaps: Gaps) -> Network:
    """A cluster `gpu` in two zones, with the add-on."""
    Addon(gaps)
    made = make_network(session, ZONES)
    make_cluster(session, "gpu", made)
    return made


@pytest.fixture
def spec(change: Change) -> Spec:
    return change("gpu", FSX_FILE_SYSTEM_ID=None)


def findings(session: Session, spec: Spec) -> dict[str, Finding]:
    return {one.name: one for one in network.check(session, spec)}


def allow(session: Session, group: str, *, egress: bool = False, **rule: Any) -> None:
    way = "egress" if egress else "ingress"
    session.call("ec2", f"authorize_security_group_{way}", GroupId=group, IpPermissions=[rule])


def test_a_good_network_passes(net: Network, session: Session, spec: Spec) -> None:
    make_nodes(session, "p4d.24xlarge", 1, net, "us-west-2a", trainyard__cluster="us-west-2/gpu")
    found = findings(session, spec)
    assert {one.state for one in found.values()} == {State.PASS}, found
    assert "every node has it" in found["itself"].summary


def test_nodes_without_a_group_open_to_itself(net: Network, session: Session, spec: Spec) -> None:
    """A group that only allows all outgoing traffic, as new groups do, is not open to itself."""
    (node,) = make_nodes(session, "p4d.24xlarge", 1, net, "us-west-2a", trainyard__cluster="us-west-2/gpu")
    other = make_group(session, net.vpc, "other")
    itself: dict[str, Any] = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]}
    allow(session, other, **itself)
    session.call("ec2", "modify_instance_attribute", InstanceId=node, Groups=[other])
    assert findings(session, spec)["itself"].state is State.FAIL
    allow(session, other, egress=True, **itself)
    assert findings(session, spec)["itself"].state is State.PASS


@pytest.mark.parametrize(
    ("protocol", "first", "last", "cidr", "level"),
    [
        ("tcp", 22, 22, "0.0.0.0/0", State.FAIL),
        ("tcp", 0, 65535, "::/0", State.FAIL),
        ("-1", None, None, "0.0.0.0/0", State.FAIL),
        ("tcp", 20, 25, "128.0.0.0/1", State.FAIL),
        ("tcp", 22, 22, "203.0.113.0/24", State.PASS),
        ("udp", 0, 65535, "0.0.0.0/0", State.PASS),
        ("tcp", 22, 22, "10.0.0.0/8", State.PASS),
        ("tcp", 443, 443, "0.0.0.0/0", State.PASS),
    ],
)
def test_ssh_from_the_internet(
    net: Network,
    session: Session,
    spec: Spec,
    protocol: str,
    first: int | None,
    last: int | None,
    cidr: str,
    level: State,
) -> None:
    rule: dict[str, Any] = {} if first is None else {"FromPort": first, "ToPort": last}
    rule |= {"Ipv6Ranges": [{"CidrIpv6": cidr}]} if ":" in cidr else {"IpRanges": [{"CidrIp": cidr}]}
    allow(session, net.group, IpProtocol=protocol, **rule)
    assert findings(session, spec)["ssh"].state is level


def test_ssh_from_the_internet_through_a_prefix_list(net: Network, session: Session, spec: Spec, gaps: Gaps) -> None:
    def listed(*cidrs: str) -> str:
        entries = [{"Cidr": cidr} for cidr in cidrs]
        shape = {"AddressFamily": "IPv4", "MaxEntries": 5, "PrefixListName": "l"}
        made = session.call("ec2", "create_managed_prefix_list", **shape, Entries=entries)
        return str(made["PrefixList"]["PrefixListId"])

    office = [{"PrefixListId": listed("203.0.113.0/24")}]
    allow(session, net.group, IpProtocol="tcp", FromPort=22, ToPort=22, PrefixListIds=office)
    assert findings(session, spec)["ssh"].state is State.PASS
    world = [{"PrefixListId": listed("203.0.113.0/24", "0.0.0.0/0")}]
    allow(session, net.group, IpProtocol="tcp", FromPort=22, ToPort=22, PrefixListIds=world)
    assert findings(session, spec)["ssh"].state is State.FAIL
    gaps["ec2", "get_managed_prefix_list_entries"] = refusal("UnauthorizedOperation", "no", 403)
    assert findings(session, spec)["ssh"].state is State.CANNOT_TELL


def test_nodes_in_two_zones(net: Network, session: Session, spec: Spec) -> None:
    """A second zone is a fault only for nodes with EFA."""
    for zone in ZONES:
        make_nodes(session, "m5.large", 1, net, zone, trainyard__cluster="us-west-2/gpu")
    assert findings(session, spec)["zone"].state is State.PASS
    make_nodes(session, "p4d.24xlarge", 2, net, ZONES[0], trainyard__cluster="us-west-2/gpu")
    assert findings(session, spec)["zone"].state is State.WARN, "no placement group"
    make_nodes(session, "p4d.24xlarge", 1, net, ZONES[1], trainyard__cluster="us-west-2/gpu")
    assert findings(session, spec)["zone"].state is State.FAIL


@pytest.mark.parametrize(("version", "level"), [("v1.18.4-eksbuild.9", State.FAIL), ("v1.18.5-eksbuild.1", State.PASS)])
def test_an_old_cni(net: Network, session: Session, spec: Spec, gaps: Gaps, version: str, level: State) -> None:
    Addon(gaps, version)
    assert findings(session, spec)["cni"].state is level


@pytest.mark.parametrize("values", ["{}", '{"enableNetworkPolicy": "false"}', '{"enableNetworkPolicy": false}'])
@pytest.mark.parametrize(("adopted", "level"), [(None, State.FAIL), ("true", State.CANNOT_TELL)])
def test_a_cni_that_enforces_no_policy(
    net: Network, session: Session, change: Change, gaps: Gaps, values: str, adopted: str | None, level: State
) -> None:
    """In an adopted cluster another plugin may enforce them."""
    spec = change("gpu", FSX_FILE_SYSTEM_ID=None, ADOPTED=adopted)
    assert findings(session, spec)["cni"].state is State.PASS, "the control"
    Addon(gaps).row["configurationValues"] = values
    assert findings(session, spec)["cni"].state is level


def test_the_version_of_a_cni_without_addon_is_unknown(net: Network, session: Session, spec: Spec, gaps: Gaps) -> None:
    gaps["eks", "describe_addon"] = refusal("ResourceNotFoundException", "No addon", 404)
    assert findings(session, spec)["cni"].state is State.CANNOT_TELL


def test_lustre_ports(net: Network, session: Session, change: Change, gaps: Gaps) -> None:
    group = make_group(session, net.vpc, "files")
    made = session.call("ec2", "create_network_interface", SubnetId=net.subnets["us-west-2a"], Groups=[group])
    row = {
        "FileSystemId": "fs-0123456789abcdef0",
        "NetworkInterfaceIds": [made["NetworkInterface"]["NetworkInterfaceId"]],
    }
    gaps["fsx", "describe_file_systems"] = {"FileSystems": [row]}
    spec = change("gpu")
    closed = findings(session, spec)["lustre"]
    assert (closed.state, "988, 1018-1023" in closed.summary) == (State.FAIL, True)
    nodes = [{"GroupId": net.group}]
    allow(session, group, IpProtocol="tcp", FromPort=988, ToPort=988, UserIdGroupPairs=nodes)
    half = findings(session, spec)["lustre"]
    assert (half.state, "988" in half.summary.replace("1018-1023", "")) == (State.FAIL, False)
    allow(session, group, IpProtocol="tcp", FromPort=1018, ToPort=1023, UserIdGroupPairs=nodes)
    assert findings(session, spec)["lustre"].state is State.PASS
    session.call("ec2", "revoke_security_group_ingress", GroupId=group, IpPermissions=ingress(session, group))
    make_nodes(session, "m5.large", 1, net, "us-west-2a", trainyard__cluster="us-west-2/gpu")
    for first, last in ((988, 988), (1018, 1020), (1021, 1023)):
        assert findings(session, spec)["lustre"].state is State.FAIL
        subnets = [{"CidrIp": "10.0.0.0/16"}]
        allow(session, group, IpProtocol="tcp", FromPort=first, ToPort=last, IpRanges=subnets)
    assert findings(session, spec)["lustre"].state is State.PASS, "by the nodes' addresses"
    row["VpcId"] = "vpc-0fffffff"
    away = findings(session, spec)["lustre"]
    assert (away.state, "is in vpc-0fffffff, but the nodes are in" in away.summary) == (State.WARN, True)


def test_a_file_system_that_is_gone_is_a_fault(net: Network, session: Session, change: Change, gaps: Gaps) -> None:
    gaps["fsx", "describe_file_systems"] = refusal("FileSystemNotFound", "no such", 400)
    assert findings(session, change("gpu"))["lustre"].state is State.FAIL


def ingress(session: Session, group: str) -> list[dict[str, Any]]:
    found = session.call("ec2", "describe_security_groups", GroupIds=[group])["SecurityGroups"][0]
    rules: list[dict[str, Any]] = found["IpPermissions"]
    return rules


def test_room_for_pods(session: Session) -> None:
    """An m5.large has 3 interfaces of 10 addresses: 29 pods, as in EKS's list, or 110 with prefixes."""
    rows = session.call("ec2", "describe_instance_types", InstanceTypes=["m5.large", "p5.48xlarge"])
    counts = {row["InstanceType"]: network.pod_counts(row) for row in rows["InstanceTypes"]}
    assert counts["m5.large"] == (29, 110)
    assert counts["p5.48xlarge"][1] == 250


def test_prefixes_on_and_off_again(net: Network, session: Session, spec: Spec, gaps: Gaps, yard: Yard) -> None:
    addon = Addon(gaps)
    before = json.loads(addon.row["configurationValues"])
    on = yard("network", "gpu", "--prefix-delegation", "on")
    assert "prefix delegation is on for nodes that start" in on.err
    assert json.loads(addon.row["configurationValues"])["env"]["ENABLE_PREFIX_DELEGATION"] == "true"
    assert "with prefix delegation" in on.out
    assert "already on" in yard("network", "gpu", "--prefix-delegation", "on").err
    yard("network", "gpu", "--prefix-delegation", "off")
    assert json.loads(addon.row["configurationValues"]) == before


def test_without_a_cluster_there_is_no_verdict(session: Session, spec: Spec, yard: Yard) -> None:
    ran = yard("network", "gpu")
    assert (ran.code, "the EKS cluster gpu does not exist" in ran.err) == (2, True)
