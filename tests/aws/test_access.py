"""Access entries and the roles of service accounts: each is changed once, to what the facts say."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.aws.account import make_cluster, make_network, make_stack
from tests.aws.conftest import Change, Gaps, Yard, refusal
from tests.aws.eks_state import Access, Associations
from tests.aws.test_teardown import marks
from tools.aws import policies
from tools.aws.session import AwsError, Session
from tools.cluster import access, identity, inventory, ownership, service_accounts
from tools.cluster import spec as specs
from tools.cluster.spec import Spec
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State

REGION, ROLE = "us-west-2", "arn:aws:iam::123456789012:role/team"
PLACE = policies.Place("aws", REGION, "123456789012")


@pytest.fixture
def entries(gaps: Gaps, session: Session) -> Access:
    """A cluster without access entries."""
    return Access(gaps)


def test_access_is_granted_once(entries: Access, session: Session) -> None:
    gpu, grant = specs.load(repo.root(), "gpu"), access.Grant(ROLE, "edit", ("training",))
    changes = access.difference(session, gpu, grant)
    assert [change.operation for change in changes] == ["create_access_entry", "associate_access_policy"]
    access.apply(session, changes)
    assert access.difference(session, gpu, grant) == []
    scope = {"type": "namespace", "namespaces": ["training"]}
    assert entries.entries == {ROLE: {grant.arn(): scope}}


def test_another_scope_is_a_change(entries: Access, session: Session) -> None:
    gpu = specs.load(repo.root(), "gpu")
    access.apply(session, access.difference(session, gpu, access.Grant(ROLE, "edit", ("a", "b"))))
    assert access.difference(session, gpu, access.Grant(ROLE, "edit", ("b", "a"))) == []
    (change,) = access.difference(session, gpu, access.Grant(ROLE, "edit"))
    assert change.line == ("- AmazonEKSEditPolicy in a, b\n+ AmazonEKSEditPolicy in the whole cluster")


def test_the_partition_is_the_principals() -> None:
    grant = access.Grant("arn:aws-us-gov:iam::123456789012:role/team", "view")
    assert grant.arn() == "arn:aws-us-gov:eks::aws:cluster-access-policy/AmazonEKSViewPolicy"


def test_a_missing_cluster_is_not_a_missing_entry(session: Session, gaps: Gaps) -> None:
    text = "No cluster found for name: gpu."
    gaps["eks", "describe_access_entry"] = refusal("ResourceNotFoundException", text, 404)
    with pytest.raises(AwsError, match="No cluster found"):
        access.difference(session, specs.load(repo.root(), "gpu"), access.Grant(ROLE, "edit"))


def test_the_access_command_shows_and_makes_changes(entries: Access, session: Session, yard: Yard) -> None:
    session.call("iam", "create_role", RoleName="team", Path="/ours/", AssumeRolePolicyDocument="{}")
    caller = "arn:aws:sts::123456789012:assumed-role/team/jane"
    admin = ("--policy", "admin")
    dry = yard("access", "gpu", caller, *admin, "--dry-run")
    assert (dry.code, entries.entries) == (1, {})
    assert "+ access entry arn:aws:iam::123456789012:role/ours/team" in dry.out
    done = yard("access", "gpu", caller, *admin)
    assert (done.code, list(entries.entries)) == (0, ["arn:aws:iam::123456789012:role/ours/team"])
    assert "exists already" in yard("access", "gpu", caller, *admin).out
    uncertain = yard("access", "gpu", "arn:aws:sts::123456789012:assumed-role/gone/jane", *admin)
    assert (
        uncertain.code,
        "the path of the role gone, which an access entry needs, is unknown" in uncertain.err,
    ) == (3, True)


def evaluate(policy: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    """Evaluate a policy as IAM does: wildcards and two string operators, without denials."""
    for statement in policy["Statement"]:
        resources = statement["Resource"]
        resources = [resources] if isinstance(resources, str) else resources
        conditions = [
            any(fnmatchcase(context.get(key, ""), one) for one in ([wanted] if isinstance(wanted, str) else wanted))
            for name, operator in statement.get("Condition", {}).items()
            for key, wanted in operator.items()
            if key in context or not (name.startswith("ForAllValues:") or name.endswith("IfExists"))
        ]
        if action in statement["Action"] and any(fnmatchcase(resource, one) for one in resources) and all(conditions):
            return True
    return False


@pytest.fixture(name="simulator")
def _simulator(gaps: Gaps) -> None:
    simulator(gaps)


def simulator(gaps: Gaps) -> None:
    """IAM's simulator, which moto lacks, for a policy and for a role in moto."""

    def answer(document: Any, ActionNames: list[str], ResourceArns: list[str], ContextEntries: Any) -> dict[str, Any]:
        context = {one["ContextKeyName"]: one["ContextKeyValues"][0] for one in ContextEntries}
        allowed = evaluate(document, ActionNames[0], ResourceArns[0], context)
        decision = "allowed" if allowed else "implicitDeny"
        return {"EvaluationResults": [{"EvalActionName": ActionNames[0], "EvalDecision": decision}]}

    def of_policy(PolicyInputList: list[str], **asked: Any) -> dict[str, Any]:
        return answer(json.loads(PolicyInputList[0]), **asked)

    session = Session(REGION)  # one for all calls: creating a client takes longer than a call

    def of_role(PolicySourceArn: str, **asked: Any) -> dict[str, Any]:
        name = PolicySourceArn.rpartition("/")[2]
        found = session.call("iam", "get_role_policy", RoleName=name, PolicyName="trainyard")
        document = found["PolicyDocument"]  # a text, if it comes from moto's server
        return answer(json.loads(document) if isinstance(document, str) else document, **asked)

    gaps["iam", "simulate_custom_policy"] = of_policy
    gaps["iam", "simulate_principal_policy"] = of_role


