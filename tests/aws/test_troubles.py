"""Every `yard cluster` command that asks AWS, in every trouble: one table of commands, one of troubles.

A caller starts with no right at all and is given, one by one, what the command says is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.handlers
import pytest

from tests.aws.account import Network, make_cluster, make_network
from tests.aws.conftest import KEYS
from tests.aws.eks_state import Access, Associations
from tests.aws.test_access import simulator
from tests.aws.test_config import offer_versions
from tests.aws.test_network import Addon
from tests.aws.test_teardown import populate
from tests.aws.wire import Trouble, Unreached, Wire
from tools.aws import session as sessions
from tools.aws import teardown
from tools.aws.session import Session
from tools.aws.spec import Spec

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS")
REGION, ZONES = "us-west-2", ["us-west-2a", "us-west-2b"]
ARN = "arn:aws:any:us-west-2:123456789012:thing/it"
DENIED = Trouble(
    "AccessDeniedException",
    403,
    "User: arn:aws:sts::123456789012:assumed-role/dev/jane is not authorized to perform: {action} "
    f"on resource: {ARN} because no identity-based policy allows the {{action}} action",
)
# What hides everything, as AWS answers it, and what is then said.
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
# A command, and what it exits with where all is well.
COMMANDS = {
    "whoami": 0,
    "zones m5.2xlarge": 0,
    "facts cpu-demo": 0,
    "facts gpu-hyperpod --hyperpod ml": 0,
    "config cpu-demo --verify": 0,
    "stack gpu --deploy": 0,
    "create cpu-demo --dry-run": 0,
    "adopt gpu-hyperpod --dry-run": 0,
    "access cpu-demo arn:aws:sts::123456789012:assumed-role/team/jane": 0,
    "kubeconfig cpu-demo": 0,
    "identity cpu-demo --simulate": 0,
    "identity cpu-demo --apply": 0,
    "identity cpu-demo --apply --irsa": 0,
    "network cpu-demo": 0,
    "network cpu-demo --prefix-delegation on": 0,
    "capacity p5.48xlarge 2 --cluster cpu-demo": 3,
    "scale cpu-demo cpu 2": 0,
    "cost cpu-demo": 3,
    "down cpu-demo --dry-run": 1,
    "down cpu-demo --yes": 0,
}
# They look at one layer after the other, and say of each what hid it.
LAYERED = ("capacity", "network", "identity")
# A right that is wanted and not had: the answer itself, and what is proved only where it may be.
WITHOUT = {"ec2:CreateFleet": 1, "iam:SimulatePrincipalPolicy": 0}
MISSING = re.compile(r"allows? (\w+:\w+)")


@pytest.fixture(scope="module")
def account() -> Iterator[Network]:
    """An account with a cluster of ours and two of others."""
    from moto import mock_aws

    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", KEYS["MOTO_EC2_LOAD_DEFAULT_AMIS"])
        session = Session(REGION)
        populate(session, "cpu-demo")
        for name, cidr in (("gpu", "10.7"), ("gpu-hyperpod-eks", "10.8")):
            network = make_network(session, ZONES, cidr)
            make_cluster(session, name, network)
        session.call("iam", "create_role", RoleName="team", AssumeRolePolicyDocument="{}")
        yield network


@pytest.fixture
def wire(
    account: Network,
    gaps: Any,
    refusal: Callable[..., Exception],
    change: Callable[..., Spec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Wire:
    """What lies between a command and AWS, with all well on it."""
    wire: Wire = gaps.wire
    handlers = wire.before(botocore.handlers.BUILTIN_HANDLERS)
    monkeypatch.setattr(botocore.handlers, "BUILTIN_HANDLERS", handlers)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("AWS_REGION", REGION)
    Access(gaps, refusal)
    Associations(gaps, refusal)
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
def test_every_trouble_is_one_sentence(
    wire: Wire, command: str, yard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command.split()
    layered = words[0] in LAYERED
    for name, (trouble, said) in EVERYWHERE.items():
        wire.trouble, wire.asked = trouble, []
        ran = yard(*words)
        assert ran.code == 3, (name, ran)
        assert said in ran.out + ran.err, (name, ran)
        assert ran.err.count("error:") == (0 if ran.out else 1), (name, ran)
        assert layered or not ran.out, (name, ran)
        if name == "throttled" and not layered:
            assert len(wire.asked) == sessions.ATTEMPTS, wire.asked
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(key)
    ran = yard(*words)
    assert (ran.code, ran.out, ran.err.count("no AWS credentials were found")) == (3, "", 1), ran


@pytest.mark.parametrize("command", COMMANDS)
def test_every_right_that_is_missing_is_named(wire: Wire, command: str, yard: Callable[..., Any]) -> None:
    words = command.split()
    wire.trouble = DENIED
    while True:
        wire.asked.clear()
        ran = yard(*words)
        missing = set(MISSING.findall(ran.out + ran.err))
        if not missing:
            break
        assert missing <= set(wire.asked) - wire.allowed, ran
        assert ran.code == next((WITHOUT[one] for one in missing if one in WITHOUT), 3), ran
        wire.allowed |= missing
    assert ran.code == COMMANDS[command], ran
    assert wire.allowed, "it asked AWS nothing"
    wire.trouble = None
    if words[0] == "down" and "--yes" in words:
        populate(Session(REGION), "cpu-demo")  # for the tests behind this one
    if words[0] != "stack":
        ran = yard(*words, "--json")
        json.loads(ran.out)
        assert ran.code == COMMANDS[command], "once more, as data"
