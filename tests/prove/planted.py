"""The planted defects of defects.yaml: the healthy scripts, and the scripts with one defect each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"


@dataclass
class Patch:
    """A text of a script and what stands in its place."""

    old: str
    new: str


@dataclass
class Defect:
    """One defect of one script, and the finding `claim/name` by which a proof must name it."""

    name: str
    script: str
    finding: str
    state: str
    patches: list[Patch]
    command: list[str]
    options: list[str] = field(default_factory=list)

    @property
    def claim(self) -> str:
        return self.finding.partition("/")[0]

    def text(self) -> str:
        """Return the script with the defect. Raises ValueError where a patch does not fit exactly once."""
        text = (SCRIPTS / f"{self.script}.py").read_text(encoding="utf-8")
        for patch in self.patches:
            if (found := text.count(patch.old)) != 1:
                raise ValueError(f"{self.script}/{self.name}: found {found} times: {patch.old!r}")
            text = text.replace(patch.old, patch.new)
        return text


@dataclass
class Script:
    """A healthy script, how it is started, and the findings that are true of its framework's defaults."""

    name: str
    command: list[str]
    expected: dict[str, str]
    defects: list[Defect]

    def text(self) -> str:
        return (SCRIPTS / f"{self.name}.py").read_text(encoding="utf-8")


def load() -> dict[str, Script]:
    """Return the scripts of defects.yaml by name."""
    data: dict[str, Any] = yaml.safe_load((HERE / "defects.yaml").read_text(encoding="utf-8"))
    return {name: _script(name, row) for name, row in data.items()}


def _script(name: str, row: dict[str, Any]) -> Script:
    defects = [
        Defect(
            one,
            name,
            defect["finding"],
            defect["state"],
            [Patch(**patch) for patch in defect["patch"]],
            shlex.split(defect.get("command", row["command"])),
            defect.get("options", []),
        )
        for one, defect in row["defects"].items()
    ]
    return Script(name, shlex.split(row["command"]), row["expected"], defects)
