"""Container images made without an engine: OCI archives for `ctr images import`."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(
    path: Path,
    name: str,
    directories: Sequence[str],
    files: Mapping[str, Path | str],
    links: Mapping[str, str],
    config: Mapping[str, object],
) -> Path:
    """Write the image `name` (with its tag) of one layer to `path` and return it.

    The layer has `directories` (a trailing `!` makes one that all may write to), `files` (from a file of this
    machine, or a text) and `links`; `config` is the image's configuration, with Entrypoint, Env and so on.
    """
    layer = _layer(directories, files, links)
    system = {"architecture": ARCHITECTURE[platform.machine()], "os": "linux"}
    rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
    described = json.dumps({**system, "config": dict(config), "rootfs": rootfs}).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _reference("application/vnd.oci.image.config.v1+json", described),
            "layers": [_reference("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    ).encode()
    entry = _reference("application/vnd.oci.image.manifest.v1+json", manifest)
    tag = name.rsplit(":", 1)[1]
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry | {"platform": system}]}).encode()
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (described, manifest, layer)}
    with tarfile.open(path, "w") as file:
        for where, content in {
            "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
            "index.json": index,
            **blobs,
        }.items():
            _add(file, where, content, 0o644)
    return path


def _layer(directories: Sequence[str], files: Mapping[str, Path | str], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name in directories:
            entry = tarfile.TarInfo(name.strip("/!"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("!") else 0o755
            file.addfile(entry)
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content.read_bytes()
            _add(file, name.strip("/"), data, 0o644 if isinstance(content, str) else 0o755)
        for name, target in links.items():
            entry = tarfile.TarInfo(name.strip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            file.addfile(entry)
    return buffer.getvalue()


def _add(file: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    file.addfile(entry, io.BytesIO(content))


def _reference(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()
