"""Creates an IAM role for each service account of a cluster, and checks its policy with IAM's simulator.

A role is used through Pod Identity, which needs an association and an agent on each node, or through IRSA
(IAM roles for service accounts), which needs the cluster's issuer as an identity provider of the account and
an annotation of the service account, but no agent. A role trusts one service account of one cluster.
Trust policies: EKS user guide, Pod Identity role
(https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html), IAM role for a service account.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.aws import AwsError, Session, policies
from tools.aws.policies import TEAM_TAG, Place
from tools.cluster import ownership
from tools.cluster.finding import Finding, bad, good, run
from tools.cluster.ownership import ACCOUNT_TAG, issuer_of, need_cluster
from tools.cluster.service_accounts import ServiceAccount
from tools.cluster.spec import Spec
from tools.core import State, wait
from tools.core.tables import filled, load

ANNOTATION = "eks.amazonaws.com/role-arn"
AUDIENCE = "sts.amazonaws.com"
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


@dataclass(frozen=True)
class Roles:
    """The roles of one team in one cluster. `issuer` is the cluster's, where a role is used through IRSA."""

    session: Session
    spec: Spec
    place: Place
    issuer: str = ""

    def name(self, account: ServiceAccount) -> str:
        return ownership.role_name(self.place, self.spec.name, self.spec.namespace, account.namespace, account.name)

    def arn(self, account: ServiceAccount) -> str:
        return self.place.arn("iam", f"role/{self.name(account)}")

    def tags(self, account: ServiceAccount) -> dict[str, str]:
        marks = ownership.marks(self.place.region, self.spec)
        return {**marks, ACCOUNT_TAG: f"{account.namespace}/{account.name}"}

    @property
    def provider(self) -> str:
        return self.place.arn("iam", f"oidc-provider/{self.issuer}")

    def trust(self, account: ServiceAccount, irsa: bool) -> policies.Policy:
        """Return the trust policy of a service account's role."""
        place = self.place
        names = {"account": place.account, "cluster": place.arn("eks", f"cluster/{self.spec.name}")}
        names |= {"namespace": account.namespace, "name": account.name}
        names |= {"issuer": self.issuer, "provider": self.provider}
        statement = filled(load("aws/policies.yaml")["trust by IRSA" if irsa else "trust by Pod Identity"], names)
        return {"Version": policies.VERSION, "Statement": [statement]}


def simulate(session: Session, account: ServiceAccount) -> Finding:
    """Ask IAM what the policy of a service account allows, inside and outside its prefixes."""
    asked = {"PolicyInputList": [json.dumps(account.policy)]}
    return run(account.name, lambda: _simulate(session, account, "simulate_custom_policy", asked))


def simulate_role(roles: Roles, account: ServiceAccount) -> Finding:
    """Ask IAM what the created role allows, including other limits that the AWS account sets for it."""

    def ask() -> Finding:
        role = roles.session.call("iam", "get_role", RoleName=roles.name(account))["Role"]
        asked = {"PolicySourceArn": role["Arn"]}
        return _simulate(roles.session, account, "simulate_principal_policy", asked)

    return wait.settled(
        lambda: run(account.name, ask), lambda found: found.state is not State.FAIL, SETTLE_SECONDS, SETTLE_POLL
    )


