"""A cluster as its cluster.env describes it: the facts that the AWS commands read, validated.

Each node group is one line:

    NODES_P5=p5.48xlarge 0-4 us-west-2b capacity-block=cr-0123456789abcdef0

The values are the instance type, the minimum and maximum number of nodes, the zones (exactly one for nodes
with EFA) and the market: `on-demand` (the default), `spot`, `reservation=cr-...` or `capacity-block=cr-...`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.cluster import cluster_env
from tools.cluster.cluster_env import Fact
from tools.core import UserError, did_you_mean, nearest, repo, tables
from tools.facts.instances import Instance, instance

NODES = "NODES_"
REGION = re.compile(r"[a-z]{2,4}(-[a-z]{1,20}){1,4}-\d")
ZONE = re.compile(r"[a-z]{2,4}(-[a-z]{1,20}){1,4}-\d[a-z]")
# Partition by prefix of the region.
PARTITIONS: dict[str, str] = tables.load("cluster/tables.yaml")["partitions"]
# eksctl puts the name into that of a CloudFormation stack, which allows these characters. The whole name,
# `eksctl-NAME-nodegroup-GROUP`, may have 128.
OWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,99}")
STACK_LENGTH = 128
GROUP_LENGTH = 63  # of the name of a managed node group (EKS, CreateNodegroup)
# A valid Kubernetes namespace, which also holds no character that IAM treats as a pattern.
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SYSTEM = "system"  # the group that every cluster has in addition to those of its facts
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
RESERVATION = re.compile(r"cr-[0-9a-f]{8,17}")
ROLE = re.compile(r"arn:aws[\w-]*:iam::\d{12}:(role|user)/[\w+=,.@/-]+")
MARKETS = ("on-demand", "spot", "reservation", "capacity-block")
RESERVED = ("reservation", "capacity-block")
# Capacity Blocks exist for these families (EC2 user guide, Capacity Blocks for ML).
BLOCK_FAMILIES = ("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "trn1", "trn2")


@dataclass(frozen=True)
class NodeGroup:
    """Between `least` and `most` nodes of one type, in `zones`, bought on `market`."""

    name: str
    instance: Instance
    least: int
    most: int
    zones: tuple[str, ...]
    market: str
    reservation: str | None
    at: str  # file and line
    fact: str

    @property
    def efa(self) -> bool:
        return self.instance.efa > 0


@dataclass(frozen=True)
class Spec:
    """A cluster as its facts describe it."""

    directory: Path
    facts: Mapping[str, Fact]
    groups: list[NodeGroup] = field(default_factory=list)
    context: str | None = None  # of a cluster that has no directory (tools/cluster/context.py)

    @property
    def source(self) -> str:
        if self.context is not None:
            return f"the context {self.context}"
        return repo.shown(self.directory / cluster_env.FILE)

    @property
    def name(self) -> str:
        """The name of the EKS cluster. eksctl allows fewer characters than EKS."""
        if self.adopted:
            return self.need("CLUSTER_NAME", CLUSTER_NAME, "letters, digits, - and _, at most 100")
        return self.need("CLUSTER_NAME", OWN_NAME, "a letter, then letters, digits and -, at most 100")

    @property
    def region(self) -> str:
        return self.need("AWS_REGION", REGION, "a region such as us-west-2")

    @property
    def partition(self) -> str:
        found = (name for start, name in PARTITIONS.items() if self.region.startswith(start))
        return next(found, "aws")

    @property
    def version(self) -> str:
        return self.need("KUBERNETES_VERSION", re.compile(r"1\.\d\d"), "a minor version such as 1.35")

    @property
    def namespace(self) -> str:
        return self.need("TEAM_NAMESPACE", NAMESPACE, "a namespace: at most 63 of a-z, 0-9 and -")

    @property
    def adopted(self) -> bool:
        """Whether the cluster was not created by trainyard; then `yard cluster down` never deletes it."""
        return self.get("ADOPTED") == "true"

    @property
    def zones(self) -> list[str]:
        text = self.need("ZONES")
        found = [one.strip() for one in text.split(",")]
        for zone in found:
            if not ZONE.fullmatch(zone) or zone[:-1] != self.region:
                raise UserError(
                    f"{self.at('ZONES')}: {zone} is not an availability zone of {self.region}",
                    f"such as {self.region}a; EKS cannot use local and wavelength zones",
                )
            if found.count(zone) > 1:
                raise UserError(f"{self.at('ZONES')}: {zone} is listed twice", "list each zone once")
        return found

    def get(self, name: str) -> str | None:
        """Return a fact, or None where it is not set or is empty."""
        fact = self.facts.get(name)
        return fact.value.strip() or None if fact else None

    def need(self, name: str, form: re.Pattern[str] | None = None, words: str = "") -> str:
        """Return a fact. Raises UserError where it is not set or does not match `form`."""
        value = self.get(name)
        if value is None or value.lower() in ("null", "none"):
            match = nearest(name, self.facts, cutoff=0.8)
            hint = f"yard cluster init {self.title} --eks NAME reads it from AWS"
            hint = f"did you mean {match}?" if match and match != name else hint
            raise UserError(f"{self.at(name)}: {name} is {'not set' if value is None else value}", hint)
        if form and not form.fullmatch(value):
            raise UserError(f"{self.at(name)}: {name}={value} is not {words}")
        return value

    def at(self, name: str) -> str:
        """Return file and line of a fact, or only the file where the fact is missing."""
        fact = self.facts.get(name)
        return f"{self.source}:{fact.line}" if fact and fact.line else self.source

    @property
    def title(self) -> str:
        """The name of the directory, which commands take as CLUSTER."""
        return "CLUSTER" if self.context is not None else self.directory.name


def load(root: Path, text: str) -> Spec:
    """Return the cluster that `text` names: `gpu` or `clusters/gpu`. Raises UserError with file and line."""
    directory = cluster_env.find(root, text)
    facts = cluster_env.read(directory / cluster_env.FILE)
    spec = Spec(directory, facts)
    return Spec(directory, facts, [_group(spec, key) for key in facts if key.startswith(NODES)])


def _group(spec: Spec, key: str) -> NodeGroup:
    at = spec.at(key)
    words = spec.need(key).split()
    hint = f"{key}=TYPE LEAST-MOST [ZONE,...] [{'|'.join(MARKETS)}]"
    if len(words) < 2:
        raise UserError(f"{at}: {key} needs an instance type and a range of nodes", hint)
    try:
        found = instance(words[0])
    except UserError as problem:
        raise UserError(f"{at}: {problem.message}", problem.hint) from None
    counts = re.fullmatch(r"(\d{1,4})-(\d{1,4})", words[1])
    if not counts:
        raise UserError(f"{at}: {words[1]} is not a range of nodes such as 0-4", hint)
    least, most = int(counts[1]), int(counts[2])
    if least > most or most == 0:
        raise UserError(f"{at}: {words[1]}: the maximum is 0, or below the minimum", hint)
    zones: tuple[str, ...] = ()
    market, reservation = "on-demand", None
    places = [word for word in words[2:] if ZONE.fullmatch(word.partition(",")[0])]
    markets = [word for word in words[2:] if word not in places]
    for twice in (places[1:], markets[1:]):
        if twice:
            raise UserError(f"{at}: unexpected word {twice[0]}", hint)
    if places:
        zones = tuple(places[0].split(","))
    if markets:
        market, reservation = _market(markets[0], at, hint)
    group = NodeGroup(_group_name(spec, key), found, least, most, zones, market, reservation, at, key)
    _check_group(spec, group)
    return group


def _group_name(spec: Spec, key: str) -> str:
    """Return a group's name from that of its fact. Raises UserError for one that eksctl or EKS refuses."""
    name = key.removeprefix(NODES).lower().strip("_").replace("_", "-")
    at = spec.at(key)
    if not name:
        raise UserError(f"{at}: {key} does not name a group", "such as NODES_CPU")
    if name == SYSTEM:
        raise UserError(f"{at}: every cluster already has a group {SYSTEM}", "choose another name")
    if spec.adopted:
        return name
    room = min(GROUP_LENGTH, STACK_LENGTH - len(f"eksctl-{spec.name}-nodegroup-"))
    if len(name) > room:
        raise UserError(f"{at}: the name {name} is longer than {room} characters", "choose a shorter name")
    return name


