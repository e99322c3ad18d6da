"""Creates an IAM role for each service account of a cluster, and checks its policy with IAM's simulator.

A role is used through Pod Identity, which needs an association and an agent on each node, or through IRSA
(IAM roles for service accounts), which needs the cluster's issuer as an identity provider of the account and
an annotation of the service account, but no agent. Trust policies: EKS user guide, Pod Identity role, IAM
role for a service account.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.aws import policies
from tools.aws.policies import OWNER_TAG
from tools.aws.session import AwsError, Session
from tools.cluster.finding import Finding, bad, good, run
from tools.cluster.inventory import DIGEST_LENGTH, ROLE_LENGTH, need_cluster
from tools.cluster.service_accounts import ServiceAccount
from tools.cluster.spec import Spec
from tools.core import wait
from tools.core.verdict import State

ANNOTATION = "eks.amazonaws.com/role-arn"
AUDIENCE = "sts.amazonaws.com"
POD_IDENTITY_TRUST: policies.Policy = {
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
# A new role is visible everywhere in IAM within seconds.
SETTLE_SECONDS, SETTLE_POLL = 12.0, 3.0


@dataclass(frozen=True)
class Expectation:
    """An action on a resource that a policy must allow, or must not allow."""

    action: str
    resource: str
    allowed: bool
    context: tuple[tuple[str, str], ...] = ()


def role_name(cluster: str, account: ServiceAccount) -> str:
    """Return the name of a service account's role, with a digest at its end where it would be too long."""
    name = f"trainyard-{cluster}-{account.name}"
    if len(name) <= ROLE_LENGTH:
        return name
    return f"{name[: ROLE_LENGTH - DIGEST_LENGTH]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def simulate(session: Session, account: ServiceAccount) -> Finding:
    """Ask IAM what the policy of a service account allows, inside and outside its prefixes."""
    asked = {"PolicyInputList": [json.dumps(account.policy)]}
    return run(account.name, lambda: _simulate(session, account, "simulate_custom_policy", asked))


def simulate_role(session: Session, spec: Spec, account: ServiceAccount) -> Finding:
    """Ask IAM what the created role allows, including other limits that the AWS account sets for it."""

    def ask() -> Finding:
        role = session.call("iam", "get_role", RoleName=role_name(spec.name, account))["Role"]
        asked = {"PolicySourceArn": role["Arn"]}
        return _simulate(session, account, "simulate_principal_policy", asked)

    found: list[Finding] = []

    def settled() -> bool:
        found.append(run(account.name, ask))
        return found[-1].state is not State.FAIL

    wait.until(settled, SETTLE_SECONDS, SETTLE_POLL)
    return found[-1]


def _simulate(session: Session, account: ServiceAccount, operation: str, subject: dict[str, Any]) -> Finding:
    wrong, asked = [], 0
    for one in expectations(account.policy, session.partition):
        context = [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in one.context
        ]
        answer = session.call(
            "iam",
            operation,
            **subject,
            ActionNames=[one.action],
            ResourceArns=[one.resource],
            ContextEntries=context,
        )
        decision = answer["EvaluationResults"][0]["EvalDecision"]
        asked += 1
        if (decision == "allowed") != one.allowed:
            wrong.append(f"{one.action} on {one.resource}: {decision}")
    if wrong:
        summary = "IAM does not evaluate the policy as expected"
        return bad(account.name, summary, "check permissions boundaries and organization policies", *wrong)
    return good(account.name, f"{account.purpose}: {asked} simulations by IAM, all as expected")


def expectations(policy: policies.Policy, partition: str = "aws") -> Iterator[Expectation]:
    """Yield what a policy must allow, such as its prefixes, and what it must not, such as other prefixes."""
    for statement in policy["Statement"]:
        if statement["Action"][0].startswith("secretsmanager:"):
            secret = statement["Resource"][0].replace(":*:*:", ":us-west-2:111122223333:")
            for action in statement["Action"]:
                yield Expectation(action, secret.replace("*", "token-AbCdEf"), True)
                yield Expectation(action, f"{secret.rpartition(':')[0]}:elsewhere/token-AbCdEf", False)
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
        system = f"arn:{partition}:fsx:us-west-2:111122223333:file-system/fs-0123456789abcdef0"
        yield Expectation("fsx:DescribeFileSystems", system, True)
        yield Expectation("fsx:DeleteFileSystem", system, False, foreign)


