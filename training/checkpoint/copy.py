"""Copies a committed step from one tier to another: the files first, each against its digest, the manifest last."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import Manifest, Sealed, signature_of
from training.checkpoint.s3 import Bucket
from training.checkpoint.tier import Directory, Tier
from training.run import signing


def begin(found: Sealed, target: Tier) -> str | None:
    """A new attempt at the step in the target, None if exactly this step is there already.

    Raises:
        CheckpointError: the target has another checkpoint of this step.
    """
    manifest = found.manifest()
    if manifest.step not in target.steps():
        return target.begin(manifest)
    if target.sealed(manifest.step).data == found.data:
        return None
    raise CheckpointError(f"{target.where(manifest.step)}: is another checkpoint of step {manifest.step}")


def put(source: Tier, target: Tier, attempt: str, manifest: Manifest, names: Iterable[str]) -> None:
    """Copy some of the files; several processes can copy a part each."""
    for name in names:
        target.put(attempt, manifest, name, source)


def commit(found: Sealed, target: Tier, attempt: str) -> None:
    """Commit the copy when all files are there. With a signing key it is signed as one of the target's run."""
    key = signing.key()
    target.commit(attempt, found.manifest(), found.data, _signature(found) if key is None else signature_of(
        key, target.run, found.data
    ))  # fmt: skip


def _signature(found: Sealed) -> bytes | None:
    """The signature that the step has, None without one."""
    try:
        return found.signature()
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def copy(source: Tier, target: Tier, step: int) -> bool:
    """Copy one step with this process alone; False if it is there already. On failure nothing of it is left."""
    found = source.sealed(step)
    manifest = found.manifest()
    attempt = begin(found, target)
    if attempt is None:
        return False
    try:
        put(source, target, attempt, manifest, sorted(manifest.files))
        commit(found, target, attempt)
    finally:
        target.abandon(attempt)
    return True


@contextmanager
def fetched(address: str, step: int | None = None) -> Iterator[Path]:
    """A run directory for a while, with the newest step below `s3://bucket/prefix`, or with `step`."""
    source = Bucket(address)
    chosen = step if step is not None else next(source.newest_first(), None)
    if chosen is None:
        raise CheckpointError(f"{source.place}: no committed checkpoint yet")
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / source.run
        copy(source, Directory(run / "checkpoints"), chosen)
        yield run
