"""Checks the network of a cluster's nodes: security groups, zones, placement, CNI, pods per node."""

import ipaddress
import json
import re
from dataclasses import dataclass
from functools import partial

from tools.aws import AwsError, Session
from tools.aws.policies import OWNER_TAG, owner
from tools.cluster import node_checks
from tools.cluster.finding import Finding, bad, good, run, unknown, warn
from tools.cluster.inventory import LIVE
from tools.cluster.node_checks import is_on_ec2
from tools.cluster.ownership import need_cluster
from tools.cluster.snapshot import DAEMONS, Snapshot
from tools.cluster.spec import Spec
from tools.core import State
from tools.facts.instances import INSTANCES
from tools.kube import Object

SSH = 22
# FSx for Lustre user guide, file system access control: 988 and 1018-1023, between clients and servers.
LUSTRE_PORTS = ((988, 988), (1018, 1023))
# Ranges with a shorter prefix count as the whole internet, for it can also be opened in halves.
WORLD_BITS = {4: 8, 6: 16}
# The first version that supports EFA-only interfaces (EKS user guide, machine learning with EFA).
CNI_FOR_EFA = (1, 18, 5)
FEW_PODS = 20  # daemons on a node take up to a dozen
PREFIX_PODS = 16  # addresses of a /28 prefix
# The vCPUs up to which kubelet gets the first limit of pods, that limit, and the limit above (EKS user guide,
# choosing an instance type).
MOST_PODS = (30, 110, 250)
PREFIX_ENV = {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}


# What the API server shows of the network: the finding, the kind of object, the check.
VISIBLE = (
    ("zone", "nodes", node_checks.zones),
    ("cni", DAEMONS, node_checks.network_plugin),
    ("pods", "pods", node_checks.pod_capacity),
)


@dataclass(frozen=True)
class Seen:
    """The cluster as EKS describes it, its nodes, and their security groups."""

    cluster: Object
    nodes: list[Object]
    groups: list[Object]

    @property
    def group_ids(self) -> set[str]:
        return {str(one["GroupId"]) for one in self.groups}


def observe(session: Session, spec: Spec) -> Seen:
    """Read cluster and nodes; without nodes, the security groups of the cluster. Raises AwsError."""
    cluster = need_cluster(session, spec)
    tags = dict.fromkeys(("eks:cluster-name", "aws:eks:cluster-name"), spec.name)
    nodes: dict[str, Object] = {}
    for key, value in (tags | {OWNER_TAG: owner(session.region, spec.name)}).items():
        filters = {f"tag:{key}": [value], "instance-state-name": list(LIVE[:2])}
        for row in session.ec2("Reservations", filters):
            nodes |= {one["InstanceId"]: one for one in row["Instances"]}
    ids = {one["GroupId"] for node in nodes.values() for one in node.get("SecurityGroups") or []}
    vpc = cluster["resourcesVpcConfig"]
    ids = ids or {vpc.get("clusterSecurityGroupId"), *(vpc.get("securityGroupIds") or [])} - {None}
    groups = session.call("ec2", "describe_security_groups", GroupIds=sorted(ids))["SecurityGroups"] if ids else []
    return Seen(cluster, list(nodes.values()), groups)


def check(session: Session, spec: Spec) -> list[Finding]:
    """Return the findings. Raises AwsError where the cluster does not exist or AWS denies everything."""
    seen = observe(session, spec)
    found = [
        run("itself", lambda: itself(seen)),
        run("ssh", lambda: ssh(session, seen)),
        run("zone", lambda: zones(seen)),
        run("cni", lambda: cni(session, spec)),
    ]
    if spec.get("FSX_FILE_SYSTEM_ID"):
        found.append(run("lustre", lambda: lustre(session, spec, seen)))
    kinds = sorted({str(node["InstanceType"]) for node in seen.nodes})
    return found + [run(f"pods {kind}", partial(pods, session, spec, kind)) for kind in kinds]


def check_context(session: Session, spec: Spec, snapshot: Snapshot) -> list[Finding]:
    """Return the findings with only a context: AWS's on EKS, and what the API server shows."""
    hidden: tuple[str, str | None] = ("the API server does not show the firewall of the nodes", None)
    if any(map(is_on_ec2, snapshot.of("nodes"))):
        hidden = (f"{spec.source} does not name its EKS cluster", "yard cluster network CLUSTER")
    if spec.get("CLUSTER_NAME"):
        try:
            return check(session, spec)
        except AwsError as problem:
            hidden = (problem.message, problem.hint)
    found = [
        *(unknown(name, *hidden) for name in ("itself", "ssh")),
        *(unknown(name, snapshot.unseen[kind]) if kind in snapshot.unseen else ask(spec, snapshot)
          for name, kind, ask in VISIBLE),
    ]  # fmt: skip
    return [one for one in found if one is not None]