def role_of(account: str) -> str:
    return ownership.role_name(PLACE, "cpu-demo", "training", "training", account)


def gpu_accounts() -> list[service_accounts.ServiceAccount]:
    return service_accounts.of(specs.load(repo.root(), "gpu"), PLACE)


def test_external_secrets_reads_only_the_teams_secrets(simulator: None, session: Session, checkout: Path) -> None:
    path = checkout / "clusters/gpu/plugins/kustomization.yaml"
    text = path.read_text(encoding="utf-8") + "  - ../../../base/plugins/external-secrets\n"
    path.write_text(text, encoding="utf-8")
    (account,) = [
        one
        for one in service_accounts.of(specs.load(checkout, "gpu"), PLACE)
        if one.name == service_accounts.SECRETS_ACCOUNT
    ]
    found = identity.simulate(session, account)
    assert (found.state, "4 simulations" in found.summary) == (State.PASS, True)
    account.policy["Statement"][0]["Resource"] = ["arn:aws:secretsmanager:us-west-2:123456789012:secret:*"]
    assert identity.simulate(session, account).state is State.FAIL


def test_policies_fit_into_a_role(change: Change) -> None:
    """The policies of the clusters and of the longest prefixes fit; longer ones are refused."""
    for name in ("cpu-demo", "gpu", "gpu-hyperpod", "trn1"):
        sizes = [policies.size(one.policy) for one in service_accounts.of(specs.load(repo.root(), name), PLACE)]
        assert max(sizes, default=0) < 1_500
    longest = {"S3_PREFIX": "a" * 1_022 + "/", "S3_RUNS_PREFIX": "b" * 1_022 + "/"}
    fits = service_accounts.of(change("gpu", S3_BUCKET="bucket", **longest), PLACE)
    assert all(policies.size(one.policy) <= policies.MOST_CHARACTERS for one in fits)
    too_long = {"S3_PREFIX": "a" * 3_000 + "/", "S3_RUNS_PREFIX": "b" * 3_000 + "/"}
    with pytest.raises(UserError, match=r"cluster\.env: the policy of .* the limit is 10,240"):
        service_accounts.of(change("gpu", S3_BUCKET="bucket", **too_long), PLACE)


