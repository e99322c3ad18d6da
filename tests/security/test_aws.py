"""What `yard` may do in an AWS account where others have clusters, teams and the right to tag.

The account is moto's. Each attack has a control: the same thing of our own, which is deleted or changed.
"""

# ruff: noqa: F401, F811

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aws.account import make_bucket, make_cluster, make_group, make_network, make_nodes, make_stack, tag
from tests.aws.conftest import (
    Change,
    Gaps,
    Yard,
    _computed_once,
    _own_keys,
    _read_once,
    _shared_checkout,
    change,
    checkout,
    down,
    gaps,
    moto,
    session,
    yard,
)
from tests.aws.eks_state import Access, Associations
from tests.aws.test_access import simulator
from tests.aws.test_teardown import make_role, marks, picture, populate
from tests.parts.moto import ignore_bucket_policies
from tools.aws import policies
from tools.aws.policies import Place, Policy
from tools.aws.session import Session
from tools.cluster import bucket, identity, inventory, ownership, service_accounts, teardown
from tools.cluster import spec as specs
from tools.cluster import stack as stacks
from tools.cluster.spec import Spec
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.image import codebuild
from tools.image.codebuild import Project

HOME, AWAY = "us-west-2", "us-east-1"
PLACE = Place("aws", HOME, "123456789012")
CLUSTERS = ("cpu-demo", "gpu", "gpu-hyperpod", "trn1")


@pytest.fixture
def spec(change: Change, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    return change("cpu-demo")


def make_provider(session: Session, url: str, region: str) -> str:
    tags = ownership.pairs(marks("cpu-demo", region))
    made = {"Url": url, "ClientIDList": ["sts.amazonaws.com"], "Tags": tags}
    arn: str = session.call("iam", "create_open_id_connect_provider", **made)["OpenIDConnectProviderArn"]
    return arn


def providers(session: Session) -> set[str]:
    rows = session.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]
    return {row["Arn"] for row in rows}


def test_a_cluster_of_the_same_name_elsewhere_stays(session: Session, spec: Spec, down: Yard) -> None:
    """IAM has no regions: its roles and its provider have other tags, and would not be proven with ours."""
    away = Session(AWAY)
    populate(away, "cpu-demo")
    theirs = make_provider(session, "https://oidc.eks.us-east-1.amazonaws.com/id/PRODUCTION", AWAY)
    (their_role,) = picture(away)["roles"]
    populate(session, "cpu-demo")
    ours = make_provider(session, session_issuer(session), HOME)
    (our_role,) = set(picture(session)["roles"]) - {their_role}
    # Whoever may tag in IAM makes them look like ours.
    session.call("iam", "tag_role", RoleName=their_role, Tags=ownership.pairs(marks("cpu-demo")))
    tags = ownership.pairs(marks("cpu-demo"))
    session.call("iam", "tag_open_id_connect_provider", OpenIDConnectProviderArn=theirs, Tags=tags)
    before = picture(away)
    ran = down("cpu-demo")
    assert ran.code == 0, ran.err
    assert ran.out.count("not provably ours: not deleted") >= 2
    after = picture(away)
    assert {kind: after[kind] for kind in before if kind != "roles"} == {
        kind: before[kind] for kind in before if kind != "roles"
    }
    assert (after["roles"], providers(session)) == ([their_role], {theirs}), "control: ours are gone"
    assert our_role != their_role
    assert ours != theirs


def session_issuer(session: Session) -> str:
    cluster = session.call("eks", "describe_cluster", name="cpu-demo")["cluster"]
    return f"https://{ownership.issuer_of(cluster)}"