def itself(seen: Seen) -> Finding:
    """Check for a security group, shared by all nodes, that allows all traffic to and from itself."""
    if not seen.groups:
        return unknown("itself", "the nodes have no security group")
    rules = [(one["GroupId"], one["IpPermissions"], one["IpPermissionsEgress"]) for one in seen.groups]
    ways = [
        (number, [{one.get("IpProtocol") for one in way if _from(one, {number})} for way in both])
        for number, *both in rules
    ]
    held = [{one["GroupId"] for one in node.get("SecurityGroups") or []} for node in seen.nodes]
    shared = [
        number for number, open_ in ways if all("-1" in one for one in open_) and all(number in one for one in held)
    ]
    names = ", ".join(sorted(seen.group_ids))
    if shared:
        return good("itself", f"{shared[0]} allows all traffic to and from itself, and every node has it")
    summary = f"no shared security group allows all traffic to and from itself: {names}"
    return bad("itself", summary, "allow it in one group of all nodes (yard cluster stack creates such a group)")


def ssh(session: Session, seen: Seen) -> Finding:
    """Check that port 22 is closed to the internet, in ranges and in prefix lists."""
    lines = []
    for group in seen.groups:
        for rule in (one for one in group["IpPermissions"] if _covers(one, SSH, SSH)):
            every = rule.get("IpProtocol") == "-1"
            ports = "all ports" if every else f"ports {rule['FromPort']}-{rule['ToPort']}"
            for cidr in (*_cidrs(rule), *_listed(session, rule)):
                found = ipaddress.ip_network(cidr, strict=False)
                if found.prefixlen < WORLD_BITS[found.version]:
                    lines.append(f"{group['GroupId']}: {cidr} can reach {ports}")
    if lines:
        remedy = "remove the rule; aws ssm start-session needs no open port"
        return bad("ssh", "SSH is open to the internet", remedy, *lines)
    return good("ssh", "SSH is closed to the internet")


def zones(seen: Seen) -> Finding:
    """Check that the nodes of each type with EFA are in one zone and one placement group."""
    groups: dict[str, list[Object]] = {}
    for node in seen.nodes:
        found = INSTANCES.get(node["InstanceType"])
        if found and found.efa and found.accelerators:
            groups.setdefault(node["InstanceType"], []).append(node)
    lines, loose = [], False
    there = {kind: {str(one["Placement"].get("AvailabilityZone")) for one in nodes} for kind, nodes in groups.items()}
    for kind, nodes in sorted(groups.items()):
        places = {str(node["Placement"].get("GroupName") or "") for node in nodes}
        loose |= len(nodes) > 1 and (len(places) > 1 or places == {""})
        shown = ", ".join(sorted(places)) or "none"
        lines.append(f"{len(nodes)} of {kind}: {', '.join(sorted(there[kind]))}; placement group {shown}")
    judged = node_checks.one_zone(there, lines)
    if loose and judged.state is State.PASS:
        summary = "nodes do not share a placement group: more network hops between them"
        return warn("zone", summary, "use a cluster placement group", *lines)
    return judged


def cni(session: Session, spec: Spec) -> Finding:
    addon = _cni(session, spec)
    if addon is None:
        return unknown("cni", "the VPC CNI is not an EKS add-on here, so AWS does not know its version")
    version = str(addon.get("addonVersion"))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    prefixes = "with prefix delegation" if _has_prefixes(addon) else "without prefix delegation"
    if any(group.efa for group in spec.groups) and numbers < CNI_FOR_EFA:
        wanted = ".".join(map(str, CNI_FOR_EFA))
        summary = f"vpc-cni {version} is older than {wanted}, which EFA-only interfaces need"
        return bad("cni", summary, "update the add-on")
    if str(addon["values"].get("enableNetworkPolicy", "")).lower() != "true":
        summary = f"vpc-cni {version} does not enforce NetworkPolicies"
        remedy = "set enableNetworkPolicy of the add-on to true"
        if not spec.adopted:
            return bad("cni", summary, remedy)
        return unknown("cni", f"{summary}; another plugin may", f"{remedy}, or try: yard cluster validate")
    return good("cni", f"vpc-cni {version}, {prefixes}, enforces NetworkPolicies")


