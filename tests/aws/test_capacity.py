"""Capacity, check by check. moto has zones and dry runs; quotas and reservations have botocore's shapes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.aws.account import make_network, make_nodes
from tests.aws.conftest import Gaps, Yard, refusal
from tools.aws.session import Session
from tools.cluster import capacity, offers
from tools.cluster.finding import Finding
from tools.core.verdict import State
from tools.facts.instances import INSTANCES, instance

P_CODE = "L-417A185B"


def give_quota(gaps: Gaps, applied: float | None, default: float) -> None:
    row = {"ServiceCode": "ec2", "QuotaCode": P_CODE}
    missing = refusal("NoSuchResourceException", "no such quota")
    gaps["service-quotas", "get_service_quota"] = (
        {"Quota": {**row, "Value": applied}} if applied is not None else missing
    )
    gaps["service-quotas", "get_aws_default_service_quota"] = {"Quota": {**row, "Value": default}}


def give_reservation(gaps: Gaps, free: int, **fields: Any) -> None:
    row = {
        "CapacityReservationId": "cr-01234567",
        "ReservationType": "capacity-block",
        "AvailabilityZone": "us-west-2a",
        "AvailableInstanceCount": free,
        "TotalInstanceCount": 4,
        **fields,
    }
    gaps["ec2", "describe_capacity_reservations"] = {"CapacityReservations": [row] if free else []}


@pytest.fixture
def world(gaps: Gaps, session: Session) -> Any:
    """A quota for four p5, no reservation, no block on offer, a launch template."""
    give_quota(gaps, 768.0, 0.0)
    give_reservation(gaps, 0)
    gaps["ec2", "describe_capacity_block_offerings"] = {"CapacityBlockOfferings": []}
    data = {"ImageId": "ami-12c6146b"}
    session.call("ec2", "create_launch_template", LaunchTemplateName="t", LaunchTemplateData=data)
    return gaps


def findings(session: Session, kind: str = "p5.48xlarge", count: int = 2, **options: Any) -> dict[str, Finding]:
    wanted = capacity.Wanted(instance(kind), count, **options)
    found = capacity.check(session, wanted)
    return {one.name: one for one in [*found, capacity.verdict(found, wanted)]}


def test_no_known_obstacle_is_not_a_pass(world: Gaps, session: Session) -> None:
    network = make_network(session, ["us-west-2a"])
    found = findings(session, vpc=network.vpc)
    passed = {name for name, one in found.items() if one.state is State.PASS}
    unknown = {name for name, one in found.items() if one.state is State.CANNOT_TELL}
    assert passed == {"offered", "addresses", "quota", "permission"}
    assert unknown == {"reservations", "capacity block", "capacity"} == set(found) - passed
    assert "only a launch shows free capacity" in found["capacity"].summary


def test_what_is_reserved_is_a_yes_whatever_the_quota(world: Gaps, session: Session) -> None:
    give_reservation(world, 2)
    give_quota(world, 0.0, 0.0)
    network = make_network(session, ["us-west-2a"])
    found = findings(session, vpc=network.vpc)
    assert found["quota"].state is State.PASS
    assert found["capacity"].state is State.PASS
    assert findings(session, count=3, vpc=network.vpc)["capacity"].state is State.FAIL
    assert findings(session, zone="us-west-2b", vpc=network.vpc)["capacity"].state is State.FAIL


@pytest.mark.parametrize(
    ("row", "options", "counts"),
    [
        ({"InstanceMatchCriteria": "targeted"}, {}, True),
        ({"State": "scheduled", "StartDate": datetime(2027, 1, 1, tzinfo=UTC)}, {}, False),
        ({"InstancePlatform": "Windows"}, {}, False),
        ({"Tenancy": "dedicated"}, {}, False),
        ({"AvailabilityZone": "us-west-2b"}, {"zone": "us-west-2a"}, False),
        ({}, {"spot": True}, False),
    ],
)
def test_a_reservation_counts_where_nodes_may_start_in_it(
    world: Gaps, session: Session, row: dict[str, Any], options: dict[str, Any], counts: bool
) -> None:
    whole = {"InstancePlatform": "Linux/UNIX", "Tenancy": "default", "State": "active"}
    give_reservation(world, 4, **whole | row)
    give_quota(world, 0.0, 0.0)
    found = findings(session, **options)
    assert found["reservations"].state is (State.PASS if counts else State.CANNOT_TELL)
    assert found["quota"].state is (State.PASS if counts else State.FAIL), "a reservation needs no quota"


def test_a_small_quota_fails(world: Gaps, session: Session) -> None:
    """With 192 vCPUs each, four instances fit a quota of 768. A running instance counts."""
    network = make_network(session, ["us-west-2a"])
    assert findings(session, count=4)["quota"].state is State.PASS
    assert findings(session, count=5)["quota"].state is State.FAIL
    make_nodes(session, "p5.48xlarge", 1, network, "us-west-2a")
    make_nodes(session, "m5.large", 3, network, "us-west-2a")
    found = findings(session, count=4)["quota"]
    assert found.state is State.FAIL
    assert "192 in use" in found.evidence[0]


def test_the_default_quota_holds_where_none_is_applied(world: Gaps, session: Session) -> None:
    give_quota(world, None, 0.0)
    found = findings(session)["quota"]
    assert (found.state, "default" in found.evidence[0]) == (State.FAIL, True)


def test_small_subnets_fail(world: Gaps, session: Session) -> None:
    """A /24 has 251 addresses. A p5.48xlarge needs one for each of its 32 interfaces."""
    network = make_network(session, ["us-west-2a", "us-west-2b"])
    assert findings(session, count=7, vpc=network.vpc)["addresses"].state is State.PASS
    found = findings(session, count=8, vpc=network.vpc)["addresses"]
    assert (found.state, "256 needed" in found.summary) == (State.FAIL, True)


def test_without_a_vpc_the_addresses_are_unknown(world: Gaps, session: Session) -> None:
    assert findings(session)["addresses"].state is State.CANNOT_TELL


def test_a_zone_without_the_type_fails(world: Gaps, session: Session) -> None:
    there = {zone.name for zone in offers.offering(session, "trn1.32xlarge")}
    absent = next(zone.name for zone in offers.zones(session) if zone.name not in there)
    found = findings(session, "trn1.32xlarge", zone=absent)
    assert found["offered"].state is State.FAIL
    assert found["capacity"].state is State.FAIL


def test_a_dry_run_starts_nothing(world: Gaps, session: Session) -> None:
    findings(session)
    assert session.call("ec2", "describe_instances")["Reservations"] == []


def test_the_first_block_on_offer_is_named_with_its_price(world: Gaps, session: Session) -> None:
    rows = [
        {
            "CapacityBlockOfferingId": f"cb-{day}",
            "StartDate": datetime(2026, 12, day, 11, 30, tzinfo=UTC),
            "AvailabilityZone": "us-west-2a",
            "UpfrontFee": fee,
            "CurrencyCode": "USD",
        }
        for day, fee in ((9, "1.0"), (3, "1887.84"))
    ]
    world["ec2", "describe_capacity_block_offerings"] = {"CapacityBlockOfferings": rows}
    found = findings(session)["capacity block"]
    assert "from 2026-12-03 11:30 UTC in us-west-2a for 1887.84 USD" in found.summary
    assert "cb-3" in (found.remedy or "")


@pytest.mark.parametrize("name", INSTANCES)
def test_every_type_has_a_quota(name: str) -> None:
    title, code = capacity._class(capacity.Wanted(instance(name), 1))
    assert {"p": "P", "g": "G and VT", "t": "Trn"}.get(name[0], "Standard") == title
    assert code != capacity._class(capacity.Wanted(instance(name), 1, spot=True))[1]


def test_what_hides_everything_is_one_error(world: Gaps, yard: Yard) -> None:
    """A missing region and unknown keys are reported once, not for each check."""
    ran = yard("capacity", "p5.48xlarge", "4")
    assert (ran.code, ran.out, ran.err.count("no AWS region is set")) == (2, "", 1)
    world["ec2", "describe_capacity_reservations"] = refusal("AuthFailure", "not able to validate", 401)
    ran = yard("capacity", "p5.48xlarge", "4", "--region", "us-west-2")
    assert (ran.code, ran.out, ran.err.count("AWS does not know these credentials")) == (3, "", 1)


def test_the_command_exits_with_the_verdict(world: Gaps, yard: Yard) -> None:
    ran = yard("capacity", "p5.48xlarge", "5", "--region", "us-west-2", "--json")
    assert (ran.code, json.loads(ran.out)["verdict"]["level"]) == (1, "FAIL")
    give_reservation(world, 4)
    assert yard("capacity", "ml.p5.48xlarge", "2", "--region", "us-west-2").code == 3, "no VPC was given"
    assert yard("capacity", "p5.48xl", "2", "--region", "us-west-2").code == 2


def test_zones_in_order_of_room(session: Session, yard: Yard) -> None:
    network = make_network(session, ["us-west-2b", "us-west-2a"])
    block = {"VpcId": network.vpc, "CidrBlock": "10.0.9.0/24", "AvailabilityZone": "us-west-2b"}
    session.call("ec2", "create_subnet", **block)
    ran = yard("zones", "g5.8xlarge", "--vpc", network.vpc, "--region", "us-west-2")
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in lines[:2]] == ["us-west-2b", "us-west-2a"]
    assert lines[0][1].startswith("usw2-az")
    assert lines[0][2] == "502"
    nowhere = yard("zones", "p6-b300.48xlarge", "--region", "eu-west-3")
    assert (nowhere.code, "no zone of eu-west-3 offers" in nowhere.err) == (1, True)
