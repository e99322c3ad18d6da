"""The directory of a cluster, clusters/<name>, and its facts: the NAME=value lines of its cluster.env."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.core import UserError, did_you_mean, repo
from tools.kube.manifests import text_of

FILE = "cluster.env"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Fact:
    value: str
    line: int = 0  # 0: not from a file


def names(root: Path, beside: str = "") -> list[str]:
    """Return the directories of clusters/ that have a cluster.env and, if given, a folder `beside` it."""
    found = (path.parent for path in (root / "clusters").glob(f"*/{FILE}"))
    return sorted(path.name for path in found if (path / beside).is_dir())


def find(root: Path, text: str, beside: str = "") -> Path:
    """Return the directory that `text` names: `gpu` or `clusters/gpu`.

    Raises UserError with the nearest name where it does not exist.
    """
    name = text.strip("/").removeprefix("clusters/")
    known = names(root, beside)
    if name in known:
        return root / "clusters" / name
    hint = did_you_mean(name, known) or f"clusters: {', '.join(known) or 'none'}"
    needed = f"{FILE} and {beside}/" if beside else FILE
    raise UserError(f"no such cluster: clusters/{name} has no {needed}", hint)


def root_of(directory: Path) -> Path:
    """Return the directory that holds base/ and clusters/, for a cluster's directory: that of any checkout."""
    return directory.resolve().parents[1]


def read(path: Path) -> dict[str, Fact]:
    """Return the facts of a cluster.env by name. A line that starts with `#` is a comment.

    The format is that of kustomize's `configMapGenerator: envs:`, from which Flux reads the facts: the value
    is everything after the first `=`, quotes and spaces included. Raises UserError with the line.
    """
    facts: dict[str, Fact] = {}
    for number, raw in enumerate(text_of(path, repo.shown(path)).splitlines(), start=1):
        line = raw.lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        at = f"{repo.shown(path)}:{number}"
        if not equals or not NAME.fullmatch(name):
            raise UserError(f"{at}: not NAME=value: {line[:60]}", "no spaces around the =, no `export`")
        if name in facts:
            raise UserError(f"{at}: {name} is set a second time, first on line {facts[name].line}")
        facts[name] = Fact(value, number)
    return facts


def updated(text: str, values: Mapping[str, str]) -> str:
    """Return a cluster.env with facts set. Comments and other lines stay."""
    added = []
    for name, value in values.items():
        line, new = re.compile(rf"^{name}=.*$", re.MULTILINE), f"{name}={value}"
        old = line.search(text)
        if old is None:
            added.append(new)
        elif old[0] != new:
            text = text[: old.start()] + new + text[old.end() :]
    if added:
        text = text.rstrip("\n") + "\n\n# Found by `yard cluster init`.\n" + "\n".join(added) + "\n"
    return text
