"""A pod's volumes as directories of the checkout, and its mount paths translated to them.

The claim `trainyard` is `<checkout>/local`; any other claim is `<checkout>/local/claims/<name>`. ConfigMaps,
Secrets and projections of them are written as files. An emptyDir is an empty directory. A volume that this
machine cannot provide (hostPath, CSI, NFS and so on) is an empty directory too, and `kind` says so.

One emptyDir is kept and shared by the pods of a job: `compiled`, because all of them are the same user's, and
compiling takes longer than a short run. A mount is `readOnly` only in the cluster.

Names and paths of a manifest are below the directory that they belong to, or an error, as in Kubernetes.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tools.core.errors import UserError
from tools.kube.manifests import Manifests, Object
from tools.simulator import environment
from tools.workload.pod import Pod

CLAIM = "trainyard"
DEFAULT_MODE = 0o644  # of the files of ConfigMaps, Secrets and projections
COMPILED = "compiled"  # the emptyDir of base/pytorchjob with compiled kernels


@dataclass(frozen=True)
class Mount:
    """One mount: the path in the container, the local path, and the kind of volume."""

    path: str
    local: Path
    kind: str


@dataclass
class Volumes:
    """The mounts of one container, longest path first, and volumes that do not exist."""

    mounts: list[Mount] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def translate(self, text: str) -> str:
        """Replace mount paths in `text` by local ones: only whole path components, the longest mount first.

        A path counts at the start or after one of `= : , ; ( [ {`, a quote or white space.
        `--data=/shared/data` and `/a:/shared` are translated; `/tmpfile` and `gs://x/shared` are not.
        """
        if not self.mounts:
            return text
        local = {mount.path: str(mount.local) for mount in self.mounts}
        alternatives = "|".join(re.escape(mount.path) for mount in self.mounts)
        return re.sub(
            rf"(?<![^\s=:,;(\[{{'\"<>|&])({alternatives})(?=$|[/\s:,;)\]}}'\"<>|&])",
            lambda match: local[match[1]],
            text,
        )

    def local(self, path: str) -> Path | None:
        """Return the local form of the container's `path`, or None when it is not below a mount."""
        for mount in self.mounts:
            if path == mount.path or path.startswith(mount.path.rstrip("/") + "/"):
                return mount.local / path[len(mount.path) :].strip("/")
        return None


def plan(pod: Pod, container: Object, shared: Path, directory: Path, values: Mapping[str, str]) -> Volumes:
    """Return the local directories of the mounts of `container`, with its variables `values`. Writes nothing.

    `shared` stands for the claim. `directory` is the pod's own and holds one directory for each volume.
    Raises UserError for a path of the manifest that leaves its volume.
    """
    by_name = {volume["name"]: volume for volume in pod.spec.get("volumes") or []}
    result = Volumes()
    for mount in container.get("volumeMounts") or []:
        volume = by_name.get(mount["name"])
        if volume is None:
            result.missing.append(f"volume {mount['name']} (mounted at {mount['mountPath']})")
            continue
        local, kind = _place(pod, volume, shared, directory)
        path = "/" + mount["mountPath"].strip("/")
        inside = mount.get("subPath") or environment.expand(mount.get("subPathExpr") or "", values)
        result.mounts.append(Mount(path, below(local, inside) if inside else local, kind))
    result.mounts.sort(key=lambda item: len(item.path), reverse=True)
    return result


def materialise(pod: Pod, manifests: Manifests, shared: Path, directory: Path) -> list[str]:
    """Create the pod's volumes under `directory`, which is emptied first, and the claims' directories.

    Returns required references that the manifests do not have. Raises UserError for a path that leaves its
    volume.
    """
    if directory.exists():
        shutil.rmtree(directory)
    missing: list[str] = []
    for volume in pod.spec.get("volumes") or []:
        local, _ = _place(pod, volume, shared, directory)
        local.mkdir(parents=True, exist_ok=True)
        for source in sources(volume):
            missing += _write_files(source, pod, manifests, local)
    return missing


