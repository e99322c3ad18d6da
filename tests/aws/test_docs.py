"""Every `yard cluster` command of a page is run, in the page's order, and does what the page says."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import boto3
import click
import pytest

from tests.aws.account import make_bucket
from tests.aws.conftest import Gaps, StandIn, Yard
from tests.aws.eks_state import Access, Associations
from tests.aws.kubectl import World
from tests.aws.test_access import simulator
from tests.aws.test_network import Addon
from tests.aws.test_validate import whole
from tests.house import printed
from tools import cli
from tools.aws.session import Session
from tools.cluster import teardown
from tools.core import repo

# The whole road in one test: half a minute, and a busy machine has less for it.
pytestmark = pytest.mark.timeout(600)
ROOT = repo.root()
PAGE = "docs/clusters.md"
TUTORIALS = ("README.md", *(f"docs/tutorials/{name}.md" for name in ("eks", "hyperpod", "trainium")))
PAGES = (PAGE, *(pytest.param(page, marks=pytest.mark.long) for page in TUTORIALS))
# What each command's verdict is in this world; all others exit with 0.
CODES = {
    "yard cluster capacity m5.2xlarge 2 --cluster cpu-demo": 3,  # nothing is reserved
    "yard cluster capacity p5.48xlarge 4 --cluster gpu": 3,
    "yard cluster capacity trn1.32xlarge 2 --cluster trn1": 3,
    "yard cluster network cpu-demo": 3,  # moto's cluster has no node and no security group
    "yard cluster access cpu-demo --policy admin --dry-run": 1,
    "yard cluster identity cpu-demo --apply --irsa --dry-run": 1,
    "yard cluster down cpu-demo --dry-run": 1,
    "yard cluster down trn1 --dry-run": 1,
    "yard cluster validate gpu-hyperpod": 1,  # the stand-in for kubectl applies no platform
}
SAID = {
    "yard cluster whoami --region us-west-2": "123456789012",
    "yard cluster create cpu-demo": "node group cpu: ACTIVE, 2 nodes",
    "yard cluster kubeconfig cpu-demo": "context cpu-demo written",
    "yard cluster access cpu-demo --policy admin --dry-run": "+ access entry",
    "yard cluster identity cpu-demo --apply --irsa --dry-run": "+ identity provider oidc.eks",
    "yard cluster cost cpu-demo": "per month",
    "yard cluster down cpu-demo --yes --expect 9": "nothing that is provably ours is left",
    "yard cluster stack gpu": "AWS::EC2::LaunchTemplate",
    "yard cluster adopt gpu-hyperpod --dry-run": "eksctl create accessentry",
}


def commands(page: str) -> list[str]:
    """Return the page's commands that are run here, without the directory of `yard`."""
    mine = printed.run_by("tests/aws/test_docs.py")
    lines = [command.line for command in printed.printed() if command.page == page and command.line in mine]
    return [line.removeprefix(".venv/bin/") for line in lines]


@pytest.fixture
def road(
    moto_server: str,
    gaps: Gaps,
    checkout: Path,
    stand_in: StandIn,
    own_steps: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An account behind a server, stand-ins for the programs, and answers that moto lacks."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server)
    stand_in("eksctl")
    stand_in("aws")
    objects = whole()
    for item in objects["nodes"]:
        item["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "m5.2xlarge"
    World(objects).install(monkeypatch)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    Access(gaps)
    Associations(gaps)
    Addon(gaps)
    quota = {"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-417A185B", "Value": 2000.0}}
    gaps["service-quotas", "get_service_quota"] = quota
    gaps["ec2", "describe_capacity_reservations"] = {"CapacityReservations": []}
    gaps["ec2", "describe_capacity_block_offerings"] = {"CapacityBlockOfferings": []}
    simulator(gaps)
    make_bucket(Session("us-west-2"), "example-training-data")
    eks = boto3.client("eks", region_name="us-west-2")
    for name in eks.list_clusters()["clusters"]:
        for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
            eks.delete_nodegroup(clusterName=name, nodegroupName=group)
        eks.delete_cluster(name=name)
    ec2 = boto3.client("ec2", region_name="us-west-2")
    vpc = {"subnetIds": [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]][:2]}
    role = "arn:aws:iam::123456789012:role/eks"
    eks.create_cluster(name="behind", version="1.35", roleArn=role, resourcesVpcConfig=vpc)
    gaps["sagemaker", "describe_cluster"] = {
        "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
        "ClusterName": "ml-cluster",
        "ClusterStatus": "InService",
        "InstanceGroups": [],
        "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/behind"}},
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_runs(page: str, road: None, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("cpu-demo\n"))  # what `down` asks for
    lines, said = commands(page), ""
    assert lines, "the page has lost its commands"
    for line in lines:
        ran = yard(*shlex.split(line)[2:])
        assert ran.code == CODES.get(line, 0), f"{line}: {ran.code}\n{ran.out}\n{ran.err}"
        assert SAID.get(line, "") in ran.out, f"{line}\n{ran.out}"
        said += ran.out + ran.err
    for kind, text in printed.fences(ROOT / page) if "tutorials" in page else ():
        if kind == "text":
            assert [shown for shown in text.splitlines() if shown not in said.splitlines()] == [], page


def test_every_command_that_is_expected_is_printed() -> None:
    there = {line for page in (PAGE, *TUTORIALS) for line in commands(page)}
    assert set(CODES) | set(SAID) <= there
    mine = {line.removeprefix(".venv/bin/") for line in printed.run_by("tests/aws/test_docs.py")}
    assert mine == there


def test_every_command_answers_as_data() -> None:
    """All but `stack`, whose answer is JSON in any case, and the groups."""
    group = cli.yard.get_command(click.Context(cli.yard), "cluster")
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        options = {word for parameter in command.params for word in parameter.opts}
        assert ("--json" in options) == (name != "stack" and not isinstance(command, click.Group)), name


def test_the_page_has_every_command_of_the_group() -> None:
    told = {line.split()[2] for line in commands(PAGE)}
    files = (repo.root() / "tools/cli/cluster").glob("*.py")
    there = {path.stem for path in files if not path.stem.startswith("_")}
    assert there == told
