"""Is the network of a cluster's nodes fit for a job: security groups, zones, placement, CNI, pods."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.aws.session import AwsError, Session
from tools.cluster.finding import Finding, bad, good, look, unclear, warn
from tools.cluster.inventory import LIVE, describe_cluster
from tools.cluster.spec import Spec
from tools.cluster.stack import LUSTRE_PORTS
from tools.facts.instances import INSTANCES
from tools.kube.manifests import Object

SSH = 22
# A public range this large is nobody's own: two halves of the internet are the world as well.
WORLD_BITS = {4: 8, 6: 16}
# EKS user guide, machine learning with EFA: from 1.18.5 on also interfaces that carry EFA only.
CNI_FOR_EFA = (1, 18, 5)
FEW_PODS = 20  # a node's own daemons take up to a dozen
PREFIX_PODS = 16  # addresses of a /28 prefix
# EKS user guide, choosing an instance type: what kubelet is told on machines of up to 30 vCPUs, and above.
MOST_PODS = (30, 110, 250)
PREFIX_ENV = {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}


@dataclass(frozen=True)
class Seen:
    """The cluster as EKS has it, its nodes, and the nodes' security groups."""

    cluster: Object
    nodes: list[Object]
    groups: list[Object]

    @property
    def group_ids(self) -> set[str]:
        """Return the ids of the nodes' security groups."""
        return {str(one["GroupId"]) for one in self.groups}


def observe(session: Session, spec: Spec) -> Seen:
    """Return what is there; before the first node, the cluster's own security groups. Raises AwsError."""
    cluster = describe_cluster(session, spec)
    if cluster is None:
        raise AwsError("missing", f"there is no EKS cluster {spec.name} in {session.region}", None)
    keys = ("trainyard/cluster", "eks:cluster-name", "aws:eks:cluster-name")
    nodes: dict[str, Object] = {}
    for key in keys:
        filters = [
            {"Name": f"tag:{key}", "Values": [spec.name]},
            {"Name": "instance-state-name", "Values": list(LIVE[:2])},
        ]
        for row in session.pages("ec2", "describe_instances", "Reservations", Filters=filters):
            nodes |= {one["InstanceId"]: one for one in row["Instances"]}
    ids = {one["GroupId"] for node in nodes.values() for one in node.get("SecurityGroups") or []}
    vpc = cluster["resourcesVpcConfig"]
    ids = ids or {vpc.get("clusterSecurityGroupId"), *(vpc.get("securityGroupIds") or [])} - {None}
    groups = (
        session.call("ec2", "describe_security_groups", GroupIds=sorted(ids))["SecurityGroups"] if ids else []
    )
    return Seen(cluster, list(nodes.values()), groups)


def judge(session: Session, spec: Spec) -> list[Finding]:
    """Return the findings. Raises AwsError where there is no such cluster, or nothing may be seen."""
    seen = observe(session, spec)
    found = [
        look("itself", lambda: itself(seen)),
        look("ssh", lambda: ssh(session, seen)),
        look("zone", lambda: together(seen)),
        look("cni", lambda: cni(session, spec)),
    ]
    if spec.get("FSX_FILE_SYSTEM_ID"):
        found.append(look("lustre", lambda: lustre(session, spec, seen)))
    kinds = sorted({str(node["InstanceType"]) for node in seen.nodes})
    return found + [look(f"pods {kind}", lambda kind=kind: pods(session, spec, kind)) for kind in kinds]  # type: ignore[misc]


def itself(seen: Seen) -> Finding:
    """Judge whether nodes reach one another whole, in and out; that the world is open to them is not it."""
    if not seen.groups:
        return unclear("itself", "no security group of the nodes was found")
    open_ = [
        one["GroupId"]
        for one in seen.groups
        if all(_all_of(one[way], one["GroupId"]) for way in ("IpPermissions", "IpPermissionsEgress"))
    ]
    shared = [
        number
        for number in open_
        if all(number in {one["GroupId"] for one in node.get("SecurityGroups") or []} for node in seen.nodes)
    ]
    names = ", ".join(sorted(seen.group_ids))
    if shared:
        return good("itself", f"{shared[0]} lets everything pass from and to itself, and every node has it")
    remedy = (
        "allow all traffic from and to the group itself, in both directions (yard cluster stack makes one)"
    )
    return bad(
        "itself", f"no security group that all nodes share is open to itself both ways: {names}", remedy
    )


def ssh(session: Session, seen: Seen) -> Finding:
    """Judge whether the world may knock at port 22: by a range, or by one of a prefix list."""
    lines = [
        f"{group['GroupId']}: {cidr} may reach {_ports(rule)}"
        for group in seen.groups
        for rule in group["IpPermissions"]
        if _covers(rule, SSH, SSH)
        for cidr in (*_cidrs(rule), *_listed(session, rule))
        if _is_world(cidr)
    ]
    if lines:
        return bad(
            "ssh", "SSH is open to the world", "remove the rule: aws ssm start-session needs no port", *lines
        )
    return good("ssh", "no security group of the nodes lets the world in")