def _simulate(session: Session, account: ServiceAccount, operation: str, subject: dict[str, Any]) -> Finding:
    wrong, asked = [], 0
    for one in expectations(account.policy, session.partition):
        context = [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in one.context
        ]
        answer = session.call(
            "iam", operation, **subject, ActionNames=[one.action], ResourceArns=[one.resource], ContextEntries=context
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
        context = tuple(statement.get("Condition", {}).get("StringEquals", {}).items())
        if statement["Action"][0].startswith("secretsmanager:"):
            (secret,) = statement["Resource"]
            for action in statement["Action"]:
                yield Expectation(action, secret.replace("*", "token-AbCdEf"), True)
                yield Expectation(action, f"{secret.rpartition(':')[0]}:elsewhere/token-AbCdEf", False)
        if not statement["Action"][0].startswith("s3:"):
            continue
        if statement["Action"] == ["s3:ListBucket"]:
            inside = statement["Condition"]["StringLike"]["s3:prefix"][0]
            bucket = statement["Resource"]
            yield Expectation("s3:ListBucket", bucket, True, (*context, ("s3:prefix", inside)))
            yield Expectation("s3:ListBucket", bucket, False, (*context, ("s3:prefix", "elsewhere/")))
            continue
        for action in statement["Action"]:
            for resource in statement["Resource"]:
                bucket = resource.partition("/")[0]
                yield Expectation(action, resource.replace("*", "file"), True, context)
                yield Expectation(action, f"{bucket}/elsewhere/file", False, context)
                if action == "s3:PutObject":
                    another_run = f"{resource.rstrip('/*').rpartition('/')[0]}/another/file"
                    yield Expectation(action, another_run, False, context)
    names = [action for statement in policy["Statement"] for action in statement["Action"]]
    objects = [one for one in policy["Statement"] if isinstance(one["Resource"], list)]
    if names[0].startswith("s3:"):
        mine = objects[-1]["Resource"][0].replace("*", "file")
        context = tuple(objects[-1]["Condition"]["StringEquals"].items())
        yield Expectation("s3:DeleteObject", mine, False, context)
    if "fsx:DescribeFileSystems" in names:
        (region,) = policy["Statement"][0]["Condition"]["StringEquals"].items()
        system = f"arn:{partition}:fsx:{region[1]}:111122223333:file-system/fs-0123456789abcdef0"
        yield Expectation("fsx:DescribeFileSystems", system, True, (region,))
        for action in ("fsx:DeleteFileSystem", "fsx:UpdateFileSystem"):
            yield Expectation(action, system, False, (region,))


def ensure(roles: Roles, account: ServiceAccount, irsa: bool, change: bool) -> list[str]:
    """Create or correct role, trust, policy and association. Return the differences, a line each.

    With `irsa` the role is used through IRSA, otherwise through Pod Identity. With `change` False nothing is
    changed. Raises AwsError, also for a role of this name without our tags.
    """
    session, name = roles.session, roles.name(account)
    role = session.get("iam", "get_role", "Role", RoleName=name)
    trusted = roles.trust(account, irsa)
    document = json.dumps(trusted)
    lines = []
    if role is None:
        lines.append(f"+ role {name}")
        if change:
            tags = ownership.pairs(roles.tags(account))
            session.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=document, Tags=tags)
            role = session.get("iam", "get_role", "Role", RoleName=name)
    elif not roles.tags(account).items() <= ownership.tags_of(role).items():
        marks = ", ".join(f"{key}={value}" for key, value in roles.tags(account).items())
        raise AwsError("refused", f"the role {name} exists and is not tagged {marks}", "delete that role")
    elif _document(role["AssumeRolePolicyDocument"]) != trusted:
        way = "IRSA" if irsa else "Pod Identity"
        lines.append(f"~ trust of {name}: {account.namespace}/{account.name} by {way}")
        if change:
            session.call("iam", "update_assume_role_policy", RoleName=name, PolicyDocument=document)
    asked = {"RoleName": name, "PolicyName": POLICY_NAME}
    text = None if role is None else session.get("iam", "get_role_policy", "PolicyDocument", **asked)
    policy = None if text is None else _document(text)
    if policy != account.policy:
        lines.append(f"{'~' if policy else '+'} policy of {name}")
        if change:
            session.call("iam", "put_role_policy", **asked, PolicyDocument=json.dumps(account.policy))
    return lines if irsa else lines + _associate(roles, account, role, change)


def ensure_provider(roles: Roles, change: bool) -> list[str]:
    """Add the cluster's issuer to the account's identity providers. Return the differences."""
    session = roles.session
    listed = session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]
    if roles.provider in {row["Arn"] for row in listed}:
        return []
    if change:
        tags = ownership.pairs(ownership.marks(roles.place.region, roles.spec))
        known = {"Url": f"https://{roles.issuer}", "ClientIDList": [AUDIENCE], "Tags": tags}
        session.call("iam", "create_open_id_connect_provider", **known)
    return [f"+ identity provider {roles.issuer}"]


def issuer(session: Session, spec: Spec) -> str:
    """Return the issuer of the cluster's service account tokens, without https://. Raises AwsError."""
    found = issuer_of(need_cluster(session, spec))
    if not found:
        raise AwsError("refused", f"the cluster {spec.name} has no issuer, which IRSA needs", None)
    return found


def annotate_commands(roles: Roles, accounts: list[ServiceAccount]) -> list[str]:
    """Return the commands that annotate service accounts with their roles for IRSA."""
    # Flux reverts changes of its objects by kubectl's default field manager.
    words = "kubectl annotate --overwrite --field-manager=yard"
    return [
        f"{words} --namespace={one.namespace} serviceaccount {one.name} {ANNOTATION}={roles.arn(one)}"
        for one in accounts
    ]


def _associate(roles: Roles, account: ServiceAccount, role: dict[str, Any] | None, change: bool) -> list[str]:
    session, spec = roles.session, roles.spec
    place = {"namespace": account.namespace, "serviceAccount": account.name}
    rows = list(session.pages("eks", "list_pod_identity_associations", "associations", clusterName=spec.name, **place))
    title = f"association {account.namespace}/{account.name}"
    if not rows:
        if change and role is not None:
            tags = ownership.marks(roles.place.region, spec)
            parameters = {"clusterName": spec.name, **place, "roleArn": role["Arn"], "tags": tags}
            session.call("eks", "create_pod_identity_association", **parameters)
        return [f"+ {title}"]
    which = {"clusterName": spec.name, "associationId": rows[0]["associationId"]}
    found = session.call("eks", "describe_pod_identity_association", **which)["association"]
    if role is not None and found.get("roleArn") == role["Arn"]:
        return []
    holder = ownership.tags_of(found).get(TEAM_TAG)
    if holder != spec.namespace:
        whose = f"the team {holder}" if holder else "another user"
        message = f"the {title} belongs to {whose} and has the role {found.get('roleArn')}"
        raise AwsError("refused", message, "one service account has one role: add the right to that role")
    if change and role is not None:
        session.call("eks", "update_pod_identity_association", **which, roleArn=role["Arn"])
    return [f"~ {title}: {found.get('roleArn')}"]


def _document(value: Any) -> policies.Policy:
    """Return a policy as a dictionary. boto3 parses the policies of AWS, but not those of moto's server."""
    return json.loads(value) if isinstance(value, str) else dict(value)