def texts(
    pod: Pod, container: Object, manifests: Manifests, wanted: Callable[[int], bool] = lambda mode: True
) -> dict[str, str]:
    """Return the files, by path, that ConfigMaps and Secrets give a container; `wanted` chooses them by their mode."""
    by_name = {volume["name"]: volume for volume in pod.spec.get("volumes") or []}
    found: dict[str, str] = {}
    for mount in container.get("volumeMounts") or []:
        inside = PurePosixPath(mount.get("subPath") or ".")
        volume = by_name.get(mount["name"]) or {}
        for kind, ref in sources(volume):
            data = manifests.texts(kind, source_name(ref), pod.namespace) or {}
            modes = {item["key"]: item.get("mode") for item in ref.get("items") or []}
            usual = ref.get("defaultMode") or (volume.get("projected") or {}).get("defaultMode") or DEFAULT_MODE
            for key, path in _items(ref, data).items():
                chosen = key in data and wanted(int(modes.get(key) or usual))
                if chosen and PurePosixPath(path).is_relative_to(inside):
                    place = PurePosixPath(mount["mountPath"]) / PurePosixPath(path).relative_to(inside)
                    found[str(place)] = data[key]
    return found


def unexecutable(pod: Pod, container: Object, manifests: Manifests) -> set[str]:
    """Return those of `texts` that no user may execute: their mode has none of the bits for it."""
    return set(texts(pod, container, manifests, lambda mode: not mode & 0o111))


def below(directory: Path, inside: str) -> Path:
    """Return the path `inside` a directory.

    Raises UserError if it is absolute, or has `..` or a control character.
    """
    path = PurePosixPath(inside)
    if not inside.isprintable() or path.is_absolute() or ".." in path.parts or not path.parts:
        raise UserError(f"the manifest names the path {inside!r}, which is not below its volume")
    return directory / path


def _place(pod: Pod, volume: Object, shared: Path, directory: Path) -> tuple[Path, str]:
    claim = volume.get("persistentVolumeClaim")
    if claim is not None:
        name = claim["claimName"]
        return (shared if name == CLAIM else below(shared / "claims", name)), f"claim {name}"
    if volume["name"] == COMPILED and volume.get("emptyDir") is not None:
        return below(shared / "compiled", pod.job), "emptyDir, kept for the next run"
    local = below(directory, volume["name"])
    if volume.get("emptyDir") is not None:
        return local, "emptyDir"
    if found := sources(volume):
        return local, " + ".join(f"{kind} {source_name(ref)}" for kind, ref in found)
    kind = next((key for key in volume if key != "name"), "emptyDir")
    return local, f"{kind}: an empty directory here"


def sources(volume: Object) -> list[tuple[str, Object]]:
    """Return the ConfigMaps and Secrets of a volume as (kind, reference)."""
    kinds = {"configMap": "ConfigMap", "secret": "Secret"}
    entries = (volume.get("projected") or {}).get("sources") or [volume]
    return [(kinds[key], entry[key]) for entry in entries for key in kinds if entry.get(key) is not None]


def source_name(ref: Object) -> str:
    """Return the name in a reference to a ConfigMap or a Secret."""
    return str(ref.get("name") or ref.get("secretName") or "")


def _items(ref: Object, data: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of a reference by key: those that it lists, or else each key of the data."""
    return {item["key"]: item["path"] for item in ref.get("items") or []} or {key: key for key in data}


def _write_files(source: tuple[str, Object], pod: Pod, manifests: Manifests, local: Path) -> list[str]:
    kind, ref = source
    found = manifests.texts(kind, source_name(ref), pod.namespace)
    if found is None:
        return [] if ref.get("optional") else [f"{kind} {source_name(ref)}"]
    missing = []
    for key, path in _items(ref, found).items():
        if key not in found:
            missing.append(f"key {key} of {kind} {source_name(ref)}")
            continue
        target = below(local, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(found[key], encoding="utf-8")
        target.chmod(0o400 if kind == "Secret" else 0o444)
    return [] if ref.get("optional") else missing