def ensure(
    session: Session, spec: Spec, account: ServiceAccount, issuer: str | None, change: bool
) -> list[str]:
    """Create or correct role, trust, policy and association. Return the differences, a line each.

    `issuer` is the cluster's for IRSA, None for Pod Identity. With `change` False nothing is changed. Raises
    AwsError, also for a role of this name without our tag.
    """
    name = role_name(spec.name, account)
    role = _role(session, name)
    trusted = _irsa_trust(session, account, issuer) if issuer else POD_IDENTITY_TRUST
    lines = []
    if role is None:
        lines.append(f"+ role {name}")
        if change:
            tags = [{"Key": OWNER_TAG, "Value": spec.name}]
            document = json.dumps(trusted)
            session.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=document, Tags=tags)
            role = _role(session, name)
    elif {"Key": OWNER_TAG, "Value": spec.name} not in (role.get("Tags") or []):
        message = f"the role {name} exists and is not tagged {OWNER_TAG}={spec.name}"
        raise AwsError("refused", message, "rename or delete that role")
    elif _document(role["AssumeRolePolicyDocument"]) != trusted:
        way = "IRSA" if issuer else "Pod Identity"
        lines.append(f"~ trust of {name}: {account.namespace}/{account.name} by {way}")
        if change:
            document = json.dumps(trusted)
            session.call("iam", "update_assume_role_policy", RoleName=name, PolicyDocument=document)
    policy = None if role is None else _policy(session, name)
    if policy != account.policy:
        lines.append(f"{'~' if policy else '+'} policy of {name}")
        if change:
            text = json.dumps(account.policy)
            session.call("iam", "put_role_policy", RoleName=name, PolicyName=POLICY_NAME, PolicyDocument=text)
    return lines if issuer else lines + _associate(session, spec, account, role, change)


def ensure_provider(session: Session, spec: Spec, issuer: str, change: bool) -> list[str]:
    """Add the cluster's issuer to the account's identity providers. Return the differences."""
    listed = session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]
    if _provider(session, issuer) in {row["Arn"] for row in listed}:
        return []
    if change:
        tags = [{"Key": OWNER_TAG, "Value": spec.name}]
        known = {"Url": f"https://{issuer}", "ClientIDList": [AUDIENCE], "Tags": tags}
        session.call("iam", "create_open_id_connect_provider", **known)
    return [f"+ identity provider {issuer}"]


def issuer(session: Session, spec: Spec) -> str:
    """Return the issuer of the cluster's service account tokens, without https://. Raises AwsError."""
    cluster = need_cluster(session, spec)
    url = ((cluster.get("identity") or {}).get("oidc") or {}).get("issuer")
    if not url:
        raise AwsError("refused", f"the cluster {spec.name} has no issuer", "leave out --irsa")
    return str(url).removeprefix("https://")


def annotate_commands(session: Session, spec: Spec, accounts: list[ServiceAccount]) -> list[str]:
    """Return the commands that annotate service accounts with their roles for IRSA. Raises AwsError."""
    partition, account = _account(session)
    lines = []
    for one in accounts:
        arn = f"arn:{partition}:iam::{account}:role/{role_name(spec.name, one)}"
        # Flux reverts changes of its objects by kubectl's default field manager.
        words = f"kubectl annotate --overwrite --field-manager=yard --namespace={one.namespace}"
        lines.append(f"{words} serviceaccount {one.name} {ANNOTATION}={arn}")
    return lines


def _account(session: Session) -> tuple[str, str]:
    who = session.identity()
    return who["arn"].split(":")[1], who["account"]


def _provider(session: Session, issuer: str) -> str:
    partition, account = _account(session)
    return f"arn:{partition}:iam::{account}:oidc-provider/{issuer}"


def _irsa_trust(session: Session, account: ServiceAccount, issuer: str) -> policies.Policy:
    subject = f"system:serviceaccount:{account.namespace}:{account.name}"
    statement = {
        "Effect": "Allow",
        "Principal": {"Federated": _provider(session, issuer)},
        "Action": ["sts:AssumeRoleWithWebIdentity"],
        "Condition": {"StringEquals": {f"{issuer}:sub": subject, f"{issuer}:aud": AUDIENCE}},
    }
    return {"Version": policies.VERSION, "Statement": [statement]}


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
    which = {"clusterName": spec.name, "associationId": rows[0]["associationId"]}
    found = session.call("eks", "describe_pod_identity_association", **which)["association"]
    if role is not None and found.get("roleArn") == role["Arn"]:
        return []
    if change and role is not None:
        session.call("eks", "update_pod_identity_association", **which, roleArn=role["Arn"])
    return [f"~ {title}: {found.get('roleArn')}"]


def _role(session: Session, name: str) -> dict[str, Any] | None:
    found = session.find("iam", "get_role", RoleName=name)
    return found["Role"] if found else None


def _policy(session: Session, role: str) -> policies.Policy | None:
    found = session.find("iam", "get_role_policy", RoleName=role, PolicyName=POLICY_NAME)
    return _document(found["PolicyDocument"]) if found else None


def _document(value: Any) -> policies.Policy:
    """Return a policy as a dictionary. boto3 parses the policies of AWS, but not those of moto's server."""
    return json.loads(value) if isinstance(value, str) else dict(value)