def test_policies_allow_only_what_they_should(simulator: None, session: Session) -> None:
    found = [identity.simulate(session, one) for one in gpu_accounts()]
    assert len(found) == 5
    assert {one.state for one in found} == {State.PASS}, found


@pytest.mark.parametrize(
    ("resource", "wrong"),
    [
        ("arn:aws:s3:::example-training-data/*", "elsewhere/file: allowed"),
        ("arn:aws:s3:::example-training-data/runs/training/*", "runs/training/another/file: allowed"),
        ("arn:aws:s3:::another-bucket/runs/*", "-train/file: implicitDeny"),
    ],
)
def test_a_policy_that_is_too_wide_or_too_narrow_fails(
    simulator: None, session: Session, monkeypatch: pytest.MonkeyPatch, resource: str, wrong: str
) -> None:
    account = next(one for one in gpu_accounts() if one.purpose == "trains")
    (write,) = [one for one in account.policy["Statement"] if one["Sid"] == "Write"]
    expected = list(identity.expectations(account.policy))
    write["Resource"] = [resource]
    monkeypatch.setattr(identity, "expectations", lambda policy, partition: iter(expected))
    found = identity.simulate(session, account)
    assert found.state is State.FAIL
    assert any(wrong in line for line in found.evidence), found.evidence


@pytest.fixture
def one_cell(change: Change) -> Spec:
    """cpu-demo with one cell and no run, which has two service accounts."""
    spec = change("cpu-demo", CELLS="cpu/llama-tiny")
    for file in (spec.directory / "runs").glob("*.yaml"):
        file.unlink()
    return spec


def test_roles_are_created_once_and_follow_the_facts(
    session: Session, gaps: Gaps, simulator: None, one_cell: Spec, change: Change, yard: Yard
) -> None:
    rows = Associations(gaps).rows
    dry = yard("identity", "cpu-demo", "--apply", "--dry-run")
    assert (dry.code, rows) == (1, {})
    assert session.call("iam", "list_roles")["Roles"] == []
    assert yard("identity", "cpu-demo", "--apply").code == 0
    names = {row["serviceAccount"] for row in rows.values()}
    assert names == {"cpu-llama-tiny-train", "fsx-csi-controller-sa"}
    assert "up to date" in yard("identity", "cpu-demo", "--apply").out
    assert yard("identity", "cpu-demo", "--apply", "--dry-run").code == 0
    change("cpu-demo", S3_RUNS_PREFIX="other/")
    changed = yard("identity", "cpu-demo", "--apply")
    (line,) = changed.out.splitlines()
    role = next(row["roleArn"] for row in rows.values() if row["serviceAccount"] == "cpu-llama-tiny-train")
    assert line == f"~ policy of {role.rpartition('/')[2]}"
    assert "trainyard-us-west-2-cpu-demo-cpu-llama-tiny-train-" in role
    next(iter(rows.values()))["roleArn"] = "arn:aws:iam::123456789012:role/other"
    assert "~ association" in yard("identity", "cpu-demo", "--apply").out


def test_irsa_trusts_one_service_account_of_one_cluster(
    session: Session, gaps: Gaps, simulator: None, one_cell: Spec, yard: Yard
) -> None:
    """No association, one provider, roles created once. Back to Pod Identity, only the trust changes."""
    rows = Associations(gaps).rows
    network, stack = make_network(session, ["us-west-2a", "us-west-2b"]), "eksctl-cpu-demo-cluster"
    make_stack(session, stack, **marks("cpu-demo"))
    make_cluster(session, "cpu-demo", network, **marks("cpu-demo"), **{ownership.STACK_TAG: stack})
    dry = yard("identity", "cpu-demo", "--apply", "--irsa", "--dry-run")
    assert (dry.code, "+ identity provider oidc.eks" in dry.out) == (1, True)
    assert session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"] == []
    ran = yard("identity", "cpu-demo", "--apply", "--irsa")
    assert (ran.code, rows) == (0, {}), ran.err
    role = session.call("iam", "get_role", RoleName=role_of("cpu-llama-tiny-train"))["Role"]
    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    issuer = statement["Principal"]["Federated"].partition("oidc-provider/")[2]
    assert statement["Condition"]["StringEquals"] == {
        f"{issuer}:sub": "system:serviceaccount:training:cpu-llama-tiny-train",
        f"{issuer}:aud": "sts.amazonaws.com",
    }
    line = f"serviceaccount cpu-llama-tiny-train eks.amazonaws.com/role-arn={role['Arn']}"
    assert f"next: kubectl annotate --overwrite --field-manager=yard --namespace=training {line}" in ran.err
    assert "up to date" in yard("identity", "cpu-demo", "--apply", "--irsa").out
    back = yard("identity", "cpu-demo", "--apply")
    assert f"~ trust of {role_of('cpu-llama-tiny-train')}" in back.out
    assert len(rows) == 2
    providers = [one.kind for one in inventory.owned(session, one_cell) if one.kind == "identity provider"]
    assert providers == ["identity provider"]