def _market(word: str, at: str, hint: str) -> tuple[str, str | None]:
    market, equals, reservation = word.partition("=")
    if market not in MARKETS or bool(equals) != (market in RESERVED):
        raise UserError(f"{at}: unknown word {word}", did_you_mean(market, MARKETS) or hint)
    if equals and not RESERVATION.fullmatch(reservation):
        hint = "cr- and up to 17 hexadecimal digits"
        raise UserError(f"{at}: {reservation} is not a capacity reservation", hint)
    return market, reservation or None


def _check_group(spec: Spec, group: NodeGroup) -> None:
    """Raise UserError for a group that could never start."""
    foreign = [zone for zone in group.zones if zone not in spec.zones]
    if foreign:
        hint = f"one of {', '.join(spec.zones)}"
        raise UserError(f"{group.at}: zone {foreign[0]} is not in ZONES of {spec.source}", hint)
    if group.efa and len(group.zones) != 1:
        hint = "EFA does not cross zones: choose one with capacity (yard cluster zones TYPE)"
        raise UserError(f"{group.at}: nodes of {group.instance.name} use EFA and need one zone", hint)
    if group.market == "capacity-block":
        family = group.instance.name.partition(".")[0]
        if family not in BLOCK_FAMILIES:
            hint = f"only for {', '.join(BLOCK_FAMILIES)}"
            raise UserError(f"{group.at}: there are no capacity blocks for {group.instance.name}", hint)
        if group.least:
            hint = f"{group.instance.name} 0-{group.most}: nodes start when the block starts"
            raise UserError(f"{group.at}: the group of a capacity block must start with 0 nodes", hint)
    if len(group.zones) != 1 and group.reservation:
        raise UserError(f"{group.at}: a reservation is in one zone", "name that zone")
