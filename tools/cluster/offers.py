"""What AWS offers in a region: zones, instance types, Kubernetes versions, add-on versions."""

from dataclasses import dataclass

from tools.aws import AwsError, Session
from tools.cluster.spec import Spec
from tools.core import UserError
from tools.facts.eks import ADDON_NAMES


@dataclass(frozen=True)
class Zone:
    """An availability zone. The name differs between accounts, the id does not."""

    name: str
    id: str


def zones(session: Session) -> list[Zone]:
    """Return the availability zones that the account can use, without local zones."""
    answer = session.call("ec2", "describe_availability_zones")
    return [
        Zone(one["ZoneName"], one.get("ZoneId", ""))
        for one in answer["AvailabilityZones"]
        if one.get("State") == "available" and one.get("ZoneType", "availability-zone") == "availability-zone"
    ]


def offering(session: Session, kind: str) -> list[Zone]:
    """Return the zones that offer an instance type. Raises AwsError."""
    asked = {"LocationType": "availability-zone", "Filters": [{"Name": "instance-type", "Values": [kind]}]}
    pages = session.pages("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", **asked)
    names = {one["Location"] for one in pages}
    return [zone for zone in zones(session) if zone.name in names]


def verify_zones(session: Session, spec: Spec) -> None:
    """Raise UserError where a zone does not exist or does not offer the instance type of its group."""
    existing = [zone.name for zone in zones(session)]
    for zone in spec.zones:
        if zone not in existing:
            hint = f"it has {', '.join(existing)}"
            raise UserError(f"{spec.at('ZONES')}: the account has no zone {zone}", hint, 1)
    for group in spec.groups:
        kind = group.instance.name
        there = [zone.name for zone in offering(session, kind)]
        missing = [zone for zone in group.zones or spec.zones if zone not in there]
        if missing:
            hint = f"offered in {', '.join(there)}" if there else f"no zone of {spec.region} offers it"
            raise UserError(f"{group.at}: {missing[0]} does not offer {kind}", hint, 1)


def verify_version(session: Session, spec: Spec) -> None:
    """Raise UserError where EKS does not offer the Kubernetes version for new clusters."""
    rows = list(session.pages("eks", "describe_cluster_versions", "clusterVersions"))
    offered = {row["clusterVersion"]: row for row in rows}
    found = offered.get(spec.version)
    status = str((found or {}).get("versionStatus") or (found or {}).get("status") or "")
    if found is None or status.upper() == "UNSUPPORTED":
        rows = [row for row in rows if row.get("versionStatus") == "STANDARD_SUPPORT"]
        hint = f"in standard support: {', '.join(sorted(row['clusterVersion'] for row in rows)) or 'unknown'}"
        raise UserError(f"{spec.at('KUBERNETES_VERSION')}: EKS does not offer {spec.version}", hint, 1)


def addon_versions(session: Session, kubernetes: str) -> dict[str, str]:
    """Return the default version of each add-on for a Kubernetes version. Raises AwsError."""
    found = {}
    for name in ADDON_NAMES:
        pages = session.pages("eks", "describe_addon_versions", "addons", addonName=name, kubernetesVersion=kubernetes)
        versions = [one for addon in pages for one in addon.get("addonVersions") or []]
        default = [one for one in versions if _is_default(one, kubernetes)] or versions
        if not default:
            raise AwsError("refused", f"EKS has no add-on {name} for Kubernetes {kubernetes}", None)
        found[name] = str(default[0]["addonVersion"])
    return found


def _is_default(version: dict[str, object], kubernetes: str) -> bool:
    rows = version.get("compatibilities") or []
    assert isinstance(rows, list)
    return any(row.get("clusterVersion") == kubernetes and row.get("defaultVersion") for row in rows)


def spare_addresses(session: Session, vpc: str | None) -> dict[str, int]:
    """Return the free addresses of the subnets by zone, in one VPC or in all."""
    spare: dict[str, int] = {}
    for subnet in session.ec2("Subnets", {"vpc-id": [vpc]} if vpc else {}):
        zone = str(subnet["AvailabilityZone"])
        spare[zone] = spare.get(zone, 0) + int(subnet["AvailableIpAddressCount"])
    return spare
