"""What the shells of one command share while it is followed (`script.follow`): programs, files, limits."""

from collections.abc import Set
from dataclasses import dataclass, field

from tools.simulator.prefixes import Parent
from tools.simulator.shell import Unreadable

MOST_STEPS = 5_000  # commands that are followed
DEEPEST = 12  # shells, functions and sourced files inside each other
MAYBE = -1  # the status of a test that only the pod decides; None is a program's, assumed to be 0
BACKGROUND = "the command runs in the background"
ENDLESS = (["sleep", "infinity"], ["sleep", "inf"], ["tail", "-f"], ["tail", "-F"])


@dataclass
class Started:
    """A program and what it gets. `condition` says on what it depends whether it starts."""

    words: list[str]
    environment: dict[str, str]
    condition: str = ""
    background: bool = False
    waited: bool = False
    parents: tuple[Parent, ...] = ()


class NotStarted(Exception):
    """The command surely does not start. The message says why."""


class Exit(Exception):
    def __init__(self, status: int | None) -> None:
        self.status = status


class Return(Exit):
    pass


class Break(Exception):
    pass


@dataclass
class Run:
    """What all shells of one command share."""

    files: dict[str, str | None]
    fails: int | None
    plain: Set[str] = frozenset()  # files without permission to execute them
    programs: list[Started] = field(default_factory=list)
    steps: int = 0
    undecided: bool = False
    conditions: list[str] = field(default_factory=list)
    may_end: str = ""

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unreadable(f"it runs more than {MOST_STEPS:,} commands")
