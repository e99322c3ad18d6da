"""The programs of others that yard calls: which are here, whether they are new enough, what needs them."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from tools.core import command_line, tables
from tools.core.verdict import State, Verdict

TABLE: Mapping[str, Mapping[str, Any]] = tables.load("core/programs.yaml")
SECONDS, LARGEST = 20.0, 1 << 16  # for the answer about a version, and its bytes


def how_to_install(name: str) -> str | None:
    """Return the sentence that tells how to install a program, None for one that is not in the table."""
    row = TABLE.get(name)
    return None if row is None else f"install {name} {row['least']} or newer: {row['where']}"


def check(name: str) -> Verdict:
    """Return whether a program is here and new enough. One that is missing is a warning: few users need all."""
    row, path = TABLE[name], shutil.which(name)
    facts = {"program": name, "path": path, "version": None, "least": row["least"], "for": row["for"]}
    if path is None:
        return Verdict(State.WARN, f"{name} is not on PATH", [f"needed for {row['for']}"], how_to_install(name), facts)
    try:
        done = command_line.captured([path, *row["version"]], seconds=SECONDS, largest=LARGEST)
        text = (done.stdout + done.stderr).decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired, command_line.TooLarge) as problem:
        return Verdict(State.CANNOT_TELL, f"{name} does not print its version", [path, str(problem)], None, facts)
    found = re.search(row["pattern"], text)
    if found is None:
        said = next((line for line in text.splitlines() if line.strip()), "it prints nothing")
        return Verdict(State.CANNOT_TELL, f"{name} does not print its version", [path, said], None, facts)
    facts["version"] = found[1]
    if Version(found[1]) < Version(row["least"]):
        summary = f"{name} {found[1]} is older than {row['least']}"
        return Verdict(State.FAIL, summary, [path, f"needed for {row['for']}"], how_to_install(name), facts)
    return Verdict(State.PASS, f"{name} {found[1]}", [path], None, facts)
