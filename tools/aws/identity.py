"""Roles of a cluster's service accounts: Pod Identity, one role each, its policy proved by simulation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.aws import policies
from tools.aws.eksctl import OWNER_TAG
from tools.aws.probe import Finding, bad, good, look
from tools.aws.service_accounts import ServiceAccount
from tools.aws.session import AwsError, Session
from tools.aws.spec import Spec

TRUST: policies.Policy = {
    "Version": policies.VERSION,
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "pods.eks.amazonaws.com"},
            "Action": ["sts:AssumeRole", "sts:TagSession"],
        }
    ],
}
POLICY_NAME = "trainyard"
ROLE_LENGTH = 64


@dataclass(frozen=True)
class Expectation:
    """An action on a resource that a policy has to allow, or must not."""

    action: str
    resource: str
    allowed: bool
    context: tuple[tuple[str, str], ...] = ()


def role_name(cluster: str, account: ServiceAccount) -> str:
    """Return the name of a service account's role, shortened by a digest where it would be too long."""
    name = f"trainyard-{cluster}-{account.name}"
    if len(name) <= ROLE_LENGTH:
        return name
    return f"{name[: ROLE_LENGTH - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def simulate(session: Session, account: ServiceAccount) -> Finding:
    """Ask IAM what an account's policy allows, within its prefixes and outside of them."""
    return look(account.name, lambda: _simulate(session, account))


def _simulate(session: Session, account: ServiceAccount) -> Finding:
    wrong, asked = [], 0
    document = json.dumps(account.policy)
    for one in expectations(account.policy):
        context = [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in one.context
        ]
        answer = session.call(
            "iam",
            "simulate_custom_policy",
            PolicyInputList=[document],
            ActionNames=[one.action],
            ResourceArns=[one.resource],
            ContextEntries=context,
        )
        decision = answer["EvaluationResults"][0]["EvalDecision"]
        asked += 1
        if (decision == "allowed") != one.allowed:
            wrong.append(f"{one.action} on {one.resource}: {decision}")
    if wrong:
        return bad(account.name, "IAM reads the policy otherwise than it is meant", None, *wrong)
    return good(account.name, f"{account.purpose}: {asked} questions to IAM's simulator, each as meant")


def expectations(policy: policies.Policy) -> Iterator[Expectation]:
    """Yield what a policy has to allow and what it must not: each prefix, and the bucket around it."""
    for statement in policy["Statement"]:
        if not statement["Action"][0].startswith("s3:"):
            continue
        if statement["Action"] == ["s3:ListBucket"]:
            inside = statement["Condition"]["StringLike"]["s3:prefix"][0]
            bucket = statement["Resource"]
            yield Expectation("s3:ListBucket", bucket, True, (("s3:prefix", inside),))
            yield Expectation("s3:ListBucket", bucket, False, (("s3:prefix", "elsewhere/"),))
            continue
        for action in statement["Action"]:
            for resource in statement["Resource"]:
                bucket = resource.partition("/")[0]
                yield Expectation(action, resource.replace("*", "file"), True)
                yield Expectation(action, f"{bucket}/elsewhere/file", False)
    names = [action for statement in policy["Statement"] for action in statement["Action"]]
    objects = [one for one in policy["Statement"] if isinstance(one["Resource"], list)]
    if "s3:DeleteObject" not in names and names[0].startswith("s3:"):
        yield Expectation("s3:DeleteObject", objects[0]["Resource"][0].replace("*", "file"), False)
    if "fsx:DescribeFileSystems" in names:
        foreign = ((f"aws:ResourceTag/{policies.TEAM_TAG}", "another-team"),)
        system = "arn:aws:fsx:us-west-2:111122223333:file-system/fs-0123456789abcdef0"
        yield Expectation("fsx:DescribeFileSystems", system, True)
        yield Expectation("fsx:DeleteFileSystem", system, False, foreign)


def ensure(session: Session, spec: Spec, account: ServiceAccount, change: bool) -> list[str]:
    """Bring role, policy and association to what is wanted; return what differed, a line each.

    With `change` False nothing is changed. Raises AwsError, also for a role of that name without our tag.
    """
    name = role_name(spec.name, account)
    role = _role(session, name)
    lines = []
    if role is None:
        lines.append(f"+ role {name}")
        if change:
            _make_role(session, spec, name)
            role = _role(session, name)
    elif {"Key": OWNER_TAG, "Value": spec.name} not in (role.get("Tags") or []):
        raise AwsError(
            "refused", f"the role {name} exists and is not tagged {OWNER_TAG}={spec.name}", "rename it"
        )
    policy = None if role is None else _policy(session, name)
    if policy != account.policy:
        lines.append(f"{'~' if policy else '+'} policy of {name}")
        if change:
            text = json.dumps(account.policy)
            session.call("iam", "put_role_policy", RoleName=name, PolicyName=POLICY_NAME, PolicyDocument=text)
    return lines + _associate(session, spec, account, role, change)


def _associate(
    session: Session, spec: Spec, account: ServiceAccount, role: dict[str, Any] | None, change: bool
) -> list[str]:
    place = {"namespace": account.namespace, "serviceAccount": account.name}
    rows = list(
        session.pages("eks", "list_pod_identity_associations", "associations", clusterName=spec.name, **place)
    )
    title = f"association {account.namespace}/{account.name}"
    if not rows:
        if change and role is not None:
            tags = {OWNER_TAG: spec.name}
            parameters = {"clusterName": spec.name, **place, "roleArn": role["Arn"], "tags": tags}
            session.call("eks", "create_pod_identity_association", **parameters)
        return [f"+ {title}"]
    number = rows[0]["associationId"]
    found = session.call(
        "eks", "describe_pod_identity_association", clusterName=spec.name, associationId=number
    )["association"]
    if role is not None and found.get("roleArn") == role["Arn"]:
        return []
    if change and role is not None:
        session.call(
            "eks",
            "update_pod_identity_association",
            clusterName=spec.name,
            associationId=number,
            roleArn=role["Arn"],
        )
    return [f"~ {title}: {found.get('roleArn')}"]


def _role(session: Session, name: str) -> dict[str, Any] | None:
    try:
        role: dict[str, Any] = session.call("iam", "get_role", RoleName=name)["Role"]
    except AwsError as problem:
        if problem.kind == "missing":
            return None
        raise
    return role


def _make_role(session: Session, spec: Spec, name: str) -> None:
    session.call(
        "iam",
        "create_role",
        RoleName=name,
        AssumeRolePolicyDocument=json.dumps(TRUST),
        Tags=[{"Key": OWNER_TAG, "Value": spec.name}],
    )


def _policy(session: Session, role: str) -> policies.Policy | None:
    try:
        answer = session.call("iam", "get_role_policy", RoleName=role, PolicyName=POLICY_NAME)
    except AwsError as problem:
        if problem.kind == "missing":
            return None
        raise
    document = answer["PolicyDocument"]
    return json.loads(document) if isinstance(document, str) else dict(document)
