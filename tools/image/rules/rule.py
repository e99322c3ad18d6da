"""What a rule on Dockerfiles is, what it looks at, and how it says what it found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tools.core.verdict import Verdict, shown
from tools.facts.instances import Instance
from tools.image.dockerfile.dockerignore import Ignore
from tools.image.dockerfile.packages import Install, Package, Sources, installs
from tools.image.dockerfile.parse import Dockerfile, Instruction, Stage


@dataclass(frozen=True)
class Subject:
    """A Dockerfile with its context, and what the image is for: a machine, a driver, where they are known."""

    source: str
    dockerfile: Dockerfile
    context: Path
    ignore: Ignore
    machine: Instance | None = None
    driver: int | None = None
    texts: Mapping[Path, str] = field(default_factory=dict)  # what files of the context are taken to hold

    @cached_property
    def installs(self) -> list[Install]:
        """Return every installation of Python packages."""
        return installs(self.dockerfile, Sources(self.context, self.texts), self.source)

    @cached_property
    def shipped(self) -> list[Install]:
        """Return the installations whose packages are in the image: also those that a stage hands over."""
        reached = {stage.index for stage in self.dockerfile.shipped()}
        grown = True
        while grown:
            grown = False
            for stage, one in self.dockerfile.instructions():
                giver = self.dockerfile.stage(one.flag("from") or "") if stage.index in reached else None
                if giver is not None and giver.index not in reached:
                    reached |= {below.index for below in giver.lineage()}
                    grown = True
        return [one for one in self.installs if one.stage.index in reached]

    def package(self, name: str) -> tuple[Install, Package] | None:
        """Return the last installation of a package that is pinned to one version, else the last of any."""
        found = [(one, package) for one in self.shipped for package in one.packages if package.name == name]
        return next((pair for pair in reversed(found) if pair[1].exact), found[-1] if found else None)


Check = Callable[[Subject], Iterator[Verdict]]


@dataclass(frozen=True)
class Rule:
    """One rule: a stable name, why it exists in one line, its check, and its page (the check's docstring)."""

    id: str
    reason: str
    check: Check
    page: str


RULES: dict[str, Rule] = {}


def rule(name: str, reason: str) -> Callable[[Check], Check]:
    """Register a check as the rule `name`."""

    def register(check: Check) -> Check:
        RULES[name] = Rule(name, reason, check, inspect.getdoc(check) or "")
        return check

    return register


@dataclass(frozen=True)
class Place:
    """Where something stands: a file, a line, and the text there."""

    file: str
    line: int
    text: str

    def evidence(self) -> str:
        """Return place and text in one line."""
        return f"{self.file}:{self.line}: {shown(self.text)}"

    def details(self) -> dict[str, Any]:
        """Return the place as plain data."""
        return {"file": self.file, "line": self.line}


def at(subject: Subject, one: Instruction | Stage) -> Place:
    """Return the place of an instruction, or of a stage's FROM."""
    found = one.start if isinstance(one, Stage) else one
    return Place(subject.source, found.line, f"{found.name} {found.raw}")


def of(package: Package) -> Place:
    """Return the place of a package."""
    return Place(package.file, package.line, package.text)
