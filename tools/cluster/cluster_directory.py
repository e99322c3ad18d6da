"""The directory clusters/<name> that `yard cluster init` writes from what it has found.

Nothing of an existing directory is lost: facts that were not found, comments and all other lines stay, and a
part of the platform only grows.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

from tools.cluster import cluster_env, machines, observe
from tools.cluster import spec as specs
from tools.cluster.discover import Found
from tools.cluster.snapshot import CLAIMS, CLASSES, Snapshot
from tools.core import UserError, repo, tables
from tools.kube import Object, name_of

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")
NUMBERED = re.compile(rf"(?m)^({machines.MACHINES}[0-9]+)=.*\n")
PLUGINS, STORAGE = "plugins/kustomization.yaml", "storage/kustomization.yaml"
_TEXTS: dict[str, str] = tables.load("cluster/cluster_directory.yaml")["files"]
_NOTHING: str = tables.load("cluster/cluster_directory.yaml")["nothing"]
# Provisioners whose volumes are directories of one node.
_OF_A_NODE: list[str] = tables.load("cluster/tables.yaml")["provisioners of one node"]


def place(name: str) -> Path:
    """Return the directory of the cluster that `name` names. Raises UserError for one that cannot be."""
    bare = name.strip("/").removeprefix("clusters/")
    if not NAME.fullmatch(bare):
        raise UserError(f"{name!r} is not a name for a cluster", "lower-case letters, digits and -, such as team-a")
    return repo.project() / "clusters" / bare


def texts(directory: Path, found: Found, seen: Snapshot, source: str) -> dict[str, str]:
    """Return the new text of each file of the directory that changes, by its path in it.

    `source` says from what the facts were read. Outside of a checkout there is no base/, so that only
    cluster.env is written.
    """
    new = {cluster_env.FILE: _facts(directory, found, source, "nodes" in seen.objects)}
    if repo.is_checkout():
        team = found.facts.get("TEAM_NAMESPACE") or _known(directory)["TEAM_NAMESPACE"].value
        for path, text in _TEXTS.items():
            if path not in new and not (directory / path).exists():
                new[path] = Template(text).safe_substitute(name=directory.name, team=team)
        plugins = [(f"../../../base/plugins/{folder}", why) for folder, why in observe.lacking(team, seen)]
        for path, parts in ((PLUGINS, plugins), (STORAGE, _storage(directory, found, team, seen))):
            start = new.get(path) or _read(directory / path)
            new[path] = _with_resources(start, parts, team)
    return {path: text for path, text in new.items() if text != _read(directory / path)}


def difference(directory: Path, new: Mapping[str, str]) -> str:
    """Return the unified diff from the directory as it is to the new texts."""
    paths = ((directory / path, text) for path, text in sorted(new.items()))
    return "".join(repo.diff(repo.shown(path), _read(path), text) for path, text in paths)


def write(directory: Path, new: Mapping[str, str]) -> None:
    """Write the files, after a copy of the directory with them was read as every command reads it."""
    with tempfile.TemporaryDirectory() as copy:
        path = Path(copy) / "clusters" / directory.name / cluster_env.FILE
        repo.write(path, new.get(cluster_env.FILE) or _read(directory / cluster_env.FILE))
        try:
            machines.read(specs.load(Path(copy), directory.name))
        except UserError as problem:
            hint = problem.hint and problem.hint.replace(f"{copy}/", "")
            raise UserError(problem.message.replace(f"{copy}/", ""), hint, problem.code) from None
    is_new = not directory.exists()
    try:
        for name, text in new.items():
            repo.write(directory / name, text)
    except OSError as problem:
        if is_new:
            shutil.rmtree(directory, ignore_errors=True)
        raise UserError(f"{repo.shown(directory)}: {problem.strerror}") from None


def _facts(directory: Path, found: Found, source: str, with_nodes: bool) -> str:
    """Return the text of cluster.env. The numbers of machines are given anew where the nodes were seen."""
    path = directory / cluster_env.FILE
    if path.exists():
        text = cluster_env.updated(path.read_text(encoding="utf-8"), found.facts)
        return NUMBERED.sub(lambda one: one[0] if one[1] in found.facts or not with_nodes else "", text)
    header = Template(_TEXTS[cluster_env.FILE]).safe_substitute(name=directory.name, source=source)
    unseen = [f"# {name} is unknown: {' '.join(why.split())}" for name, why in found.unknown.items()]
    unseen += [f"# {' '.join(line.split())}" for line in found.missing]
    lines = [f"{name}={value}" for name, value in found.facts.items()]
    return "\n".join([header, *lines, *([""] if unseen else []), *unseen]) + "\n"


def _storage(directory: Path, found: Found, team: str, seen: Snapshot) -> list[tuple[str, str]]:
    """Return the folder of base/storage for the claim, where the namespace is known to have none."""
    known = _known(directory)
    if (directory / STORAGE).exists() or (CLAIMS in seen.unseen and "FSX_FILE_SYSTEM_ID" not in found.facts):
        return []
    if seen.find(CLAIMS, "trainyard", team) is not None:
        return []
    if "FSX_MOUNT_NAME" in found.facts or "FSX_MOUNT_NAME" in known:
        return [("../../../base/storage/fsx-static", "the file system of cluster.env")]
    default = found.facts.get("DEFAULT_STORAGE_CLASS", observe.NONE)
    row = next((one for one in seen.of(CLASSES) if name_of(one) == default), None)
    if row is None:
        return []
    return [(f"../../../base/storage/{claim_folder(row, seen)}", f"from the default class {default}")]


def claim_folder(storage_class: Object, seen: Snapshot) -> str:
    """Return the folder of base/storage whose claim fits a storage class of the cluster."""
    is_local = storage_class.get("provisioner") in _OF_A_NODE or len(seen.of("nodes")) == 1
    return "single-node" if is_local else "default-class"


def _with_resources(text: str, parts: Iterable[tuple[str, str]], team: str) -> str:
    """Return a kustomization with more resources, each with its reason. All that is there stays.

    Kustomize refuses a directory without objects; a ConfigMap takes their place.
    """
    added = "".join(f"  - {path}   # {why}\n" for path, why in parts if path not in text)
    if re.search(r"(?m)^resources:[ \t]*$", text):
        return re.sub(r"(?m)^resources:[ \t]*\n", lambda found: found[0] + added, text, count=1)
    if re.search(r"(?m)^resources:", text):  # a list in one line stays as it is
        return text + "".join(f"# lacking: {line.strip(' -')}\n" for line in added.splitlines())
    if added:
        return f"{text}resources:\n{added}"
    return text if "configMapGenerator" in text else text + Template(_NOTHING).substitute(team=team)


def _known(directory: Path) -> Mapping[str, cluster_env.Fact]:
    path = directory / cluster_env.FILE
    return cluster_env.read(path) if path.exists() else {}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