def test_what_somebody_tagged_as_ours_stays(session: Session, spec: Spec, down: Yard, yard: Yard) -> None:
    """Both of our tags, and the tags of EKS and eksctl that anyone may set, on things of others."""
    populate(session, "cpu-demo")
    spoof = {**marks("cpu-demo"), "eks:cluster-name": "cpu-demo", "alpha.eksctl.io/cluster-name": "cpu-demo"}
    network = make_network(session, ["us-west-2a", "us-west-2b"], "10.8")
    (instance,) = make_nodes(session, "m5.large", 1, network, "us-west-2a", **spoof, Name="prod-database")
    volume = session.call("ec2", "create_volume", Size=500, AvailabilityZone="us-west-2a")["VolumeId"]
    tag(session, volume, **spoof)
    made = session.call("ec2", "create_network_interface", SubnetId=network.subnets["us-west-2a"])
    interface = made["NetworkInterface"]["NetworkInterfaceId"]
    tag(session, interface, **spoof)
    group = make_group(session, network.vpc, "theirs", **spoof)
    make_stack(session, "production", **spoof)
    role = "trainyard-us-west-2-cpu-demo-admin"
    session.call("iam", "create_role", RoleName=role, AssumeRolePolicyDocument="{}", Tags=ownership.pairs(spoof))
    planned = yard("down", "cpu-demo", "--dry-run")
    for name in (f"instance {instance}", f"network interface {interface}", f"security group {group}"):
        assert f"keep    {name}" in planned.out, planned.out
    for name in (f"volume {volume}", "stack production", f"role {role}"):
        assert f"keep    {name}" in planned.out, planned.out
    assert f"Name prod-database, {network.vpc}, since " in planned.out
    assert "delete  instance" in planned.out, "control"
    assert down("cpu-demo").code == 0
    after = picture(session)
    assert [one[0] for one in after["instances"]] == [instance]
    assert volume in after["volumes"]
    assert interface in after["network_interfaces"]
    assert group in after["security_groups"]
    assert (after["stacks"], after["roles"], after["clusters"]) == (["production"], [role], [])


def test_a_name_forges_no_line_of_the_list(session: Session, spec: Spec, yard: Yard) -> None:
    vpc = make_stack(session, "eksctl-cpu-demo-cluster", "10.0", **marks("cpu-demo"))
    make_group(session, vpc, "extra", **marks("cpu-demo"), Name="x\n  keep    everything\u202e")
    ran = yard("down", "cpu-demo", "--dry-run")
    assert r"Name 'x\n  keep    everything\u202e'" in ran.out, ran.out


def test_a_run_file_cannot_widen_a_policy(checkout: Path) -> None:
    """The name of a service account in runs/ becomes a part of an ARN."""
    path = checkout / "clusters/cpu-demo/runs/evil.yaml"
    for suffix in ("-*", "-${aws:username}", "-?", "/../x"):
        body = {"path": "./overlays/cpu/llama-tiny", "nameSuffix": suffix}
        run = {"apiVersion": "x/v1", "kind": "Kustomization", "metadata": {"name": "e"}, "spec": body}
        path.write_text(json.dumps(run))
        with pytest.raises(UserError, match="is not the name of a service account"):
            service_accounts.of(specs.load(checkout, "cpu-demo"), PLACE, with_runs=True)


def test_a_stack_of_others_is_not_updated(session: Session, change: Change) -> None:
    make_stack(session, "trainyard-gpu")
    spec = change("gpu", CLUSTER_VPC_ID="vpc-1", CLUSTER_SECURITY_GROUP_IDS="sg-1")
    with pytest.raises(UserError, match="is not tagged trainyard/cluster=us-west-2/gpu"):
        stacks.deploy(session, spec)


@pytest.mark.parametrize("stack", [None, "eksctl-cpu-demo-cluster"])
def test_a_tagged_cluster_of_others_stays(session: Session, spec: Spec, down: Yard, stack: str | None) -> None:
    """One of our name, made by hand, or by an eksctl stack that is not ours."""
    network = make_network(session, ["us-west-2a", "us-west-2b"])
    made_by = {ownership.STACK_TAG: stack} if stack else {}
    if stack:
        make_stack(session, stack)
    make_cluster(session, "cpu-demo", network, **marks("cpu-demo"), **made_by)
    group = {"clusterName": "cpu-demo", "nodegroupName": "cpu", "nodeRole": PLACE.arn("iam", "role/n")}
    session.call("eks", "create_nodegroup", **group, subnets=["a"], tags=marks("cpu-demo"))
    ran = down("cpu-demo")
    assert "keep    cluster cpu-demo" in ran.out, ran
    assert session.call("eks", "list_clusters")["clusters"] == ["cpu-demo"]
    assert session.call("eks", "list_nodegroups", clusterName="cpu-demo")["nodegroups"] == ["cpu"]


