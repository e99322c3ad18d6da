"""Can N machines of a type be had: one answer for each layer that may say no, and one verdict.

Layers: do zones offer the type, have their subnets room, does the quota allow it, is something reserved, may
the caller start a fleet. Whether AWS has unreserved machines free is known to nobody before a launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tools.aws.session import AwsError, Session
from tools.cluster import offers
from tools.cluster.finding import Finding, Level, bad, good, look, unclear
from tools.cluster.spec import BLOCK_FAMILIES
from tools.facts.instances import INSTANCES, Instance

# EC2's quotas count vCPUs of running instances by class (EC2 user guide, On-Demand Instance quotas and Spot
# Instance quotas). Codes: what `aws service-quotas list-service-quotas --service-code ec2` prints, as public
# records of 2026-07 and 2026-10 have it; L-1216C47A also in the AWS CLI user guide, Service Quotas examples.
# Letters that a type's name begins with, name, code on demand, code of spot.
CLASSES = (
    (("p",), "P", "L-417A185B", "L-7212CCBC"),
    (("g", "vt"), "G and VT", "L-DB2E81BA", "L-3819A6DF"),
    (("trn",), "Trn", "L-2C3B7624", "L-6B0D517C"),
    (("a", "c", "d", "h", "i", "m", "r", "t", "z"), "Standard", "L-1216C47A", "L-34B43A08"),
)
INCREASE = "ask for more: Service Quotas, Amazon EC2, {name}"
BLOCK_HOURS = 24
# What need not be there: machines can be had without them.
OPTIONAL = ("reservations", "capacity block")


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    instance: Instance
    count: int
    zone: str | None = None
    vpc: str | None = None
    spot: bool = False

    @property
    def text(self) -> str:
        """Return it in words."""
        return f"{self.count} of {self.instance.name}"


def judge(session: Session, wanted: Wanted) -> list[Finding]:
    """Return one finding a layer. What AWS does not let us see is a layer that cannot be told."""
    reserved = look("reservations", lambda: reservations(session, wanted))
    found = [
        look("offered", lambda: offered(session, wanted)),
        look("addresses", lambda: addresses(session, wanted)),
        look("quota", lambda: quota(session, wanted, reserved.level is Level.PASS)),
        reserved,
        look("permission", lambda: permission(session, wanted)),
    ]
    family = wanted.instance.name.partition(".")[0]
    if family in BLOCK_FAMILIES and reserved.level is not Level.PASS and not wanted.spot:
        found.append(look("capacity block", lambda: block(session, wanted)))
    return found


def verdict(findings: list[Finding], wanted: Wanted) -> Finding:
    """Return the one answer: no where a layer says no, yes where machines are reserved, else it is open."""
    by_name = {one.name: one for one in findings}
    failed = [one.name for one in findings if one.level is Level.FAIL]
    if failed:
        return bad("capacity", f"{wanted.text} cannot be had: {', '.join(failed)}", None)
    hidden = [one.name for one in findings if one.level is Level.CANNOT_TELL and one.name not in OPTIONAL]
    if by_name["reservations"].level is Level.PASS and not hidden:
        return good("capacity", f"{wanted.text} are reserved and may be started")
    if hidden:
        return unclear("capacity", f"{wanted.text}: not everything could be seen: {', '.join(hidden)}")
    return unclear(
        "capacity",
        f"nothing known stands in the way of {wanted.text}; whether AWS has them free, only a launch tells",
    )


def offered(session: Session, wanted: Wanted) -> Finding:
    """Judge whether a zone, or the one that is wanted, offers the type."""
    there = offers.offering(session, wanted.instance.name)
    names = [f"{zone.name} ({zone.id})" for zone in there]
    if not there:
        return bad("offered", f"no zone of {session.region} offers {wanted.instance.name}", "another region")
    if wanted.zone and wanted.zone not in {zone.name for zone in there}:
        remedy = f"take {there[0].name}"
        return bad("offered", f"{wanted.zone} does not offer it", remedy, f"offered in {', '.join(names)}")
    return good("offered", f"in {', '.join(names)}")


def addresses(session: Session, wanted: Wanted) -> Finding:
    """Judge whether the subnets of an offering zone have an address for each interface of each node."""
    if wanted.vpc is None:
        return unclear(
            "addresses", "no VPC is named, so no subnet was looked at", "--vpc ID or --cluster NAME"
        )
    need = wanted.count * max(1, wanted.instance.efa)
    spare = offers.spare_addresses(session, wanted.vpc)
    zones = [zone.name for zone in offers.offering(session, wanted.instance.name)]
    zones = [zone for zone in zones if wanted.zone in (None, zone)]
    rows = [f"{zone}: {spare.get(zone, 0):,} free" for zone in zones]
    # A job's nodes are in one zone, so the room of several does not add up.
    room = max((spare.get(zone, 0) for zone in zones), default=0)
    if room >= need:
        return good("addresses", f"{need:,} wanted at most, {room:,} free in one zone", *rows)
    remedy = "larger subnets, or a secondary CIDR of the VPC"
    return bad("addresses", f"{need:,} wanted, and no zone's subnets have as many", remedy, *rows)


def quota(session: Session, wanted: Wanted, reserved: bool) -> Finding:
    """Judge vCPUs against the quota of the class, less what runs. Capacity Blocks do not count against it."""
    name, code = _class(wanted)
    need = wanted.count * wanted.instance.vcpus
    limit, source = _limit(session, code)
    used = _running_vcpus(session, name, wanted.spot)
    label = f"{'Spot' if wanted.spot else 'On-Demand'} {name}"
    line = f"{label} ({code}, {source}): {limit:,.0f} vCPUs, {used:,} in use, {need:,} wanted"
    if used + need <= limit:
        return good("quota", "enough", line)
    if reserved:
        return good("quota", "too small, but what is reserved may be started all the same", line)
    return bad("quota", "too small", INCREASE.format(name=label), line)


def reservations(session: Session, wanted: Wanted) -> Finding:
    """Judge what is reserved for this account and free: for Linux on shared machines, as nodes are."""
    if wanted.spot:
        return unclear("reservations", "spot instances take no reservation")
    filters = [
        {"Name": "instance-type", "Values": [wanted.instance.name]},
        {"Name": "state", "Values": ["active", "scheduled"]},
    ]
    rows = list(
        session.pages("ec2", "describe_capacity_reservations", "CapacityReservations", Filters=filters)
    )
    rows = [row for row in rows if wanted.zone in (None, row.get("AvailabilityZone"))]
    free = {
        row["CapacityReservationId"]: int(row.get("AvailableInstanceCount", 0))
        for row in rows
        if _usable(row)
    }
    lines = [_reservation(row) for row in rows]
    if max(free.values(), default=0) >= wanted.count:
        return good("reservations", f"{wanted.count} or more are free in one reservation", *lines)
    what = "none that nodes could use now" if not free else "none has as many free"
    return unclear("reservations", what, None, *lines)


def _usable(row: dict[str, object]) -> bool:
    """Say whether Linux nodes may start in a reservation now, if they name it."""
    platform = str(row.get("InstancePlatform") or "Linux/UNIX")
    shared = row.get("Tenancy") in (None, "default")
    return row.get("State", "active") == "active" and platform.startswith("Linux") and shared


def _reservation(row: dict[str, object]) -> str:
    """Return a reservation in words."""
    state = str(row.get("State", "active"))
    begins = f", from {row.get('StartDate')}" if state != "active" else ""
    named = ", only where it is named" if row.get("InstanceMatchCriteria") == "targeted" else ""
    foreign = "" if _usable(row) or begins else f", for {row.get('InstancePlatform')} on {row.get('Tenancy')}"
    count = f"{row.get('AvailableInstanceCount', 0)} of {row.get('TotalInstanceCount')} free"
    return (
        f"{row['CapacityReservationId']} ({row.get('ReservationType', 'default')})"
        f" in {row.get('AvailabilityZone')}: {count}{begins},"
        f" until {row.get('EndDate') or 'cancelled'}{named}{foreign}"
    )


def block(session: Session, wanted: Wanted) -> Finding:
    """Say when a Capacity Block could begin, and what it costs; buying one is left to a person."""
    now = datetime.now(UTC)
    rows = list(
        session.pages(
            "ec2",
            "describe_capacity_block_offerings",
            "CapacityBlockOfferings",
            InstanceType=wanted.instance.name,
            InstanceCount=wanted.count,
            CapacityDurationHours=BLOCK_HOURS,
            StartDateRange=now,
            EndDateRange=now + timedelta(days=56),
        )
    )
    if not rows:
        return unclear("capacity block", f"none of {BLOCK_HOURS} h is offered in the next eight weeks")
    first = min(rows, key=lambda row: row["StartDate"])
    price = f"{first.get('UpfrontFee', 'unknown')} {first.get('CurrencyCode', '')}".strip()
    where = first.get("AvailabilityZone")
    offer = first["CapacityBlockOfferingId"]
    return unclear(
        "capacity block",
        f"{BLOCK_HOURS} h are offered from {first['StartDate']:%Y-%m-%d %H:%M} UTC in {where} for {price}",
        f"aws ec2 purchase-capacity-block --capacity-block-offering-id {offer}"
        " --instance-platform Linux/UNIX",
    )


def permission(session: Session, wanted: Wanted) -> Finding:
    """Judge by a dry run whether the caller may start a fleet; AWS then starts nothing."""
    templates = session.call("ec2", "describe_launch_templates", MaxResults=5)["LaunchTemplates"]
    if not templates:
        return unclear("permission", "a fleet starts from a launch template, and the region has none")
    specification = {"LaunchTemplateId": templates[0]["LaunchTemplateId"], "Version": "$Default"}
    override = {"InstanceType": wanted.instance.name}
    kind = "spot" if wanted.spot else "on-demand"
    try:
        session.call(
            "ec2",
            "create_fleet",
            DryRun=True,
            Type="instant",
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification, "Overrides": [override]}],
            TargetCapacitySpecification={
                "TotalTargetCapacity": wanted.count,
                "DefaultTargetCapacityType": kind,
            },
        )
    except AwsError as problem:
        if problem.aws_code == "DryRunOperation":
            return good("permission", "a dry run of CreateFleet was accepted")
        if problem.kind == "denied":
            return bad("permission", problem.message, problem.hint)
        return unclear("permission", problem.message, problem.hint)
    return unclear("permission", "AWS answered the dry run otherwise than it documents")


def _class(wanted: Wanted) -> tuple[str, str]:
    """Return the quota class of a type, and its code."""
    letters = _family_letters(wanted.instance.name)
    for prefixes, name, on_demand, spot in CLASSES:
        if letters in prefixes:
            return name, spot if wanted.spot else on_demand
    raise AwsError("refused", f"the quota of {wanted.instance.name} is not known", None)


def _family_letters(name: str) -> str:
    """Return the letters before the first digit: `p5en` and `p6-b200` are p, `trn1n` is trn."""
    return next((name[:index] for index, char in enumerate(name) if char.isdigit()), name)


def _limit(session: Session, code: str) -> tuple[float, str]:
    """Return the quota that is applied to the account, or the default where none is."""
    try:
        row = session.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)["Quota"]
        return float(row["Value"]), "applied"
    except AwsError as problem:
        if problem.kind != "missing":
            raise
    row = session.call("service-quotas", "get_aws_default_service_quota", ServiceCode="ec2", QuotaCode=code)[
        "Quota"
    ]
    return float(row["Value"]), "default"


def _running_vcpus(session: Session, name: str, spot: bool) -> int:
    """Return the vCPUs of a class that run; Capacity Blocks do not count against the quota."""
    (prefixes,) = [one for one, title, _, _ in CLASSES if title == name]
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    total = 0
    for reservation in session.pages("ec2", "describe_instances", "Reservations", Filters=filters):
        for one in reservation["Instances"]:
            lifecycle = one.get("InstanceLifecycle", "")
            counted = lifecycle != "capacity-block" and (lifecycle == "spot") == spot
            if counted and _family_letters(one["InstanceType"]) in prefixes:
                total += _vcpus(one)
    return total


def _vcpus(instance: dict[str, object]) -> int:
    options = instance.get("CpuOptions")
    if isinstance(options, dict) and options.get("CoreCount"):
        return int(options["CoreCount"]) * int(options.get("ThreadsPerCore") or 1)
    known = INSTANCES.get(str(instance["InstanceType"]))
    return known.vcpus if known else 0