def test_a_role_with_other_limits_fails(
    session: Session, gaps: Gaps, simulator: None, change: Change, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a permissions boundary: the role is correct, but IAM denies the action."""
    monkeypatch.setattr(identity, "SETTLE_SECONDS", 0.0)
    Associations(gaps)
    change("cpu-demo", CELLS="cpu/llama-tiny")
    denied = {"EvaluationResults": [{"EvalActionName": "s3:GetObject", "EvalDecision": "implicitDeny"}]}
    gaps["iam", "simulate_principal_policy"] = denied
    ran = yard("identity", "cpu-demo", "--apply")
    assert (ran.code, "IAM does not evaluate the policy as expected" in ran.out) == (1, True)
    gaps["iam", "simulate_principal_policy"] = refusal("AccessDenied", "not authorized", 403)
    ran = yard("identity", "cpu-demo", "--apply")
    assert (ran.code, "CANNOT TELL" in ran.out) == (0, True)


def test_a_run_of_flux_has_its_own_account(checkout: Path) -> None:
    """Its name is the one that kustomize gives it: the cell's with the run's suffix."""
    spec = specs.load(checkout, "cpu-demo")
    run = "path: ./overlays/cpu/llama-tiny\n  nameSuffix: -tenth"
    head = "apiVersion: x/v1\nmetadata: {name: tenth}\n"
    text = f"{head}kind: Kustomization\nspec:\n  {run}\n---\n{head}kind: GitRepository\nspec: {{url: x}}\n"
    (spec.directory / "runs").mkdir(exist_ok=True)
    (spec.directory / "runs" / "tenth.yaml").write_text(text, encoding="utf-8")
    names = {one.name for one in service_accounts.of(spec, PLACE, with_runs=True)}
    assert "cpu-llama-tiny-train-tenth" in names
    assert "cpu-llama-tiny-train-tenth" not in {one.name for one in service_accounts.of(spec, PLACE)}
    (account,) = [one for one in service_accounts.of(spec, PLACE, with_runs=True) if one.name.endswith("-tenth")]
    cell = next(one for one in service_accounts.of(spec, PLACE) if one.name == "cpu-llama-tiny-train")
    assert account.policy != cell.policy, "each writes below its own run"
    (spec.directory / "runs" / "tenth.yaml").write_text("kind: [\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"tenth\.yaml:2: not valid YAML"):
        service_accounts.of(spec, PLACE, with_runs=True)


def test_a_foreign_role_of_the_same_name_is_not_touched(
    session: Session, gaps: Gaps, yard: Yard, checkout: Path
) -> None:
    Associations(gaps)
    name = role_of("cpu-llama-tiny-train")
    session.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument="{}")
    ran = yard("identity", "cpu-demo", "--apply")
    assert (ran.code, "is not tagged trainyard/cluster=us-west-2/cpu-demo" in ran.err) == (2, True)
    assert session.call("iam", "list_role_policies", RoleName=name)["PolicyNames"] == []


def test_role_names_fit_and_differ() -> None:
    long = "long-" * 10
    names = {ownership.role_name(PLACE, "cluster", "t", "n", f"{long}{at}-train") for at in range(2)}
    assert len(names) == 2
    assert max(map(len, names)) <= 64