def test_each_resource_is_read_again_before_it_is_deleted(
    session: Session, spec: Spec, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag is gone between the list and the deletion; a changed list is not deleted either."""
    vpc = make_stack(session, "eksctl-cpu-demo-cluster", "10.0", **marks("cpu-demo"))
    group = make_group(session, vpc, "extra", **marks("cpu-demo"))
    original = teardown._state

    def untag(*given: Any) -> str:
        session.call("ec2", "delete_tags", Resources=[group], Tags=[{"Key": "trainyard/cluster"}])
        return original(*given)

    monkeypatch.setattr(teardown, "_state", untag)
    ran = yard("down", "cpu-demo", "--yes", "--expect", "2")
    assert (ran.code, f"security group {group} has changed since it was listed" in ran.err) == (1, True), ran
    assert group in picture(session)["security_groups"]
    monkeypatch.setattr(teardown, "_state", original)

    def late(*_: Any, **__: Any) -> str:
        tag(session, group, **marks("cpu-demo"))
        return "cpu-demo"

    monkeypatch.setattr("click.prompt", late)
    ran = yard("down", "cpu-demo")
    assert (ran.code, f"+ security group {group}" in ran.err) == (1, True), ran
    assert group in picture(session)["security_groups"]
    assert yard("down", "cpu-demo").code == 0, "control"
    assert group not in picture(session)["security_groups"]


def test_yes_needs_the_number(session: Session, spec: Spec, yard: Yard) -> None:
    make_role(session, "cpu-demo", "a")
    make_role(session, "cpu-demo", "b")
    for words, code, said in (
        (["--yes"], 2, "--yes needs --expect N: 2 resources would be deleted"),
        (["--yes", "--expect", "1"], 1, "nothing was deleted: --expect 1, but 2 resources would be"),
        (["--yes", "--expect", "3"], 1, "nothing was deleted: --expect 3, but 2 resources would be"),
        (["--expect", "2"], 2, "--expect needs --yes"),
    ):
        ran = yard("down", "cpu-demo", *words)
        assert (ran.code, said in ran.err) == (code, True), ran
    assert len(picture(session)["roles"]) == 2
    assert yard("down", "cpu-demo", "--yes", "--expect", "2").code == 0


def test_teams_of_an_adopted_cluster_keep_what_is_theirs(
    session: Session, gaps: Gaps, change: Change, down: Yard, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has roles of its own. The second may not take over a shared service account."""
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    rows = Associations(gaps).rows
    entries = Access(gaps)
    simulator(gaps)
    make_cluster(session, "shared", make_network(session, ["us-west-2a", "us-west-2b"]))
    facts = {"CLUSTER_NAME": "shared", "ADOPTED": "true", "CELLS": "cpu/llama-tiny"}
    first = change("cpu-demo", **facts, TEAM_NAMESPACE="red")
    assert yard("identity", "cpu-demo", "--apply").code == 0
    red = {name: policy_of(session, name) for name in picture(session)["roles"]}
    admin = "arn:aws:iam::123456789012:role/admin"
    entries.create_access_entry("shared", admin, "STANDARD", ownership.marks(HOME, first))
    change("cpu-demo", TEAM_NAMESPACE="blue")
    ran = yard("identity", "cpu-demo", "--apply")
    assert (ran.code, "belongs to the team red" in ran.err) == (2, True), ran
    assert {name: policy_of(session, name) for name in red} == red
    assert yard("access", "cpu-demo", f"{admin}2", "--policy", "team", "--namespace", "blue").code == 0
    assert down("cpu-demo").code == 0
    assert set(picture(session)["roles"]) == set(red)
    assert {row["namespace"] for row in rows.values()} == {"red", "kube-system"}
    change("cpu-demo", TEAM_NAMESPACE="red")
    assert down("cpu-demo").code == 0
    assert (picture(session)["roles"], rows, list(entries.entries)) == ([], {}, [admin]), "tagged by somebody"


def policy_of(session: Session, role: str) -> tuple[Any, Any]:
    found = session.call("iam", "get_role", RoleName=role)["Role"]["AssumeRolePolicyDocument"]
    return found, session.call("iam", "get_role_policy", RoleName=role, PolicyName="trainyard")["PolicyDocument"]


def test_roles_of_two_regions_do_not_meet(session: Session, gaps: Gaps, change: Change, yard: Yard) -> None:
    """`identity --apply` of a second cluster of the same name does not rewrite the roles of the first."""
    rows = Associations(gaps).rows
    simulator(gaps)
    change("cpu-demo", CELLS="cpu/llama-tiny")
    assert yard("identity", "cpu-demo", "--apply").code == 0
    before = {name: policy_of(session, name) for name in picture(session)["roles"]}
    rows.clear()
    zones = {"AWS_REGION": AWAY, "ZONES": f"{AWAY}a,{AWAY}b", "NODES_CPU": f"m5.2xlarge 2-2 {AWAY}a"}
    change("cpu-demo", **zones)
    assert yard("identity", "cpu-demo", "--apply").code == 0
    after = {name: policy_of(session, name) for name in picture(session)["roles"]}
    assert {name: after[name] for name in before} == before
    assert len(after) == 2 * len(before)
    assert all(HOME in name for name in before)
    change("cpu-demo", AWS_ACCOUNT_ID="999999999999")
    assert yard("identity", "cpu-demo", "--apply").code == 2


@pytest.mark.parametrize("irsa", [False, True])
def test_a_role_trusts_one_service_account_of_one_cluster(session: Session, spec: Spec, irsa: bool) -> None:
    roles = identity.Roles(session, spec, PLACE, "oidc.eks.us-west-2.amazonaws.com/id/ABC")
    account = service_accounts.ServiceAccount("training", "x-train", "trains", {})
    (statement,) = roles.trust(account, irsa)["Statement"]
    equal = statement["Condition"]["StringEquals"]
    if irsa:
        assert statement["Principal"]["Federated"].endswith(":oidc-provider/" + roles.issuer)
        assert set(equal.values()) == {"system:serviceaccount:training:x-train", "sts.amazonaws.com"}
        return
    assert equal["aws:SourceAccount"] == PLACE.account
    assert equal["aws:RequestTag/eks-cluster-arn"] == "arn:aws:eks:us-west-2:123456789012:cluster/cpu-demo"
    assert equal["aws:RequestTag/kubernetes-namespace"] == "training"
    assert equal["aws:RequestTag/kubernetes-service-account"] == "x-train"


def written() -> Iterator[tuple[str, Policy]]:
    """Yield every policy that we write, with the most rights that facts can give."""
    for name in CLUSTERS:
        spec = specs.load(repo.root(), name)
        for one in service_accounts.of(spec, PLACE, with_runs=True):
            yield f"{name} {one.name}", one.policy
    yield "fsx", policies.fsx_driver(PLACE, "training", dynamic=True)
    yield "secrets", policies.secret_reader(PLACE, "training")
    yield "reader", policies.reader(policies.Bucket("b", PLACE.account, "aws"), "text/")
    yield "codebuild", codebuild.policy(PROJECT)


PROJECT = Project(PLACE.account, HOME, "team/train")


def self_granted(policy: Policy) -> set[str]:
    """Return the actions that depend on a resource tag that the same policy allows to set later."""
    tagging, depends = False, set()
    for statement in policy["Statement"]:
        keys = {key for operator in statement.get("Condition", {}).values() for key in operator}
        for action in statement["Action"]:
            verb = action.partition(":")[2]
            if verb.startswith(("Tag", "Untag", "CreateTags", "DeleteTags", "AddTags")):
                tagging |= "ec2:CreateAction" not in keys
            elif any("ResourceTag/" in key for key in keys):
                depends.add(action)
    return depends if tagging else set()


def test_no_policy_gives_a_right_by_a_tag_that_it_may_set() -> None:
    for title, policy in written():
        assert self_granted(policy) == set(), title
    owned = {"StringEquals": {"aws:ResourceTag/trainyard/team": "training"}}
    control = policies.fsx_driver(PLACE, "training", dynamic=True)
    control["Statement"].append({"Action": ["fsx:DeleteFileSystem"], "Condition": owned})
    assert self_granted(control) == {"fsx:DeleteFileSystem"}


def test_every_policy_names_region_and_account_and_deletes_nothing() -> None:
    """S3's ARNs have neither, so a condition names the owner of the bucket. Few actions have no resource."""
    without = {"fsx:DescribeFileSystems", "ecr:GetAuthorizationToken"}
    for title, policy in written():
        for statement in policy["Statement"]:
            actions, resources = statement["Action"], statement["Resource"]
            assert not [one for one in actions if "Delete" in one or "*" in one or "Untag" in one], title
            for arn in [resources] if isinstance(resources, str) else resources:
                if arn == "*":
                    assert set(actions) <= without, (title, actions)
                    continue
                _, _, service, region, account, _ = arn.split(":", 5)
                if service == "s3":
                    assert statement["Condition"]["StringEquals"]["aws:ResourceAccount"] == PLACE.account
                    continue
                assert account == PLACE.account, (title, arn)
                assert region == ("" if service == "iam" else HOME), (title, arn)


def test_a_trainer_writes_below_its_own_run_only() -> None:
    spec = specs.load(repo.root(), "gpu")
    trainers = [one for one in service_accounts.of(spec, PLACE, with_runs=True) if one.purpose == "trains"]
    places = set()
    for one in trainers:
        (write,) = [row for row in one.policy["Statement"] if "s3:PutObject" in row["Action"]]
        assert write["Resource"] == [f"arn:aws:s3:::example-training-data/runs/training/{one.name}/*"]
        places.add(write["Resource"][0])
    assert len(places) == len(trainers) > 1
    names = {one.name for one in service_accounts.of(spec, PLACE)}
    assert not [name for name in names if "pruner" in name]


def test_codebuild_projects_do_not_collide(session: Session, gaps: Gaps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by punctuation, by length, by region, or with a project that another user made."""
    ignore_bucket_policies(monkeypatch)
    names = ["team/trainer-cuda", "team-trainer-cuda", "team/trainer/cuda", "a" * 60 + "/b", "a" * 60 + "/c"]
    projects = [Project(PLACE.account, region, name) for name in names for region in (HOME, AWAY)]
    assert len({one.name for one in projects}) == len(projects)
    assert max(len(one.name) for one in projects) <= 64
    trusted = codebuild.policy(PROJECT, "trust")["Statement"][0]["Condition"]["StringEquals"]
    assert trusted["aws:SourceArn"].endswith(f":{PLACE.account}:project/{PROJECT.name}")
    codebuild.ensure(session, PROJECT, print)
    text = session.call("s3", "get_bucket_policy", Bucket=PROJECT.bucket)["Policy"]
    assert json.loads(text)["Statement"][0]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert codebuild.ensure(session, PROJECT, print) == [], "control: ours is used again"
    other = {**codebuild.TAG, codebuild.REPOSITORY_TAG: "us-west-2/other"}
    for tags, role in (
        ({}, PROJECT.role_arn),
        (other, PROJECT.role_arn),
        (PROJECT.tags, "arn:aws:iam::1:role/x"),
    ):
        found = {"name": PROJECT.name, "serviceRole": role, "tags": codebuild._tags(tags, "key", "value")}
        gaps["codebuild", "batch_get_projects"] = {"projects": [found]}
        for use in (codebuild.ensure, codebuild.cleanup):
            with pytest.raises(UserError, match=r"is not trainyard's|has the role arn"):
                use(session, PROJECT, print)


def test_access_says_what_to_allow(session: Session, gaps: Gaps, checkout: Path, yard: Yard) -> None:
    """No default, the team's group, what is broader, and no mark on the entry of another user."""
    entries = Access(gaps)
    arn = "arn:aws:iam::123456789012:role/team"
    assert (yard("access", "gpu", arn).code, entries.entries) == (2, {})
    assert yard("access", "gpu", arn, "--policy", "team").code == 2
    assert yard("access", "gpu", arn, "--policy", "team", "--namespace", "system:masters").code == 2
    team = ("--policy", "team", "--namespace", "training")
    ran = yard("access", "gpu", arn, *team)
    assert (ran.code, entries.groups[arn]) == (0, [ownership.ENTRY_GROUP, "trainyard-team:training"]), ran
    assert entries.entries[arn] == {}, "no policy of EKS"
    broad = f"{arn}-admin"
    entries.create_access_entry("gpu", broad, "STANDARD", {})
    everything = {"arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy": {"type": "cluster"}}
    entries.entries[broad] = everything
    ran = yard("access", "gpu", broad, *team)
    assert "stays: AmazonEKSClusterAdminPolicy in the whole cluster" in ran.out, ran
    assert entries.groups[broad] == ["trainyard-team:training"]


def test_a_bucket_without_versions_fails(session: Session, change: Change) -> None:
    spec = change("gpu", S3_BUCKET="runs-of-team")
    (missing,) = bucket.check(session, spec)
    make_bucket(session, "runs-of-team", versioned=False)
    (finding,) = bucket.check(session, spec)
    assert (missing.state, finding.state) == (State.FAIL, State.FAIL)
    make_bucket(session, "versioned")
    (control,) = bucket.check(session, change("gpu", S3_BUCKET="versioned"))
    assert control.state is State.PASS
