"""Every `yard cluster` command that calls AWS, with every kind of failure.

A caller starts without any permission and gets, one by one, those that the command reports as missing.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.handlers
import pytest

from tests.aws.account import ROLE, Network, make_bucket, make_cluster, make_network
from tests.aws.conftest import KEYS, Change, Gaps, StandIn, Yard
from tests.aws.eks_state import Access, Associations
from tests.aws.kubectl import World
from tests.aws.test_access import simulator
from tests.aws.test_config import offer_versions
from tests.aws.test_network import Addon
from tests.aws.test_teardown import marks, populate
from tests.aws.test_validate import whole
from tests.aws.wire import Trouble, Unreached, Wire
from tools import cli
from tools.aws import retry_budget
from tools.aws import session as sessions
from tools.aws.session import Session
from tools.cells import kustomize
from tools.cluster import steps, teardown
from tools.cluster.snapshot import CHECKED, CLASSES
from tools.cluster.steps import Step

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS")
REGION, ZONES = "us-west-2", ["us-west-2a", "us-west-2b"]
ARN = "arn:aws:any:us-west-2:123456789012:thing/{action}"
DENIED = Trouble(
    "AccessDeniedException",
    403,
    "User: arn:aws:sts::123456789012:assumed-role/dev/jane is not authorized to perform: {action} "
    f"on resource: {ARN} because no identity-based policy allows the {{action}} action",
)
# Failures of all requests, as AWS answers them, and a part of our error.
EVERYWHERE: dict[str, tuple[Trouble | Unreached, str]] = {
    "expired": (
        Trouble("ExpiredTokenException", 403, "The security token included in the request is expired"),
        "the AWS credentials have expired",
    ),
    "unknown keys": (
        Trouble("UnrecognizedClientException", 403, "The security token is invalid."),
        "AWS does not know these credentials",
    ),
    "throttled": (Trouble("ThrottlingException", 400, "Rate exceeded"), "no answer after 5 attempts"),
    "unreached": (Unreached(), "AWS cannot be reached"),
}
# The commands, and their exit code without a failure.
COMMANDS = {
    "whoami": 0,
    "zones m5.2xlarge": 0,
    "init cpu-demo --eks cpu-demo --yes": 0,
    "init gpu-hyperpod --hyperpod ml --yes": 0,
    "config cpu-demo --verify": 0,
    "stack gpu --deploy": 0,
    "create cpu-demo --dry-run": 0,
    "create cpu-demo": 0,
    "adopt gpu-hyperpod --dry-run": 0,
    "adopt gpu-hyperpod": 0,
    "access cpu-demo arn:aws:sts::123456789012:assumed-role/team/jane --policy admin": 0,
    "kubeconfig cpu-demo": 0,
    "identity cpu-demo --simulate": 0,
    "identity cpu-demo --apply": 0,
    "identity cpu-demo --apply --irsa": 0,
    "network cpu-demo": 0,
    "network cpu-demo --prefix-delegation on": 0,
    "capacity p5.48xlarge 2 --cluster cpu-demo": 3,
    "scale cpu-demo cpu 2": 0,
    "cost cpu-demo": 0,
    "down cpu-demo --dry-run": 1,
    "down cpu-demo --yes --expect 9": 0,
}
# Exit codes without some permissions, other than 3.
WITHOUT = {"ec2:CreateFleet": 1, "iam:SimulatePrincipalPolicy": 0}
MISSING = re.compile(r"allows? (\w+:\w+)")
NAMED = re.compile(r"a policy that allows (\w+:\w+) on (\S+)")


def fill(session: Session) -> None:
    """Create our cluster with both its node groups."""
    populate(session, "cpu-demo")
    where = {"clusterName": "cpu-demo", "nodegroupName": "system", "nodeRole": ROLE, "subnets": ["subnet-1"]}
    session.call("eks", "create_nodegroup", **where, tags=marks("cpu-demo"))


@pytest.fixture(scope="module")
def account() -> Iterator[Network]:
    """An account with our cluster and two others."""
    from moto import mock_aws

    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", KEYS["MOTO_EC2_LOAD_DEFAULT_AMIS"])
        session = Session(REGION)
        fill(session)
        for name, cidr in (("gpu", "10.7"), ("gpu-hyperpod-eks", "10.8")):
            network = make_network(session, ZONES, cidr)
            make_cluster(session, name, network)
        session.call("iam", "create_role", RoleName="team", AssumeRolePolicyDocument="{}")
        yield network


def run_here(step: Step, *_: Any) -> None:
    """Run yard's own commands of `create` in this process, and skip those of eksctl."""
    if step.words[0] == "yard":
        cli.yard.main(args=list(step.words[1:]), standalone_mode=False)


