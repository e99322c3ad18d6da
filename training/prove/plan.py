"""The plan of a proof: which starts of a script the runner carries out, and in which surroundings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

VERSION = 1
VARIABLE = "TRAINYARD_PROVE_PLAN"  # has the plan for the pods of a cluster, as base64
# What interrupts a start. "kill" ends all ranks by SIGKILL, "torn-save" does so in the middle of a save, "terminate"
# sends SIGTERM to process 1, "exception" raises in one rank, and "hang" blocks one rank.
FAULTS = ("kill", "torn-save", "terminate", "exception", "hang")


@dataclass
class Fault:
    """One interruption. `step` counts optimizer steps done, `save` counts saves from 1; None leaves the choice to
    the runner, which reads the records of the uninterrupted start."""

    kind: str
    rank: int = 0
    step: int | None = None
    save: int | None = None


@dataclass
class Start:
    """One start of the command. `source` names the earlier start whose kept files this one finds; None is a first
    start, which finds the files of the user."""

    name: str
    claims: list[int]
    command: list[str]
    source: str | None = None
    fault: Fault | None = None
    world: int | None = None  # the number of ranks wanted, where it differs from the other starts
    variables: dict[str, str] = field(default_factory=dict)  # in addition to those of the plan


@dataclass
class Plan:
    """Everything that the runner needs. Paths are absolute; times are seconds; sizes are bytes."""

    starts: list[Start]
    workdir: str
    variables: dict[str, str]  # the whole environment of the command
    steps: int  # each start ends before optimizer step `steps` + 1
    nodes: int = 1
    keep: list[str] = field(default_factory=list)  # survives a restart; all else is given anew
    link: list[str] = field(default_factory=list)  # data that a copied view links instead of copying
    network: bool = False  # False: loopback only
    pods: bool = False  # the nodes are pods; a command is then the index of one that each pod has
    scratch: list[str] = field(default_factory=list)  # directories that end with a pod, beside its working directory
    stand_in: bool = False  # CUDA calls run on the CPU
    timeout: float = 300.0  # for one start
    hang_timeout: float = 60.0  # how long a start with a blocked rank may take to end by itself
    grace: float = 30.0  # from SIGTERM to SIGKILL
    disk: int = 20 << 30  # what one start may write
    secrets: dict[str, str] = field(default_factory=dict)  # name -> pattern of a secret, searched in written files
    version: int = VERSION


def write(plan: Plan, path: Path) -> None:
    """Write the plan as JSON."""
    path.write_text(text_of(plan), encoding="utf-8")


def read(path: Path) -> Plan:
    """Read a plan. Raises ValueError for another version."""
    return from_text(path.read_text(encoding="utf-8"))


def text_of(plan: Plan) -> str:
    """Return the plan as JSON."""
    return json.dumps(asdict(plan), indent=1)


def from_text(text: str) -> Plan:
    """Return the plan of a JSON text. Raises ValueError for another version."""
    data = json.loads(text)
    if data.get("version") != VERSION:
        raise ValueError(f"a plan of version {data.get('version')}; this runner reads version {VERSION}")
    starts = [Start(**{**one, "fault": Fault(**one["fault"]) if one["fault"] else None}) for one in data["starts"]]
    return Plan(**{**data, "starts": starts})
