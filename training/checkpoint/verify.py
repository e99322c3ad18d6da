"""Checks a checkpoint's files against its manifest before use: size, then digest, then header."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from training.checkpoint.disk import file_digest, file_size
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.header import Entry, byte_count, read_header
from training.checkpoint.layout import Manifest

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


def check_sizes(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """CheckpointError with the first of the files `names` that is missing or has another size."""
    for name in names:
        size, expected = file_size(directory / name), manifest.files[name].size
        if size != expected:
            raise CheckpointError(f"{directory.name}/{name}: has {size} bytes, the manifest says {expected}")


def check_contents(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """CheckpointError with the first of the files `names` whose size, digest or header is wrong."""
    for name in names:
        check_sizes(directory, manifest, [name])
        if file_digest(directory / name) != manifest.files[name].sha256:
            raise CheckpointError(f"{directory.name}/{name}: its content does not match its digest")
        if name.endswith(".safetensors"):
            check_header(directory, manifest, name)


def check_header(directory: Path, manifest: Manifest, name: str) -> dict[str, Entry]:
    """Compare the header of one safetensors file with the manifest; return the tensors' places."""
    path = directory / name
    with naming(path), open(path, "rb", buffering=0) as file:
        found = read_header(path, file)
    expected = {
        tensor: (entry.dtype, (shard.rows[1] - shard.rows[0], *entry.shape[1:]) if entry.shape else ())
        for tensor, entry in manifest.tensors.items()
        for shard in entry.shards
        if shard.file == name
    }
    for tensor in sorted(found.keys() ^ expected.keys()):
        where = "manifest" if tensor in found else "header"
        raise CheckpointError(f"{directory.name}/{name}: tensor {tensor!r} is missing in the {where}")
    size = manifest.files[name].size
    for tensor, place in found.items():
        if (place.dtype, place.shape) != expected[tensor] or not _fits(place, size):
            raise CheckpointError(f"{directory.name}/{name}: header and manifest disagree on {tensor!r}")
    return found


def _fits(place: Entry, size: int) -> bool:
    inside = place.first >= 0 and place.end <= size
    return inside and place.end - place.first == byte_count(place.dtype, place.shape)


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
