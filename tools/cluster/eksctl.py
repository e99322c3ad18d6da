"""eksctl's ClusterConfig of a cluster, from its facts and the tables: `clusters/<name>/eksctl.yaml`.

Field names and what eksctl makes of them: eksctl v0.230.0, its JSON schema and pkg/cfn/builder.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import date
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from tools.aws.policies import OWNER_TAG
from tools.cluster import cells, service_accounts
from tools.cluster.access import policy_arn
from tools.cluster.service_accounts import ServiceAccount
from tools.cluster.spec import ROLE, SYSTEM, NodeGroup, Spec
from tools.core.errors import UserError
from tools.core.repo import nearest
from tools.facts.eks import ADDON_NAMES, ADDONS, VERSIONS

FILE = "eksctl.yaml"
SYSTEM_TYPE, SYSTEM_NODES = "m5.large", (2, 4)
# Without prefixes a node has room for as many pods as its interfaces have addresses (m5.large: 29); network
# policies are what base/pytorchjob keeps jobs apart with, and are off by default.
CNI_VALUES = (
    '{"enableNetworkPolicy": "true", "env": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}}'
)
RAID = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""

Document = dict[str, Any]


def text(spec: Spec, addons: Mapping[str, str] | None = None) -> str:
    """Return the file's text, with the command that makes it. Raises UserError as `document` does."""
    yaml = YAML()
    yaml.width = 110
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    stream.write(
        f"# Made by `yard cluster config {spec.title}` from cluster.env and tools/facts; change those.\n"
    )
    yaml.dump(document(spec, addons), stream)
    return stream.getvalue()


def document(spec: Spec, addons: Mapping[str, str] | None = None) -> Document:
    """Return the ClusterConfig; `addons` are versions by name, None takes the recorded ones.

    An adopted cluster's has what may be added to it: access, add-ons and pod identities, and no node group.
    Raises UserError where a fact is missing, or cannot work.
    """
    versions = _addons(spec, addons)
    result: Document = {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": spec.name,
            "region": spec.region,
            "version": spec.version,
            "tags": {OWNER_TAG: spec.name},
        },
        "accessConfig": _access(spec),
        "iam": {"podIdentityAssociations": [_association(one) for one in service_accounts.of(spec)]},
        "addons": [_addon(name, versions[name]) for name in ADDON_NAMES],
    }
    if spec.adopted:
        keep = ("eks-pod-identity-agent",)  # the others belong to whoever made the cluster
        result["addons"] = [one for one in result["addons"] if one["name"] in keep]
        return result
    cells.check(spec)
    result["vpc"] = _vpc(spec)
    if "id" not in result["vpc"]:
        result["availabilityZones"] = _cluster_zones(spec)
    result["cloudWatch"] = {"clusterLogging": {"enableTypes": ["audit", "authenticator"]}}
    result["managedNodeGroups"] = [_system_group(spec), *(_group(spec, one) for one in spec.groups)]
    return result


def support(spec: Spec, today: date) -> str | None:
    """Return what there is to say of the Kubernetes version's support, None in standard support.

    Raises UserError for a version that EKS does not offer, or has upgraded away.
    """
    found = VERSIONS.get(spec.version)
    at = spec.at("KUBERNETES_VERSION")
    offered = [name for name, row in VERSIONS.items() if row.standard_until >= today]
    if found is None:
        hint = f"in standard support: {', '.join(offered) or nearest(spec.version, VERSIONS)}"
        raise UserError(f"{at}: EKS {spec.version} is not in tools/facts/eks.yaml", hint)
    if found.extended_until < today:
        raise UserError(
            f"{at}: EKS ended all support of {spec.version} on {found.extended_until}",
            f"take {', '.join(offered)}",
        )
    if found.standard_until < today:
        return f"{spec.version} is in extended support, at a higher price, until {found.extended_until}"
    return None


def _addons(spec: Spec, given: Mapping[str, str] | None) -> Mapping[str, str]:
    versions = given if given is not None else ADDONS.get(spec.version)
    if versions is None:
        hint = f"yard cluster config {spec.title} --verify asks EKS; recorded: {', '.join(ADDONS)}"
        raise UserError(
            f"{spec.at('KUBERNETES_VERSION')}: no add-on versions are recorded for Kubernetes {spec.version}",
            hint,
        )
    return versions


def _access(spec: Spec) -> Document:
    """Return who may do what: administrators everything, the team's role its namespace."""
    entries = [_entry(spec, "ADMIN_ROLE_ARN", "admin", {"type": "cluster"})]
    if spec.get("TEAM_ROLE_ARN"):
        scope = {"type": "namespace", "namespaces": [spec.namespace]}
        entries.append(_entry(spec, "TEAM_ROLE_ARN", "edit", scope))
    if spec.adopted:
        return {"accessEntries": entries}
    return {
        "authenticationMode": "API",
        # eksctl itself talks to the new cluster: it installs the EFA plugin and service accounts.
        "bootstrapClusterCreatorAdminPermissions": True,
        "accessEntries": entries,
    }


