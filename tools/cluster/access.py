"""Access to a cluster's API server: EKS access entries, their policies and Kubernetes groups."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.aws import AwsError, Session
from tools.cluster.ownership import ENTRY_GROUP, marks
from tools.cluster.spec import Spec

TEAM = "team"  # not a policy of EKS: the Role of base/plugins/namespace
TEAM_GROUP = "trainyard-team:"  # and the namespace: the group to which that Role is bound
POLICIES = {"admin": "AmazonEKSClusterAdminPolicy", "edit": "AmazonEKSEditPolicy", "view": "AmazonEKSViewPolicy"}


def policy_arn(partition: str, policy: str) -> str:
    return f"arn:{partition}:eks::aws:cluster-access-policy/{POLICIES[policy]}"


def groups(teams: Iterable[str]) -> list[str]:
    """Return the Kubernetes groups of an access entry for the teams of these namespaces."""
    return [ENTRY_GROUP, *(f"{TEAM_GROUP}{name}" for name in teams)]


@dataclass(frozen=True)
class Grant:
    """A policy for a principal in some namespaces, or in the whole cluster if none is named."""

    principal: str
    policy: str  # a key of POLICIES, or TEAM
    namespaces: tuple[str, ...] = ()

    def groups(self) -> list[str]:
        return groups(self.namespaces if self.policy == TEAM else ())

    def arn(self) -> str:
        """Return the ARN of the policy, in the partition of the principal."""
        return policy_arn(self.principal.split(":")[1], self.policy)

    def scope(self) -> dict[str, Any]:
        if self.namespaces:
            return {"type": "namespace", "namespaces": list(self.namespaces)}
        return {"type": "cluster"}


@dataclass(frozen=True)
class Change:
    """A call that makes one change, and the line that describes it."""

    line: str
    operation: str
    parameters: Mapping[str, object]


@dataclass(frozen=True)
class Held:
    """The rights that a principal has now: the scope of each policy by its ARN, and Kubernetes groups."""

    exists: bool = False
    policies: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()

    def others(self, grant: Grant) -> list[str]:
        """Return what the principal has beside a grant."""
        arn = "" if grant.policy == TEAM else grant.arn()
        lines = [_words(one, scope) for one, scope in self.policies.items() if one != arn]
        rest = [one for one in self.groups if one not in grant.groups() and one != ENTRY_GROUP]
        return lines + [f"the Kubernetes group {one}" for one in rest]


def held(session: Session, spec: Spec, principal: str) -> Held:
    """Return what a principal may do now. Raises AwsError, also where the cluster does not exist."""
    who = {"clusterName": spec.name, "principalArn": principal}
    try:
        entry = session.call("eks", "describe_access_entry", **who)["accessEntry"]
    except AwsError as problem:
        if problem.kind != "missing" or "cluster" in problem.message.partition(": ")[2].lower():
            raise
        return Held()
    listing = session.pages("eks", "list_associated_access_policies", "associatedAccessPolicies", **who)
    policies = {row["policyArn"]: row["accessScope"] for row in listing}
    return Held(True, policies, tuple(entry.get("kubernetesGroups") or ()))


def difference(session: Session, spec: Spec, grant: Grant) -> list[Change]:
    """Return the changes that are needed for `grant`; none where it exists already. Raises AwsError."""
    who = {"clusterName": spec.name, "principalArn": grant.principal}
    now = held(session, spec, grant.principal)
    # An entry that another user made does not get our mark, so that `down` keeps it.
    missing = [one for one in grant.groups() if one not in (*now.groups, ENTRY_GROUP)]
    group_lines = [f"+ the Kubernetes group {one}" for one in missing]
    changes = []
    if not now.exists:
        made = {"type": "STANDARD", "kubernetesGroups": grant.groups(), "tags": marks(session.region, spec)}
        line = "\n".join([f"+ access entry {grant.principal}", *group_lines])
        changes.append(Change(line, "create_access_entry", {**who, **made}))
    elif missing:
        wanted = {"kubernetesGroups": [*now.groups, *missing]}
        changes.append(Change("\n".join(group_lines), "update_access_entry", {**who, **wanted}))
    old = None if grant.policy == TEAM else now.policies.get(grant.arn())
    if grant.policy != TEAM and (old is None or not _same(old, grant.scope())):
        parameters = {**who, "policyArn": grant.arn(), "accessScope": grant.scope()}
        before = f"- {_words(grant.arn(), old)}\n" if old else ""
        line = f"{before}+ {_words(grant.arn(), grant.scope())}"
        changes.append(Change(line, "associate_access_policy", parameters))
    return changes


def apply(session: Session, changes: list[Change]) -> None:
    for change in changes:
        session.call("eks", change.operation, **change.parameters)


def _same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    names = [sorted(one.get("namespaces") or []) for one in (old, new)]
    return bool(old.get("type") == new.get("type") and names[0] == names[1])


def _words(policy: str, scope: dict[str, Any]) -> str:
    names = scope.get("namespaces") or []
    where = f"in {', '.join(names)}" if names else "in the whole cluster"
    return f"{policy.rpartition('/')[2]} {where}"