@pytest.fixture
def wire(
    account: Network,
    gaps: Gaps,
    change: Change,
    stand_in: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Wire:
    """The connection between a command and AWS, without a failure."""
    wire: Wire = gaps.wire
    handlers = wire.before(botocore.handlers.BUILTIN_HANDLERS)
    monkeypatch.setattr(botocore.handlers, "BUILTIN_HANDLERS", handlers)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    stand_in("aws")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setattr(steps, "run", run_here)
    Access(gaps)
    Associations(gaps)
    Addon(gaps)
    offer_versions(gaps, **{"1.35": "STANDARD_SUPPORT"})
    simulator(gaps)
    quota = {"Quota": {"ServiceCode": "ec2", "QuotaCode": "L-417A185B", "Value": 2000.0}}
    gaps["service-quotas", "get_service_quota"] = quota
    gaps["ec2", "describe_capacity_reservations"] = {"CapacityReservations": []}
    gaps["ec2", "describe_capacity_block_offerings"] = {"CapacityBlockOfferings": []}
    gaps["sagemaker", "describe_cluster"] = {
        "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
        "ClusterName": "ml",
        "ClusterStatus": "InService",
        "InstanceGroups": [],
        "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/gpu"}},
    }
    change("gpu", CLUSTER_VPC_ID=account.vpc, CLUSTER_SECURITY_GROUP_IDS=account.group)
    change("gpu-hyperpod", CLUSTER_NAME="gpu-hyperpod-eks")
    return wire


