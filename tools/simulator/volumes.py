"""A pod's volumes as directories of the checkout, and its mount paths translated to them.

The claim `trainyard` is `<checkout>/local`; every other claim is `<checkout>/local/claims/<name>`.
ConfigMaps, Secrets and projections of them are written as files; an emptyDir is an empty directory. What this
machine cannot be (hostPath, CSI, NFS and so on) is an empty directory too, and says so in `kind`.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tools.kube.manifests import Manifests, Object
from tools.simulator.operator_pods import Pod

CLAIM = "trainyard"


@dataclass(frozen=True)
class Mount:
    """One mount: the path in the container, the path here, and what it is."""

    path: str
    local: Path
    kind: str


@dataclass
class Volumes:
    """The mounts of one container, longest path first, and what was asked for and is not here."""

    mounts: list[Mount] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def translate(self, text: str) -> str:
        """Replace mount paths in `text` by local ones: whole path components only, the longest mount first.

        A path counts where it stands alone or behind one of `= : , ; ( [ {`, a quote or white space, so that
        `--data=/shared/data` and `/a:/shared` are translated, and `/tmpfile` and `gs://x/shared` are not.
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
        """Return where the container's `path` lies here, or None when no mount holds it."""
        for mount in self.mounts:
            if path == mount.path or path.startswith(mount.path.rstrip("/") + "/"):
                return mount.local / path[len(mount.path) :].strip("/")
        return None


def plan(pod: Pod, container: Object, shared: Path, directory: Path) -> Volumes:
    """Return where the mounts of `container` lie; writes nothing.

    `shared` stands for the claim, `directory` is the pod's own (it holds one directory a volume).
    """
    by_name = {volume["name"]: volume for volume in pod.spec.get("volumes") or []}
    result = Volumes()
    for mount in container.get("volumeMounts") or []:
        volume = by_name.get(mount["name"])
        if volume is None:
            result.missing.append(f"volume {mount['name']} (mounted at {mount['mountPath']})")
            continue
        local, kind = _place(volume, shared, directory)
        path = "/" + mount["mountPath"].strip("/")
        result.mounts.append(Mount(path, local / (mount.get("subPath") or ""), kind))
    result.mounts.sort(key=lambda item: len(item.path), reverse=True)
    return result


def materialise(pod: Pod, manifests: Manifests, shared: Path, directory: Path) -> list[str]:
    """Make the pod's volumes anew under `directory` (what was there is removed), and the claims' directories.

    Returns what was asked for, is not optional, and is in no manifest.
    """
    if directory.exists():
        shutil.rmtree(directory)
    missing: list[str] = []
    for volume in pod.spec.get("volumes") or []:
        local, _ = _place(volume, shared, directory)
        local.mkdir(parents=True, exist_ok=True)
        for source in _sources(volume):
            missing += _write_files(source, pod, manifests, local)
    return missing


def _place(volume: Object, shared: Path, directory: Path) -> tuple[Path, str]:
    claim = volume.get("persistentVolumeClaim")
    if claim is not None:
        name = claim["claimName"]
        return (shared if name == CLAIM else shared / "claims" / name), f"claim {name}"
    local = directory / volume["name"]
    if volume.get("emptyDir") is not None:
        return local, "emptyDir"
    names = [name for name, _ in _sources(volume)]
    if names:
        return local, " + ".join(
            f"{kind} {ref.get('name') or ref.get('secretName')}" for kind, ref in _sources(volume)
        )
    kind = next((key for key in volume if key != "name"), "emptyDir")
    return local, f"{kind}: an empty directory here"


def _sources(volume: Object) -> list[tuple[str, Object]]:
    """Return the ConfigMaps and Secrets that make a volume's files, as (kind, reference)."""
    kinds = {"configMap": "ConfigMap", "secret": "Secret"}
    entries = (volume.get("projected") or {}).get("sources") or [volume]
    return [(kinds[key], entry[key]) for entry in entries for key in kinds if entry.get(key) is not None]


def _write_files(source: tuple[str, Object], pod: Pod, manifests: Manifests, local: Path) -> list[str]:
    kind, ref = source
    name = ref.get("name") or ref.get("secretName") or ""
    lookup = manifests.secret if kind == "Secret" else manifests.config_map
    found = lookup(name, pod.namespace)
    if found is None:
        return [] if ref.get("optional") else [f"{kind} {name}"]
    items = {item["key"]: item["path"] for item in ref.get("items") or []} or {key: key for key in found}
    missing = []
    for key, path in items.items():
        if key not in found:
            missing.append(f"key {key} of {kind} {name}")
            continue
        target = local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(found[key], encoding="utf-8")
        target.chmod(0o400 if kind == "Secret" else 0o444)
    return [] if ref.get("optional") else missing
