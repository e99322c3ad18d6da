"""Checks a checkpoint's files against its manifest before use: size, then digest, then header."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from training.checkpoint.disk import file_digest, file_size
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import Entry, byte_count, lay_out, read_header
from training.checkpoint.layout import Manifest, Outline
from training.run.files import open_regular

_WAITS = (0.2, 1.0)  # seconds before the second and the third attempt at a read that failed transiently

T = TypeVar("T")


def with_retries(read: Callable[[], T]) -> T:
    """`read()`, retried after an error that may go away (EIO, a stale handle)."""
    for wait in _WAITS:
        try:
            return read()
        except CheckpointError as error:
            if not error.transient:
                raise
        time.sleep(wait)
    return read()


def check_sizes(directory: Path, manifest: Outline, names: Iterable[str]) -> None:
    """CheckpointError with the first of the files `names` that is missing or has another size."""
    for name in names:
        linked = next((path for path in [*Path(name).parents][:-1] if (directory / path).is_symlink()), None)
        if linked is not None:
            raise CheckpointError(f"{directory.name}/{linked}: is a link")
        size, expected = file_size(directory / name), manifest.files[name].size
        if size != expected:
            raise CheckpointError(f"{directory.name}/{name}: has {size} bytes, the manifest says {expected}")


def check_contents(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """CheckpointError with the first of the files `names` whose size, digest or header is wrong."""
    for name in names:
        check_sizes(directory, manifest, [name])
        if file_digest(directory / name) != manifest.files[name].sha256:
            raise CheckpointError(f"{directory.name}/{name}: its content does not match its digest")
        if name.endswith(".safetensors") and "/" not in name:  # a script's own files have any content
            check_header(directory, manifest, name)


def check_header(directory: Path, manifest: Manifest, name: str) -> dict[str, Entry]:
    """Compare the header of one safetensors file with the manifest; return the tensors' places."""
    path = directory / name
    expected = manifest.contents.get(name, {})
    with naming(path), open_regular(path) as file:
        found = read_header(path, file, 2 * len(lay_out(expected)[0]) + 1024)
    for tensor in sorted(found.keys() ^ expected.keys()):
        where = "manifest" if tensor in found else "header"
        raise CheckpointError(f"{directory.name}/{name}: tensor {tensor!r} is missing in the {where}")
    for tensor, place in found.items():
        kind = (place.dtype, place.shape)
        if kind != expected[tensor] or place.end - place.first != byte_count(*kind):
            raise CheckpointError(f"{directory.name}/{name}: header and manifest disagree on {tensor!r}")
    return found


def share_of(manifest: Manifest, rank: int, world_size: int) -> list[str]:
    """The files that `rank` of `world_size` hashes: each file is hashed once, and bytes are balanced."""
    return balanced({name: stored.size for name, stored in manifest.files.items()}, rank, world_size)


def balanced(sizes: Mapping[str, int], rank: int, world_size: int) -> list[str]:
    """The share of `rank` of items with these sizes: largest first, each to the rank with least so far."""
    load = [0] * world_size
    mine = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        lightest = load.index(min(load))
        load[lightest] += sizes[name] + 1
        if lightest == rank:
            mine.append(name)
    return mine
