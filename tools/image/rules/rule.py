"""What the rules for Dockerfiles read, and how they state a finding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tools.core import output, secret_patterns
from tools.core.rules import Rules
from tools.facts.instances import Instance
from tools.image.dockerfile.dockerignore import Ignore
from tools.image.dockerfile.packages import Install, Package, Sources, installs
from tools.image.dockerfile.parse import Dockerfile, Instruction, Stage


@dataclass(frozen=True)
class Subject:
    """A Dockerfile with its context, and the machine and driver that the image is for, if known."""

    source: str
    dockerfile: Dockerfile
    context: Path
    ignore: Ignore
    machine: Instance | None = None
    driver: int | None = None
    texts: Mapping[Path, str] = field(default_factory=dict)  # read instead of these files of the context

    @cached_property
    def installs(self) -> list[Install]:
        return installs(self.dockerfile, Sources(self.context, self.texts), self.source)

    @cached_property
    def shipped(self) -> list[Install]:
        """The installations whose packages are in the image, also by a COPY from another stage."""
        reached = {stage.index for stage in self.dockerfile.shipped()}
        grown = True
        while grown:
            grown = False
            for stage, instruction in self.dockerfile.instructions():
                source = instruction.flag("from") or "" if stage.index in reached else ""
                giver = self.dockerfile.stage(source)
                if giver is not None and giver.index not in reached:
                    reached |= {below.index for below in giver.lineage()}
                    grown = True
        return [install for install in self.installs if install.stage.index in reached]

    def package(self, name: str) -> tuple[Install, Package] | None:
        """Return the last installation that pins a package to one version, else the last of any."""
        pairs = [(one, package) for one in self.shipped for package in one.packages if package.name == name]
        return next((pair for pair in reversed(pairs) if pair[1].exact), pairs[-1] if pairs else None)


rule = Rules("image", "runtime", "program", "hadolint", "layers", "secrets", "versions", "efa", "origin")


@dataclass(frozen=True)
class Location:
    file: str
    line: int
    text: str

    def evidence(self) -> str:
        return f"{self.file}:{self.line}: {output.short(secret_patterns.mask(self.text))}"

    def details(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line}


def at(subject: Subject, where: Instruction | Stage) -> Location:
    """Return the location of an instruction, or of a stage's FROM."""
    found = where.start if isinstance(where, Stage) else where
    return Location(subject.source, found.line, f"{found.name} {found.raw}")


def of(package: Package) -> Location:
    return Location(package.file, package.line, package.text)