def together(seen: Seen) -> Finding:
    """Judge whether the nodes of each type that speaks EFA are in one zone and placed together."""
    groups: dict[str, list[Object]] = {}
    for node in seen.nodes:
        found = INSTANCES.get(node["InstanceType"])
        if found and found.efa and found.accelerators:
            groups.setdefault(node["InstanceType"], []).append(node)
    if not groups:
        return good("zone", "no node that speaks EFA runs")
    lines, apart, loose = [], False, False
    for kind, nodes in sorted(groups.items()):
        zones = {str(node["Placement"].get("AvailabilityZone")) for node in nodes}
        places = {str(node["Placement"].get("GroupName") or "") for node in nodes}
        apart |= len(zones) > 1
        loose |= len(nodes) > 1 and (len(places) > 1 or places == {""})
        shown = ", ".join(sorted(places)) or "none"
        lines.append(f"{len(nodes)} of {kind}: {', '.join(sorted(zones))}; placement group {shown}")
    if apart:
        return bad(
            "zone",
            "nodes that speak EFA are in several zones",
            "EFA does not cross zones: one zone a group",
            *lines,
        )
    if loose:
        return warn(
            "zone",
            "nodes are not placed together: more hops between them",
            "a cluster placement group",
            *lines,
        )
    return good("zone", "each type is in one zone", *lines)