@pytest.mark.parametrize("command", COMMANDS)
def test_every_failure_is_one_sentence(wire: Wire, command: str, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    words = command.split()
    for name, (trouble, said) in EVERYWHERE.items():
        wire.trouble, wire.asked = trouble, []
        ran = yard(*words)
        assert (ran.code, ran.out, ran.err.count("error:")) == (3, "", 1), (name, ran)
        assert said in ran.err, (name, ran)
        if name in ("throttled", "unreached"):
            assert len(wire.asked) == sessions.ATTEMPTS, wire.asked
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(key)
    ran = yard(*words)
    assert (ran.code, ran.out, ran.err.count("no AWS credentials were found")) == (3, "", 1), ran


@pytest.fixture
def clients_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are created once for each service and not for each run of a command."""
    import boto3

    make, made = boto3.Session.client, {}

    def client(self: Any, service: str, region_name: str, config: Any) -> Any:
        if (service, region_name) not in made:
            made[service, region_name] = make(self, service, region_name=region_name, config=config)
        return made[service, region_name]

    monkeypatch.setattr(boto3.Session, "client", client)


def expecting(yard: Yard, wire: Wire, command: str) -> list[str]:
    """Return the words of a command, with the number of resources that `down` lists without a trouble."""
    words = command.split()
    if "--expect" in words:
        trouble, wire.trouble = wire.trouble, None
        listed = json.loads(yard("down", "cpu-demo", "--dry-run", "--json").out)["delete"]
        words[-1], wire.trouble = str(len(listed)), trouble
    return words


@pytest.mark.usefixtures("clients_once")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_missing_permission_is_named(wire: Wire, command: str, yard: Yard) -> None:
    wire.trouble = DENIED
    while True:
        words = expecting(yard, wire, command)
        wire.asked.clear()
        ran = yard(*words)
        missing = set(MISSING.findall(ran.out + ran.err))
        if not missing:
            break
        assert missing <= set(wire.asked) - wire.allowed, ran
        named = set(NAMED.findall(ran.out + ran.err))
        assert named == {(one, ARN.format(action=one)) for one, _ in named}, ran
        assert named or words[0] in ("whoami", "access"), ran  # which continue without the role's path
        codes = {WITHOUT.get(one, 3) for one in missing}
        # A dry run that cannot see all of what is kept still lists all of what would be deleted.
        dry = words[-1] == "--dry-run" and ran.code == COMMANDS[command] == 1
        assert dry or ran.code == (1 if 1 in codes else max(codes)), ran
        wire.allowed |= missing
    assert ran.code == COMMANDS[command], ran
    assert wire.allowed, "it called AWS"
    wire.trouble = None
    emptied = words[0] == "down" and "--yes" in words
    if emptied:
        fill(Session(REGION))
    words = expecting(yard, wire, command)
    if words[0] != "stack" and command not in ("create cpu-demo", "adopt gpu-hyperpod"):
        ran = yard(*words, "--json")
        json.loads(ran.out)
        assert ran.code == COMMANDS[command], "once more, as data"
    if emptied:
        fill(Session(REGION))  # for the next tests


# Messages of kubectl for a cluster that does not answer, and a part of our error.
UNSEEN = {
    "the API server is down": (
        "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?\n"
        "error: dial tcp 10.0.0.1:443: connect: connection refused",
        "check that the cluster is up",
    ),
    "no such host": (
        "Unable to connect to the server: dial tcp: lookup api.example: no such host",
        "address in the kubeconfig",
    ),
    "no answer": ("Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout", "i/o timeout"),
    "credentials have run out": (
        "error: You must be logged in to the server (Unauthorized)",
        "the credentials of this context have expired",
    ),
}
KUBECTL_COMMANDS = (
    "validate gpu",
    "validate gpu --fix",
    "validate",
    "nodes",
    "network",
    "cost",
    "init lab",
    "run list --cluster cpu-demo",
    "run check --cluster cpu-demo --live",
)


@pytest.mark.parametrize("command", KUBECTL_COMMANDS)
def test_every_failure_of_kubectl_is_one_sentence(
    command: str, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$COMPLAINT" >&2\nexit 1\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(kustomize, "ensure", lambda root, say: None)  # which would run kubectl
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, (complaint, said) in UNSEEN.items():
        monkeypatch.setenv("COMPLAINT", complaint)
        ran = yard(*command.split())
        assert (ran.code, ran.err.count("error:"), said in ran.err) == (3, 1, True), (name, ran)
        assert not ran.out or "not asked" in ran.out, (name, ran)  # the runs in git
    monkeypatch.setenv("COMPLAINT", 'error: context "nowhere" does not exist')
    ran = yard(*command.split())
    assert ran.code in (2, 3), ran
    assert "get-contexts" in ran.err, ran
    monkeypatch.setenv("PATH", "/nonexistent")
    ran = yard(*command.split())
    assert ran.code in (2, 3), ran
    assert "no kubectl on PATH" in ran.err, ran


@pytest.mark.parametrize("kind", CHECKED)
def test_a_denied_kind_hides_only_itself(
    kind: str, session: Session, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bucket(session, "example-training-data")
    objects = whole()
    if kind == CLASSES:  # asked for a claim that waits
        objects["persistentvolumeclaims"][0]["status"]["phase"] = "Pending"
    World(objects, hidden=[kind]).install(monkeypatch)
    ran = yard("validate", "gpu")
    assert (ran.code, "FAIL " in ran.out, f"{kind} is forbidden" in ran.out) == (3, False, True), ran


def test_a_long_wait_is_reported_and_limited(wire: Wire, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt takes a second here, and all of them together at most FAILED_SECONDS."""
    for name, seconds in (("QUIET_SECONDS", 0.0), ("SAY_SECONDS", 0.02), ("FAILED_SECONDS", 3.0)):
        monkeypatch.setattr(retry_budget, name, seconds)
    now = [0.0]
    monkeypatch.setattr("tools.aws.retry_budget.time.monotonic", lambda: now[0])

    class Slow(Unreached):
        def answer(self, request: Any, service: str, operation: str) -> Any:
            now[0] += 1.0
            threading.Event().wait(0.1)  # for the thread that reports
            return super().answer(request, service, operation)

    wire.trouble, wire.allowed = Slow(), {"ec2:DescribeCapacityReservations"}
    ran = yard("capacity", "p5.48xlarge", "2", "--cluster", "cpu-demo", "--region", REGION)
    assert (ran.code, ran.out.count("AWS cannot be reached")) == (3, 4), ran
    assert "waiting for AWS: ec2:DescribeInstanceTypeOfferings in us-west-2" in ran.err
    # Three attempts for EC2, which is then skipped, and one for the quotas, because the time is spent.
    assert [one.partition(":")[0] for one in wire.asked] == ["ec2"] * 3 + ["servicequotas"], wire.asked