def lustre(session: Session, spec: Spec, seen: Seen) -> Finding:
    """Check that nodes can reach the file system at the ports of Lustre."""
    number = spec.need("FSX_FILE_SYSTEM_ID")
    found = session.find("fsx", "describe_file_systems", FileSystemIds=[number])
    if found is None:
        return bad(
            "lustre", f"the file system {number} does not exist", f"yard cluster init {spec.title} --eks {spec.name}"
        )
    (row,) = found["FileSystems"]
    interfaces = row.get("NetworkInterfaceIds") or []
    homes = [seen.cluster["resourcesVpcConfig"].get("vpcId"), *(one.get("VpcId") for one in seen.nodes)]
    home = next((one for one in homes if one), None)
    if home and row.get("VpcId", home) != home:
        remedy = "use a file system in the nodes' VPC, or peer the VPCs with routes and open ports"
        return warn("lustre", f"{number} is in {row['VpcId']}, but the nodes are in {home}", remedy)
    if not interfaces:
        return unknown("lustre", f"{number} has no network interface")
    rows = session.call("ec2", "describe_network_interfaces", NetworkInterfaceIds=interfaces)
    ids = sorted({one["GroupId"] for found in rows["NetworkInterfaces"] for one in found["Groups"]})
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
    """Check how many pods a node of a type has addresses for."""
    row = session.call("ec2", "describe_instance_types", InstanceTypes=[kind])["InstanceTypes"][0]
    plain, prefixed = pod_counts(row)
    addon = _cni(session, spec)
    delegated = addon is not None and _has_prefixes(addon)
    count = prefixed if delegated else plain
    if count < FEW_PODS and not delegated:
        remedy = f"yard cluster network {spec.title} --prefix-delegation on"
        return warn(f"pods {kind}", f"{count} pods per node; {prefixed} with prefix delegation", remedy)
    return good(f"pods {kind}", f"{count} pods per node")


def pod_counts(instance_type: Object) -> tuple[int, int]:
    """Return how many pods a node has addresses for, without and with prefix delegation.

    One address of each interface is its own; 2 more pods use the host's network; kubelet has a limit (EKS
    user guide, choosing an instance type).
    """
    network = instance_type["NetworkInfo"]
    slots = network["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1)
    few, small, large = MOST_PODS
    most = small if instance_type["VCpuInfo"]["DefaultVCpus"] <= few else large
    return min(slots + 2, most), min(slots * PREFIX_PODS + 2, most)


def set_prefixes(session: Session, spec: Spec, on: bool) -> str:
    """Turn prefix delegation on or off in the configuration of the add-on and return the result.

    Other values stay. Raises AwsError where the CNI is not an add-on.
    """
    addon = _cni(session, spec)
    if addon is None:
        hint = "kubectl set env daemonset aws-node -n kube-system"
        raise AwsError("refused", "the VPC CNI is not an EKS add-on here", hint)
    values = addon["values"]
    env = {key: value for key, value in (values.get("env") or {}).items() if key not in PREFIX_ENV}
    env |= PREFIX_ENV if on else {}
    new = {key: value for key, value in values.items() if key != "env"} | ({"env": env} if env else {})
    if new == values:
        return f"prefix delegation is already {'on' if on else 'off'}"
    parameters = {"clusterName": spec.name, "addonName": "vpc-cni", "configurationValues": json.dumps(new)}
    session.call("eks", "update_addon", **parameters, resolveConflicts="PRESERVE")
    found = (_cni(session, spec) or {"values": {}})["values"]
    if found != new:
        message = f"EKS accepted the change, but the add-on has {json.dumps(found)}"
        raise AwsError("refused", message, "repeat the command")
    return f"prefix delegation is {'on' if on else 'off'} for nodes that start from now on"


def _cni(session: Session, spec: Spec) -> Object | None:
    """Return the add-on with its configuration as `values`, or None where the CNI is not an add-on."""
    found: Object | None = session.get("eks", "describe_addon", "addon", clusterName=spec.name, addonName="vpc-cni")
    return found and {**found, "values": json.loads(found.get("configurationValues") or "{}")}


def _has_prefixes(addon: Object) -> bool:
    return str((addon["values"].get("env") or {}).get("ENABLE_PREFIX_DELEGATION", "")).lower() == "true"


def _from(rule: Object, groups: set[str]) -> bool:
    return any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs") or [])


def _covers(rule: Object, first: int, last: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    is_tcp = rule.get("IpProtocol") == "tcp"
    return bool(is_tcp and rule.get("FromPort", 0) <= first and last <= rule.get("ToPort", 0))


def _cidrs(rule: Object) -> list[str]:
    v4 = [one["CidrIp"] for one in rule.get("IpRanges") or []]
    return v4 + [one["CidrIpv6"] for one in rule.get("Ipv6Ranges") or []]


def _listed(session: Session, rule: Object) -> list[str]:
    """Return the ranges in the prefix lists of a rule. Raises AwsError."""
    ids = [one["PrefixListId"] for one in rule.get("PrefixListIds") or []]
    listing = ("ec2", "get_managed_prefix_list_entries", "Entries")
    return [str(entry["Cidr"]) for id_ in ids for entry in session.pages(*listing, PrefixListId=id_)]


def _has_all(cidrs: list[str], addresses: list[str]) -> bool:
    """Return whether there are addresses and each of them is in one of the ranges."""
    ranges = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]
    found = [ipaddress.ip_address(one) for one in addresses]
    return bool(found) and all(any(one in network for network in ranges) for one in found)