def cni(session: Session, spec: Spec) -> Finding:
    """Judge the VPC CNI add-on's version, and say whether it gives out prefixes."""
    addon = _cni(session, spec)
    if addon is None:
        return unclear("cni", "the VPC CNI is no add-on of EKS here, so its version is not known from AWS")
    version = str(addon.get("addonVersion"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    prefixes = "with prefix delegation" if _has_prefixes(addon) else "without prefix delegation"
    if any(group.efa for group in spec.groups) and numbers < CNI_FOR_EFA:
        wanted = ".".join(map(str, CNI_FOR_EFA))
        return bad(
            "cni", f"vpc-cni {version} is older than {wanted}, which EFA-only interfaces need", "update it"
        )
    return good("cni", f"vpc-cni {version}, {prefixes}")


def lustre(session: Session, spec: Spec, seen: Seen) -> Finding:
    """Judge whether nodes reach the file system at Lustre's ports."""
    number = spec.need("FSX_FILE_SYSTEM_ID")
    try:
        row = session.call("fsx", "describe_file_systems", FileSystemIds=[number])["FileSystems"][0]
    except AwsError as problem:
        if problem.kind != "missing":
            raise
        return bad("lustre", f"there is no file system {number}", f"yard cluster facts {spec.title}")
    interfaces = row.get("NetworkInterfaceIds") or []
    homes = [seen.cluster["resourcesVpcConfig"].get("vpcId"), *(one.get("VpcId") for one in seen.nodes)]
    home = next((one for one in homes if one), None)
    if home and row.get("VpcId", home) != home:
        remedy = "a file system in the nodes' VPC, or a peering of both with routes and ports open"
        return warn("lustre", f"{number} is in {row['VpcId']}, and the nodes are in {home}", remedy)
    if not interfaces:
        return unclear("lustre", f"{number} names no network interface")
    rows = session.call("ec2", "describe_network_interfaces", NetworkInterfaceIds=interfaces)[
        "NetworkInterfaces"
    ]
    ids = sorted({one["GroupId"] for found in rows for one in found["Groups"]})
    groups = session.call("ec2", "describe_security_groups", GroupIds=ids)["SecurityGroups"]
    rules = [rule for group in groups for rule in group["IpPermissions"]]
    clients = [str(node["PrivateIpAddress"]) for node in seen.nodes if node.get("PrivateIpAddress")]
    rules = [rule for rule in rules if _from(rule, seen.group_ids) or _has_all(_cidrs(rule), clients)]
    closed = [
        f"{first}-{last}" if first != last else str(first)
        for first, last in LUSTRE_PORTS
        if not all(any(_covers(rule, port, port) for rule in rules) for port in range(first, last + 1))
    ]
    if closed:
        remedy = f"allow TCP {', '.join(closed)} from {', '.join(sorted(seen.group_ids))}"
        return bad("lustre", f"{number} does not let the nodes in at {', '.join(closed)}", remedy, *ids)
    return good("lustre", f"{number} lets the nodes in at Lustre's ports")


def pods(session: Session, spec: Spec, kind: str) -> Finding:
    """Say how many pods a node of a type has addresses for, with prefixes and without."""
    row = session.call("ec2", "describe_instance_types", InstanceTypes=[kind])["InstanceTypes"][0]
    plain, prefixed = pod_counts(row)
    addon = _cni(session, spec)
    delegated = addon is not None and _has_prefixes(addon)
    count = prefixed if delegated else plain
    if count < FEW_PODS and not delegated:
        remedy = f"yard cluster network {spec.title} --prefix-delegation on (off takes it back)"
        return warn(f"pods {kind}", f"{count} pods a node; {prefixed} with prefix delegation", remedy)
    return good(f"pods {kind}", f"{count} pods a node")


def pod_counts(instance_type: Object) -> tuple[int, int]:
    """Return how many pods a node has addresses for: one each, and with a prefix of 16 for each.

    EKS user guide, choosing an instance type: interfaces times addresses but one, and 2 for pods on the
    host's network; no more than kubelet is told.
    """
    network = instance_type["NetworkInfo"]
    slots = network["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1)
    few, small, large = MOST_PODS
    most = small if instance_type["VCpuInfo"]["DefaultVCpus"] <= few else large
    return min(slots + 2, most), min(slots * PREFIX_PODS + 2, most)


def set_prefixes(session: Session, spec: Spec, on: bool) -> str:
    """Switch prefix delegation on or off in the add-on's configuration; everything else in it stays.

    Returns what changed. Raises AwsError where the CNI is no add-on.
    """
    addon = _cni(session, spec)
    if addon is None:
        raise AwsError(
            "refused",
            "the VPC CNI is no add-on of EKS here",
            "kubectl set env daemonset aws-node -n kube-system",
        )
    values = json.loads(addon.get("configurationValues") or "{}")
    env = {key: value for key, value in (values.get("env") or {}).items() if key not in PREFIX_ENV}
    env |= PREFIX_ENV if on else {}
    new = {key: value for key, value in values.items() if key != "env"} | ({"env": env} if env else {})
    if new == values:
        return f"prefix delegation is {'on' if on else 'off'} already"
    text = json.dumps(new)
    parameters = {"clusterName": spec.name, "addonName": "vpc-cni", "configurationValues": text}
    session.call("eks", "update_addon", **parameters, resolveConflicts="PRESERVE")
    found = json.loads((_cni(session, spec) or {}).get("configurationValues") or "{}")
    if found != new:
        raise AwsError("refused", f"EKS took the change, and the add-on has {json.dumps(found)}", "repeat it")
    return f"prefix delegation is {'on' if on else 'off'}; nodes that start from now on have it so"


def _cni(session: Session, spec: Spec) -> Object | None:
    try:
        found: Object = session.call("eks", "describe_addon", clusterName=spec.name, addonName="vpc-cni")[
            "addon"
        ]
    except AwsError as problem:
        if problem.kind == "missing":
            return None
        raise
    return found


def _has_prefixes(addon: Object) -> bool:
    values = json.loads(addon.get("configurationValues") or "{}")
    return str((values.get("env") or {}).get("ENABLE_PREFIX_DELEGATION", "")).lower() == "true"


def _all_of(rules: Iterable[Object], group: str) -> bool:
    return any(rule.get("IpProtocol") == "-1" and _from(rule, {group}) for rule in rules)


def _from(rule: Object, groups: set[str]) -> bool:
    return any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs") or [])


def _covers(rule: Object, first: int, last: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    return (
        rule.get("IpProtocol") == "tcp" and rule.get("FromPort", 0) <= first and last <= rule.get("ToPort", 0)
    )


def _cidrs(rule: Object) -> list[str]:
    v4 = [one["CidrIp"] for one in rule.get("IpRanges") or []]
    return v4 + [one["CidrIpv6"] for one in rule.get("Ipv6Ranges") or []]


def _listed(session: Session, rule: Object) -> list[str]:
    """Return the ranges in the prefix lists of a rule. Raises AwsError where they may not be seen."""
    return [
        str(entry["Cidr"])
        for one in rule.get("PrefixListIds") or []
        for entry in session.pages(
            "ec2", "get_managed_prefix_list_entries", "Entries", PrefixListId=one["PrefixListId"]
        )
    ]


def _is_world(cidr: str) -> bool:
    found = ipaddress.ip_network(cidr, strict=False)
    return found.prefixlen < WORLD_BITS[found.version]


def _has_all(cidrs: list[str], addresses: list[str]) -> bool:
    """Say whether every address lies in one of the ranges; of no address it is not known."""
    ranges = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]
    found = [ipaddress.ip_address(one) for one in addresses]
    return bool(found) and all(any(one in network for network in ranges) for one in found)


def _ports(rule: Object) -> str:
    return "every port" if rule.get("IpProtocol") == "-1" else f"ports {rule['FromPort']}-{rule['ToPort']}"
