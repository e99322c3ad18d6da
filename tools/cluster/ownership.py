"""What is ours in an AWS account: our tags, the names of roles, and the second proof of each thing.

Whoever may tag a resource can set our tag on it. So `yard cluster down` deletes only what also has a proof
that tagging cannot make: a name, membership in our cluster, stack or VPC, or a tag with the prefix `aws:`,
which AWS reserves (https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tools.aws import AwsError, Session
from tools.aws.policies import OWNER_TAG, TEAM_TAG, Place, owner
from tools.cluster.spec import Spec

STACK_TAG = "aws:cloudformation:stack-name"
EKS_TAG = "aws:eks:cluster-name"  # EKS sets it on nodes and on the cluster's security group
ACCOUNT_TAG = "trainyard/service-account"  # on roles: NAMESPACE/NAME
# The Kubernetes group of each access entry that we create. Nothing is bound to it; tagging cannot add it.
ENTRY_GROUP = "trainyard:entry"
ROLE_LENGTH, DIGEST_LENGTH = 64, 11  # of an IAM role's name; of the digest and its hyphen
DOUBT = "tagged as ours, but not provably ours: not deleted"

Row = dict[str, Any]
Tags = dict[str, str]


def role_name(place: Place, cluster: str, team: str, namespace: str, account: str) -> str:
    """Return the name of a service account's role.

    IAM is global, so the digest at its end is of account, region, cluster, team and service account.
    """
    whole = "/".join((place.account, place.region, cluster, team, namespace, account))
    digest = hashlib.sha256(whole.encode()).hexdigest()[: DIGEST_LENGTH - 1]
    return f"{role_prefix(place.region, cluster)}-{account}"[: ROLE_LENGTH - DIGEST_LENGTH] + f"-{digest}"


def role_prefix(region: str, cluster: str) -> str:
    """Return the start of the names of a cluster's roles. Other clusters can share it if it is shortened."""
    return f"trainyard-{region}-{cluster}"[: ROLE_LENGTH - DIGEST_LENGTH]


def marks(region: str, spec: Spec) -> Tags:
    """Return the tags of everything that we create for a cluster."""
    return {OWNER_TAG: owner(region, spec.name), TEAM_TAG: spec.namespace}


def pairs(tags: Tags) -> list[Tags]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def is_role(place: Place, cluster: str, name: str, tags: Mapping[str, str]) -> bool:
    """Return whether a role has the name that its tags and the cluster give it."""
    namespace, _, account = tags.get(ACCOUNT_TAG, "").partition("/")
    return name == role_name(place, cluster, tags.get(TEAM_TAG, ""), namespace, account)


def tags_of(row: Row) -> Tags:
    """Return the tags of a row, which most services list as pairs, and EKS as a mapping."""
    found = row.get("Tags") or row.get("TagSet") or row.get("tags") or []
    return dict(found) if isinstance(found, dict) else {one["Key"]: one["Value"] for one in found}


def describe_cluster(session: Session, spec: Spec) -> Row | None:
    """Return the cluster as EKS describes it, or None where it does not exist. Raises AwsError."""
    found: Row | None = session.get("eks", "describe_cluster", "cluster", name=spec.name)
    return found


def need_cluster(session: Session, spec: Spec) -> Row:
    """Return the cluster as EKS describes it. Raises AwsError, also where it does not exist."""
    found = describe_cluster(session, spec)
    if found is None:
        raise AwsError("missing", f"the EKS cluster {spec.name} does not exist in {session.region}", None)
    return found


def issuer_of(cluster: Row | None) -> str:
    """Return the issuer of a cluster's service account tokens without https://, or nothing."""
    url = (((cluster or {}).get("identity") or {}).get("oidc") or {}).get("issuer") or ""
    return str(url).removeprefix("https://")


@dataclass
class Evidence:
    """What AWS shows now about a cluster, its stacks and its network. Each question is asked once."""

    session: Session
    spec: Spec

    @cached_property
    def place(self) -> Place:
        return Place.of(self.session)

    @cached_property
    def ours(self) -> Tags:
        """The tags that ours have. In an adopted cluster that several teams use, these are one team's."""
        found = marks(self.session.region, self.spec)
        return found if self.spec.adopted else {OWNER_TAG: found[OWNER_TAG]}

    def has_tag(self, row: Row) -> bool:
        return self.ours.items() <= tags_of(row).items()

    @cached_property
    def cluster(self) -> Row | None:
        return describe_cluster(self.session, self.spec)

    @cached_property
    def is_cluster_ours(self) -> bool:
        """Whether the cluster has our tag, and CloudFormation made it for one of our stacks."""
        row = self.cluster
        return row is not None and self.has_tag(row) and tags_of(row).get(STACK_TAG) in self.stacks

    @cached_property
    def stack_rows(self) -> list[Row]:
        """All stacks of the region that are not deleted."""
        rows = self.session.pages("cloudformation", "describe_stacks", "Stacks")
        return [row for row in rows if row["StackStatus"] != "DELETE_COMPLETE"]

    def is_stack_name(self, name: str) -> bool:
        """Return whether eksctl or `yard cluster stack` gives a stack of the cluster this name."""
        kinds = "(nodegroup|addon|podidentityrole|accessentry)-.+"
        own = re.escape(self.spec.name)
        return bool(re.fullmatch(rf"eksctl-{own}-(cluster|{kinds})|trainyard-{own.replace('_', '-')}", name))

    @cached_property
    def stacks(self) -> set[str]:
        """The names of our stacks. A stack's tags change only by an update of the stack itself."""
        return {
            row["StackName"] for row in self.stack_rows if self.has_tag(row) and self.is_stack_name(row["StackName"])
        }

    def _of_stacks(self, key: str, id_: str) -> set[str]:
        filters = {f"tag:{STACK_TAG}": sorted(self.stacks)}
        return {str(row[id_]) for row in self.session.ec2(key, filters)} if self.stacks else set()

    @cached_property
    def vpcs(self) -> set[str]:
        """The VPCs that our stacks made."""
        return self._of_stacks("Vpcs", "VpcId")

    @cached_property
    def groups(self) -> set[str]:
        """The security groups that our stacks made, and that of our cluster."""
        config = (self.cluster or {}).get("resourcesVpcConfig") or {}
        group = config.get("clusterSecurityGroupId") if self.is_cluster_ours else None
        return self._of_stacks("SecurityGroups", "GroupId") | ({str(group)} if group else set())

    def is_inside(self, row: Row) -> bool:
        """Return whether an EC2 resource is a node of the cluster, in its VPC, or in its security groups."""
        tags = tags_of(row)
        if tags.get(EKS_TAG, self.spec.name) != self.spec.name or STACK_TAG in tags:
            return False  # of another cluster, or of a stack that is not ours
        groups = row.get("SecurityGroups") or row.get("Groups") or []
        in_group = any(one["GroupId"] in self.groups for one in groups)
        return EKS_TAG in tags or in_group or row.get("VpcId") in self.vpcs
