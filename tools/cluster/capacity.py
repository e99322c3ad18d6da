"""Whether N instances of a type can be started: a check for each obstacle, and an overall verdict.

The checks are: zones offer the type, subnets have addresses, the quota is large enough, instances are
reserved, and the caller may start a fleet. Whether AWS has unreserved capacity is unknown before a launch.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tools.aws import AwsError, Session
from tools.cluster import offers
from tools.cluster.finding import Finding, bad, good, run, unknown
from tools.cluster.spec import BLOCK_FAMILIES
from tools.core import State, tables
from tools.facts.instances import INSTANCES, Instance

CLASSES: list[tuple[list[str], str, str, str]] = tables.load("cluster/tables.yaml")["quotas"]
INCREASE = "request an increase: Service Quotas, Amazon EC2, {name}"
BLOCK_HOURS = 24
# Checks that need not pass: instances can be started without them.
OPTIONAL = ("reservations", "capacity block")


@dataclass(frozen=True)
class Wanted:
    instance: Instance
    count: int
    zone: str | None = None
    vpc: str | None = None
    spot: bool = False

    @property
    def text(self) -> str:
        return f"{self.count} of {self.instance.name}"


def check(session: Session, wanted: Wanted) -> list[Finding]:
    reservation = run("reservations", lambda: reservations(session, wanted))
    is_reserved = reservation.state is State.PASS
    found = [
        run("offered", lambda: offered(session, wanted)),
        run("addresses", lambda: addresses(session, wanted)),
        run("quota", lambda: quota(session, wanted, is_reserved)),
        reservation,
        run("permission", lambda: permission(session, wanted)),
    ]
    family = wanted.instance.name.partition(".")[0]
    if family in BLOCK_FAMILIES and not is_reserved and not wanted.spot:
        found.append(run("capacity block", lambda: block(session, wanted)))
    return found


def verdict(findings: list[Finding], wanted: Wanted) -> Finding:
    """Return FAIL where a check failed, PASS where instances are reserved, else CANNOT TELL."""
    states = {one.name: one.state for one in findings}
    failed = [name for name, state in states.items() if state is State.FAIL]
    hidden = [name for name, state in states.items() if state is State.CANNOT_TELL and name not in OPTIONAL]
    if failed:
        return bad("capacity", f"{wanted.text} cannot be started: {', '.join(failed)}", None)
    if hidden:
        return unknown("capacity", f"{wanted.text}: some results are unknown: {', '.join(hidden)}")
    if states["reservations"] is State.PASS:
        return good("capacity", f"{wanted.text} are reserved and can be started")
    return unknown("capacity", f"no known obstacle for {wanted.text}; only a launch shows free capacity")


def offered(session: Session, wanted: Wanted) -> Finding:
    """Check that the wanted zone, or any zone, offers the type."""
    there = offers.offering(session, wanted.instance.name)
    names = [f"{zone.name} ({zone.id})" for zone in there]
    if not there:
        remedy = "choose another region"
        return bad("offered", f"no zone of {session.region} offers {wanted.instance.name}", remedy)
    if wanted.zone and wanted.zone not in {zone.name for zone in there}:
        remedy = f"choose {there[0].name}"
        return bad("offered", f"{wanted.zone} does not offer it", remedy, f"offered in {', '.join(names)}")
    return good("offered", f"in {', '.join(names)}")


def addresses(session: Session, wanted: Wanted) -> Finding:
    """Check that the subnets of a zone have an address for each interface of each node."""
    if wanted.vpc is None:
        return unknown("addresses", "subnets were not checked without a VPC", "--vpc ID or --cluster NAME")
    need = wanted.count * max(1, wanted.instance.efa)
    spare = offers.spare_addresses(session, wanted.vpc)
    zones = [zone.name for zone in offers.offering(session, wanted.instance.name)]
    zones = [zone for zone in zones if wanted.zone in (None, zone)]
    rows = [f"{zone}: {spare.get(zone, 0):,} free" for zone in zones]
    # The nodes of a job are in one zone, so addresses of several zones do not add up.
    room = max((spare.get(zone, 0) for zone in zones), default=0)
    if room >= need:
        return good("addresses", f"at most {need:,} needed, {room:,} free in one zone", *rows)
    remedy = "use larger subnets, or a secondary CIDR of the VPC"
    return bad("addresses", f"{need:,} needed, but no zone has as many free", remedy, *rows)


def quota(session: Session, wanted: Wanted, reserved: bool) -> Finding:
    """Compare the vCPUs with the quota of the class, less those that are running."""
    name, code = _class(wanted)
    need = wanted.count * wanted.instance.vcpus
    limit, source = _limit(session, code)
    used = _running_vcpus(session, name, wanted.spot)
    label = f"{'Spot' if wanted.spot else 'On-Demand'} {name}"
    line = f"{label} ({code}, {source}): {limit:,.0f} vCPUs, {used:,} in use, {need:,} needed"
    if used + need <= limit:
        return good("quota", "enough", line)
    if reserved:
        return good("quota", "too small, but reserved instances do not need it", line)
    return bad("quota", "too small", INCREASE.format(name=label), line)


def reservations(session: Session, wanted: Wanted) -> Finding:
    """Check for one reservation with enough free instances that Linux nodes can use."""
    if wanted.spot:
        return unknown("reservations", "spot instances do not use reservations")
    filters = {"instance-type": [wanted.instance.name], "state": ["active", "scheduled"]}
    rows = list(session.ec2("CapacityReservations", filters))
    rows = [row for row in rows if wanted.zone in (None, row.get("AvailabilityZone"))]
    free = [int(row.get("AvailableInstanceCount", 0)) for row in rows if _usable(row)]
    lines = [_reservation(row) for row in rows]
    if max(free, default=0) >= wanted.count:
        return good("reservations", f"{wanted.count} or more are free in one reservation", *lines)
    summary = "no reservation has as many free" if free else "nodes can use no reservation now"
    return unknown("reservations", summary, None, *lines)


def _usable(row: dict[str, object]) -> bool:
    """Return whether Linux nodes can start in a reservation now if they name it."""
    platform = str(row.get("InstancePlatform") or "Linux/UNIX")
    shared = row.get("Tenancy") in (None, "default")
    return row.get("State", "active") == "active" and platform.startswith("Linux") and shared


def _reservation(row: dict[str, object]) -> str:
    state = str(row.get("State", "active"))
    begins = f", from {row.get('StartDate')}" if state != "active" else ""
    named = ", only for instances that name it" if row.get("InstanceMatchCriteria") == "targeted" else ""
    foreign = "" if _usable(row) or begins else f", for {row.get('InstancePlatform')} on {row.get('Tenancy')}"
    count = f"{row.get('AvailableInstanceCount', 0)} of {row.get('TotalInstanceCount')} free"
    return (
        f"{row['CapacityReservationId']} ({row.get('ReservationType', 'default')})"
        f" in {row.get('AvailabilityZone')}: {count}{begins},"
        f" until {row.get('EndDate') or 'cancelled'}{named}{foreign}"
    )


def block(session: Session, wanted: Wanted) -> Finding:
    """Report when the first Capacity Block could start and its price. Buying it is left to the user."""
    now = datetime.now(UTC)
    asked: dict[str, Any] = {"InstanceType": wanted.instance.name, "InstanceCount": wanted.count}
    asked |= {"CapacityDurationHours": BLOCK_HOURS, "StartDateRange": now, "EndDateRange": now + timedelta(days=56)}
    rows = list(session.pages("ec2", "describe_capacity_block_offerings", "CapacityBlockOfferings", **asked))
    if not rows:
        return unknown("capacity block", f"none of {BLOCK_HOURS} h is offered in the next eight weeks")
    first = min(rows, key=lambda row: row["StartDate"])
    price = f"{first.get('UpfrontFee', 'unknown')} {first.get('CurrencyCode', '')}".strip()
    begins = f"{first['StartDate']:%Y-%m-%d %H:%M} UTC in {first.get('AvailabilityZone')}"
    words = f"aws ec2 purchase-capacity-block --capacity-block-offering-id {first['CapacityBlockOfferingId']}"
    summary = f"{BLOCK_HOURS} h are offered from {begins} for {price}"
    return unknown("capacity block", summary, f"{words} --instance-platform Linux/UNIX")


def permission(session: Session, wanted: Wanted) -> Finding:
    """Check by a dry run that the caller may start a fleet. AWS starts nothing."""
    templates = session.call("ec2", "describe_launch_templates", MaxResults=5)["LaunchTemplates"]
    if not templates:
        return unknown("permission", "a fleet needs a launch template, and the region has none")
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
            TargetCapacitySpecification={"TotalTargetCapacity": wanted.count, "DefaultTargetCapacityType": kind},
        )
    except AwsError as problem:
        if problem.aws_code == "DryRunOperation":
            return good("permission", "a dry run of CreateFleet was accepted")
        if problem.kind == "denied":
            return bad("permission", problem.message, problem.hint)
        return unknown("permission", problem.message, problem.hint)
    return unknown("permission", "AWS answered the dry run in an undocumented way")


def _class(wanted: Wanted) -> tuple[str, str]:
    letters = _family_letters(wanted.instance.name)
    for prefixes, name, on_demand, spot in CLASSES:
        if letters in prefixes:
            return name, spot if wanted.spot else on_demand
    raise AwsError("refused", f"the quota of {wanted.instance.name} is unknown", None)


def _family_letters(name: str) -> str:
    """Return the letters before the first digit: `p5en` and `p6-b200` are p, `trn1n` is trn."""
    return next((name[:index] for index, char in enumerate(name) if char.isdigit()), name)


def _limit(session: Session, code: str) -> tuple[float, str]:
    """Return the quota applied to the account, or else the default, and which of the two it is."""
    try:
        row = session.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        return float(row["Quota"]["Value"]), "applied"
    except AwsError as problem:
        if problem.kind != "missing":
            raise
    row = session.call("service-quotas", "get_aws_default_service_quota", ServiceCode="ec2", QuotaCode=code)
    return float(row["Quota"]["Value"]), "default"


def _running_vcpus(session: Session, name: str, spot: bool) -> int:
    """Return the running vCPUs of a class. Capacity Blocks do not count against the quota."""
    (prefixes,) = [one for one, title, _, _ in CLASSES if title == name]
    total = 0
    for reservation in session.ec2("Reservations", {"instance-state-name": ["pending", "running"]}):
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
