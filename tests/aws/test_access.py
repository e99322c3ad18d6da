"""Access entries, the kubeconfig, and what pods may: each brought to what is wanted, once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.aws.account import make_cluster, make_network
from tests.aws.eks_state import Access, Associations
from tools import repo
from tools.aws import access, identity, kubeconfig, service_accounts
from tools.aws import spec as specs
from tools.aws.probe import Level
from tools.aws.session import AwsError, Session
from tools.aws.spec import Spec
from tools.errors import UserError

ROLE = "arn:aws:iam::123456789012:role/team"


@pytest.fixture
def entries(gaps: Any, refusal: Callable[..., Exception], session: Session) -> Access:
    """A cluster without access entries."""
    return Access(gaps, refusal)


def test_access_is_granted_once(entries: Access, session: Session) -> None:
    grant = access.Grant(ROLE, "edit", ("training",))
    changes = access.difference(session, "gpu", grant)
    assert [change.operation for change in changes] == ["create_access_entry", "associate_access_policy"]
    access.apply(session, changes)
    assert access.difference(session, "gpu", grant) == []
    scope = {"type": "namespace", "namespaces": ["training"]}
    assert entries.entries == {ROLE: {grant.arn(): scope}}


def test_another_scope_is_a_change(entries: Access, session: Session) -> None:
    access.apply(session, access.difference(session, "gpu", access.Grant(ROLE, "edit", ("a", "b"))))
    assert access.difference(session, "gpu", access.Grant(ROLE, "edit", ("b", "a"))) == []
    (change,) = access.difference(session, "gpu", access.Grant(ROLE, "edit"))
    assert change.line == ("- AmazonEKSEditPolicy in a, b\n+ AmazonEKSEditPolicy in the whole cluster")


def test_the_partition_is_the_principals() -> None:
    grant = access.Grant("arn:aws-us-gov:iam::123456789012:role/team", "view")
    assert grant.arn() == "arn:aws-us-gov:eks::aws-us-gov:cluster-access-policy/AmazonEKSViewPolicy"


def test_a_cluster_that_is_not_there_is_no_missing_entry(
    session: Session, gaps: Any, refusal: Callable[..., Exception]
) -> None:
    text = "No cluster found for name: gpu."
    gaps["eks", "describe_access_entry"] = refusal("ResourceNotFoundException", text, 404)
    with pytest.raises(AwsError, match="No cluster found"):
        access.difference(session, "gpu", access.Grant(ROLE, "edit"))


def test_the_access_command_shows_then_does(
    entries: Access, session: Session, yard: Callable[..., Any]
) -> None:
    session.call("iam", "create_role", RoleName="team", Path="/ours/", AssumeRolePolicyDocument="{}")
    caller = "arn:aws:sts::123456789012:assumed-role/team/jane"
    dry = yard("access", "gpu", caller, "--dry-run")
    assert (dry.code, entries.entries) == (1, {})
    assert "+ access entry arn:aws:iam::123456789012:role/ours/team" in dry.out
    done = yard("access", "gpu", caller)
    assert (done.code, list(entries.entries)) == (0, ["arn:aws:iam::123456789012:role/ours/team"])
    assert "holds already" in yard("access", "gpu", caller).out
    uncertain = yard("access", "gpu", "arn:aws:sts::123456789012:assumed-role/gone/jane")
    assert (uncertain.code, "the path of role gone is not known" in uncertain.err) == (3, True)


CONFIG = """\
# kept
apiVersion: v1
kind: Config
current-context: other
clusters:
- name: other
  cluster: {server: "https://other"}
users:
- name: other
  user: {token: secret}  # kept too