def _entry(spec: Spec, fact: str, policy: str, scope: Document) -> Document:
    arn = spec.need(fact, ROLE, "the ARN of an IAM role or user (yard cluster whoami prints yours)")
    partition = arn.split(":")[1]
    if partition != spec.partition:
        raise UserError(f"{spec.at(fact)}: {arn} is of {partition}, and {spec.region} of {spec.partition}")
    granted = {"policyARN": policy_arn(partition, policy), "accessScope": scope}
    return {"principalARN": arn, "accessPolicies": [granted]}


def _association(account: ServiceAccount) -> Document:
    made = {"createServiceAccount": True} if account.made_here else {}
    return {
        "namespace": account.namespace,
        "serviceAccountName": account.name,
        **made,
        "permissionPolicy": account.policy,
    }


def _addon(name: str, version: str) -> Document:
    if name != "vpc-cni":
        return {"name": name, "version": version}
    return {
        "name": name,
        "version": version,
        "useDefaultPodIdentityAssociations": True,
        "configurationValues": CNI_VALUES,
    }


def _vpc(spec: Spec) -> Document:
    endpoints: Document = {"clusterEndpoints": {"privateAccess": True, "publicAccess": True}}
    cidrs = spec.get("API_CIDRS")
    if cidrs:
        endpoints["publicAccessCIDRs"] = [one.strip() for one in cidrs.split(",")]
    if spec.get("VPC_ID") is None:
        return {**endpoints, "nat": {"gateway": "Single"}}
    subnets = {}
    for pair in spec.need("PRIVATE_SUBNETS").split(","):
        zone, equals, subnet = pair.strip().partition("=")
        if not equals or zone not in spec.zones:
            raise UserError(
                f"{spec.at('PRIVATE_SUBNETS')}: {pair} is not ZONE=subnet-... with a zone of ZONES",
                f"zones: {', '.join(spec.zones)}",
            )
        subnets[zone] = {"id": subnet}
    return {**endpoints, "id": spec.need("VPC_ID"), "subnets": {"private": subnets}}


def _cluster_zones(spec: Spec) -> list[str]:
    if len(set(spec.zones)) < 2:
        raise UserError(
            f"{spec.at('ZONES')}: EKS wants subnets in two zones", "nodes may all be in one of them"
        )
    return spec.zones


def _base_group(spec: Spec, name: str, kind: str, least: int, most: int) -> Document:
    return {
        "name": name,
        "instanceType": kind,
        "amiFamily": "AmazonLinux2023",
        "minSize": least,
        "maxSize": most,
        "desiredCapacity": least,
        "privateNetworking": True,
        # IMDSv2 with one hop: no pod reaches the node's own role.
        "disableIMDSv1": True,
        "disablePodIMDS": True,
        "volumeType": "gp3",
        "volumeEncrypted": True,
        "labels": {"trainyard/pool": name},
        "tags": {OWNER_TAG: spec.name},
        "nodeRepairConfig": {"enabled": True},
    }


def _system_group(spec: Spec) -> Document:
    """Return the group of what is always there: controllers, DNS, Flux."""
    return {**_base_group(spec, SYSTEM, SYSTEM_TYPE, *SYSTEM_NODES), "volumeSize": 80}


def _group(spec: Spec, group: NodeGroup) -> Document:
    result = _base_group(spec, group.name, group.instance.name, group.least, group.most)
    result["volumeSize"] = 200
    if group.zones:
        result["availabilityZones"] = list(group.zones)
    if group.instance.device_resource:
        # Others go elsewhere while they can. NoSchedule would also keep eksctl's own EFA plugin away, which
        # tolerates no device's taint (eksctl v0.230.0, pkg/addons/assets/efa-device-plugin.yaml).
        taint = {"key": group.instance.device_resource, "value": "present", "effect": "PreferNoSchedule"}
        result["taints"] = [taint]
    if group.efa:
        # One interface a network card, and, where nothing is reserved, a cluster placement group of its own.
        result["efaEnabled"] = True
    if group.instance.nvme_gb:
        result["overrideBootstrapCommand"] = LiteralScalarString(RAID)
    return {**result, **_market(group)}


def _market(group: NodeGroup) -> Document:
    if group.market == "spot":
        return {"spot": True}
    if group.reservation is None:
        return {}
    target = {"capacityReservationTarget": {"capacityReservationID": group.reservation}}
    block = (
        {"instanceMarketOptions": {"marketType": "capacity-block"}}
        if group.market == "capacity-block"
        else {}
    )
    return {"capacityReservation": target, **block}