contexts:
- name: other
  context: {cluster: other, user: other}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig with somebody else's cluster."""
    path = tmp_path / "home" / "config"
    path.parent.mkdir()
    path.write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def test_kubeconfig_adds_without_clobbering(file: Path, session: Session, yard: Callable[..., Any]) -> None:
    make_cluster(session, "gpu", make_network(session, ["us-west-2a", "us-west-2b"]))
    assert yard("kubeconfig", "gpu").code == 0
    text = file.read_text(encoding="utf-8")
    document = YAML(typ="safe").load(text)
    assert text.count("# kept") == 2
    assert document["current-context"] == "other"
    assert [one["name"] for one in document["contexts"]] == ["other", "gpu"]
    assert document["users"][0]["user"] == {"token": "secret"}
    assert document["users"][1]["user"]["exec"]["args"][-4:] == ["--cluster-name", "gpu", "--output", "json"]
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_mtime_ns
    assert "is there already" in yard("kubeconfig", "gpu").out
    assert file.stat().st_mtime_ns == before
    view = ["kubectl", "config", "view", "--minify", "--context=gpu", "--output=jsonpath={.clusters[0].name}"]
    done = subprocess.run(view, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "arn:aws:eks:us-west-2:123456789012:cluster/gpu", done.stderr


def test_kubeconfig_keeps_a_name_that_is_taken(
    file: Path, session: Session, yard: Callable[..., Any]
) -> None:
    make_cluster(session, "gpu", make_network(session, ["us-west-2a", "us-west-2b"]))
    ran = yard("kubeconfig", "gpu", "--context", "other")
    assert (ran.code, "the context other is that of other" in ran.err) == (2, True)
    assert file.read_text(encoding="utf-8") == CONFIG
    assert yard("kubeconfig", "gpu", "--context", "other", "--replace").code == 0


def test_kubeconfig_of_a_new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {
        "arn": "arn:x",
        "name": "gpu",
        "endpoint": "https://x",
        "certificateAuthority": {"data": "eA=="},
    }
    path = tmp_path / ".kube" / "config"
    assert kubeconfig.merge(path, kubeconfig.entries(cluster, "us-west-2", "gpu", None), False, False)
    assert YAML(typ="safe").load(path)["current-context"] == "gpu"
    bad = tmp_path / "bad"
    bad.write_text("a: [", encoding="utf-8")
    with pytest.raises(UserError, match="bad"):
        kubeconfig.merge(bad, kubeconfig.entries(cluster, "us-west-2", "gpu", None), False, False)
    assert bad.read_text(encoding="utf-8") == "a: ["


def evaluate(policy: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    """IAM's evaluation of one policy without denials: wildcards and two string operators."""
    for statement in policy["Statement"]:
        resources = statement["Resource"]
        resources = [resources] if isinstance(resources, str) else resources
        conditions = [
            any(
                fnmatchcase(context.get(key, ""), one)
                for one in ([wanted] if isinstance(wanted, str) else wanted)
            )
            for operator in statement.get("Condition", {}).values()
            for key, wanted in operator.items()
        ]
        if (
            action in statement["Action"]
            and any(fnmatchcase(resource, one) for one in resources)
            and all(conditions)
        ):
            return True
    return False


@pytest.fixture
def simulator(gaps: Any) -> None:
    """IAM's simulator, for moto has none."""

    def simulate(
        PolicyInputList: list[str], ActionNames: list[str], ResourceArns: list[str], ContextEntries: Any
    ) -> dict[str, Any]:
        context = {one["ContextKeyName"]: one["ContextKeyValues"][0] for one in ContextEntries}
        allowed = evaluate(json.loads(PolicyInputList[0]), ActionNames[0], ResourceArns[0], context)
        decision = "allowed" if allowed else "implicitDeny"
        return {"EvaluationResults": [{"EvalActionName": ActionNames[0], "EvalDecision": decision}]}

    gaps["iam", "simulate_custom_policy"] = simulate


def gpu_accounts() -> list[service_accounts.ServiceAccount]:
    return service_accounts.of(specs.load(repo.root(), "gpu"))


def test_policies_allow_what_they_should_and_nothing_else(simulator: None, session: Session) -> None:
    found = [identity.simulate(session, one) for one in gpu_accounts()]
    assert len(found) == 6
    assert {one.level for one in found} == {Level.PASS}, found


@pytest.mark.parametrize(
    ("resource", "wrong"),
    [
        ("arn:aws:s3:::example-training-data/*", "elsewhere/file: allowed"),
        ("arn:aws:s3:::another-bucket/runs/*", "runs/file: implicitDeny"),
    ],
)
def test_a_policy_that_is_too_wide_or_too_narrow_is_found(
    simulator: None, session: Session, monkeypatch: pytest.MonkeyPatch, resource: str, wrong: str
) -> None:
    account = next(one for one in gpu_accounts() if one.purpose == "trains")
    (write,) = [one for one in account.policy["Statement"] if one["Sid"] == "Write"]
    expected = list(identity.expectations(account.policy))
    write["Resource"] = [resource]
    monkeypatch.setattr(identity, "expectations", lambda policy: iter(expected))
    found = identity.simulate(session, account)
    assert found.level is Level.FAIL
    assert any(wrong in line for line in found.evidence), found.evidence


def test_a_simulator_that_may_not_be_asked_is_no_failure(
    session: Session, gaps: Any, refusal: Callable[..., Exception]
) -> None:
    gaps["iam", "simulate_custom_policy"] = refusal("AccessDenied", "User: x is not authorized", 403)
    assert identity.simulate(session, gpu_accounts()[0]).level is Level.CANNOT_TELL


def test_roles_are_made_once_and_follow_the_facts(
    session: Session, gaps: Any, change: Callable[..., Spec], yard: Callable[..., Any]
) -> None:
    rows = Associations(gaps).rows
    spec = change("cpu-demo", CELLS="cpu/llama-tiny")
    for file in (spec.directory / "runs").glob("*.yaml"):
        file.unlink()
    dry = yard("identity", "cpu-demo", "--apply", "--dry-run")
    assert (dry.code, rows) == (1, {})
    assert session.call("iam", "list_roles")["Roles"] == []
    assert yard("identity", "cpu-demo", "--apply").code == 0
    names = {row["serviceAccount"] for row in rows.values()}
    assert names == {"cpu-llama-tiny-train", "trainyard-pruner", "fsx-csi-controller-sa"}
    assert "all as the facts want it" in yard("identity", "cpu-demo", "--apply").out
    assert yard("identity", "cpu-demo", "--apply", "--dry-run").code == 0
    change("cpu-demo", S3_RUNS_PREFIX="other/")
    changed = yard("identity", "cpu-demo", "--apply")
    assert changed.out.splitlines() == [
        "~ policy of trainyard-cpu-demo-cpu-llama-tiny-train",
        "~ policy of trainyard-cpu-demo-trainyard-pruner",
    ]
    role = next(row["roleArn"] for row in rows.values() if row["serviceAccount"] == "trainyard-pruner")
    next(iter(rows.values()))["roleArn"] = "arn:aws:iam::123456789012:role/other"
    assert "~ association" in yard("identity", "cpu-demo", "--apply").out
    assert "trainyard-cpu-demo-trainyard-pruner" in role


def test_a_run_of_flux_has_an_account_of_its_own(checkout: Path) -> None:
    """The name is what kustomize makes of the run's cell with its suffix."""
    spec = specs.load(checkout, "cpu-demo")
    run = "path: ./overlays/cpu/llama-tiny\n  nameSuffix: -tenth"
    text = f"kind: Kustomization\nspec:\n  {run}\n---\nkind: GitRepository\nspec: {{url: x}}\n"
    (spec.directory / "runs").mkdir(exist_ok=True)
    (spec.directory / "runs" / "tenth.yaml").write_text(text, encoding="utf-8")
    names = {one.name for one in service_accounts.of(spec, with_runs=True)}
    assert "cpu-llama-tiny-train-tenth" in names
    assert "cpu-llama-tiny-train-tenth" not in {one.name for one in service_accounts.of(spec)}
    (account,) = [one for one in service_accounts.of(spec, with_runs=True) if one.name.endswith("-tenth")]
    cell = next(one for one in service_accounts.of(spec) if one.name == "cpu-llama-tiny-train")
    assert account.policy == cell.policy


def test_a_strangers_role_of_the_same_name_is_left_alone(
    session: Session, gaps: Any, yard: Callable[..., Any], checkout: Path
) -> None:
    Associations(gaps)
    name = "trainyard-cpu-demo-trainyard-pruner"
    session.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument="{}")
    ran = yard("identity", "cpu-demo", "--apply")
    assert (ran.code, "is not tagged trainyard/cluster=cpu-demo" in ran.err) == (2, True)
    assert session.call("iam", "list_role_policies", RoleName=name)["PolicyNames"] == []


def test_role_names_fit_and_stay_apart() -> None:
    accounts = [
        service_accounts.ServiceAccount("n", f"{'long-' * 10}{number}-train", "trains", {})
        for number in range(2)
    ]
    names = {identity.role_name("cluster", one) for one in accounts}
    assert len(names) == 2
    assert max(map(len, names)) <= 64
