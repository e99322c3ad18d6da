"""The places where the committed steps of a run lie: what each of them can do, and the directory as the first one.

A step's files are put first and its manifest last, so that a step is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Protocol

from training.checkpoint.attempt import Attempt, clean_step, discard, quarantine, why_other
from training.checkpoint.disk import HashedFile, sync_directory
from training.checkpoint.errors import CheckpointError, naming
from training.checkpoint.layout import (
    Manifest,
    Outline,
    Sealed,
    Stored,
    committed_steps,
    quarantined,
    run_of,
    sealed,
    step_name,
)
from training.checkpoint.verify import check_contents, check_sizes
from training.run.directory import RunDir, last_records
from training.run.files import open_regular

_DAY = 86400.0
_HELDOUT_BYTES = 16 << 20  # of heldout.jsonl: more than 100,000 evaluations
_CHUNK = 16 << 20


class Tier(Protocol):
    """One place of a run's committed steps. What cannot be read or written raises CheckpointError."""

    place: str
    """The place, for messages."""
    run: str
    """The run whose signature its manifests need."""
    at_once: int
    """How many requests are best made at a time."""

    def runs(self) -> list[str]:
        """Names of the runs below this place, if it is not that of a run itself."""
        ...

    def where(self, step: int) -> str:
        """The place of one step, for messages."""
        ...

    def steps(self) -> list[int]:
        """Committed steps, ascending; not verified."""
        ...

    def sealed(self, step: int) -> Sealed:
        """The manifest of a committed step."""
        ...

    def check_sizes(self, manifest: Outline) -> None:
        """CheckpointError with the first file that is missing or has another size."""
        ...

    def check_contents(self, manifest: Manifest) -> None:
        """CheckpointError with the first file that has another content; reads every byte."""
        ...

    def local(self, manifest: Manifest, name: str) -> Path | None:
        """The path of one of a step's files on this machine, None if it must be fetched."""
        ...

    def get(self, manifest: Manifest, name: str, to: Path) -> None:
        """Write one of a step's files to the new file `to`, durably; its digest must be the manifest's."""
        ...

    def begin(self, manifest: Manifest) -> str:
        """A new attempt at a step, by one process; the others `put` their files under the same name."""
        ...

    def put(self, attempt: str, manifest: Manifest, name: str, source: Tier) -> None:
        """Store one file of an attempt, from another tier; its digest must be the manifest's."""
        ...

    def commit(self, attempt: str, manifest: Manifest, data: bytes, signature: bytes | None) -> None:
        """Store the manifest's bytes `data`, if the step has none yet; of two writers exactly one can."""
        ...

    def abandon(self, attempt: str) -> None:
        """Remove what an attempt has stored, unless it was committed."""
        ...

    def refused(self) -> list[str]:
        """Names of the steps that failed verification or were set aside."""
        ...

    def others(self) -> dict[str, str]:
        """Names of steps that are not committed ones, and why."""
        ...

    def aged(self, days: float) -> list[str]:
        """Names of the refused steps that were set aside at least so many days ago."""
        ...

    def nbytes(self, name: str) -> int:
        """Bytes of a step, or of a refused one, by its name."""
        ...

    def delete(self, name: str) -> None:
        """Delete a step, or a refused one, by its name."""
        ...

    def quarantine(self, step: int) -> str:
        """Move a step aside, as evidence; return its new name."""
        ...

    def losses(self) -> dict[int, float]:
        """The held-out loss of each evaluated step."""
        ...


class Directory:
    """The steps in a directory, which all ranks see: a run's `checkpoints`, or a copy of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path.parent if path.name == "checkpoints" else path)
        self.run, self.at_once = run_of(path / "step"), 1
        self._attempts: dict[str, Attempt] = {}
        self._made: list[Path] = []  # directories of this object's making, the deepest first

    def runs(self) -> list[str]:
        return [] if self.path.exists() else sorted(path.parent.name for path in self.path.parent.glob("*/checkpoints"))

    def where(self, step: int) -> str:
        return str(self.path / step_name(step))

    def steps(self) -> list[int]:
        return committed_steps(self.path)

    def sealed(self, step: int) -> Sealed:
        return sealed(self.path / step_name(step), self.run)

    def check_sizes(self, manifest: Outline) -> None:
        check_sizes(self.path / step_name(manifest.step), manifest, sorted(manifest.files))

    def check_contents(self, manifest: Manifest) -> None:
        check_contents(self.path / step_name(manifest.step), manifest, sorted(manifest.files))

    def local(self, manifest: Manifest, name: str) -> Path | None:
        return self.path / step_name(manifest.step) / name

    def get(self, manifest: Manifest, name: str, to: Path) -> None:
        source = self.path / step_name(manifest.step) / name
        with HashedFile(to) as copy, naming(source), open_regular(source) as file:
            while chunk := file.read(_CHUNK):
                copy.write(chunk)
        check_digest(copy.digest, copy.size, manifest, name)

    def begin(self, manifest: Manifest) -> str:
        with naming(self.path, whole=True):
            self._made += [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            clean_step(self.path, manifest.step, lambda _: None)
        attempt = Attempt.begin(self.path, manifest.step)
        self._attempts[attempt.path.name] = attempt
        return attempt.path.name

    def put(self, attempt: str, manifest: Manifest, name: str, source: Tier) -> None:
        to = self.path / attempt / name
        with naming(to):
            to.parent.mkdir(parents=True, exist_ok=True)
        source.get(manifest, name, to)

    def commit(self, attempt: str, manifest: Manifest, data: bytes, signature: bytes | None) -> None:
        for parent in {(self.path / attempt / name).parent for name in manifest.files}:
            sync_directory(parent)
        self._attempts[attempt].commit(data, signature)

    def abandon(self, attempt: str) -> None:
        self._attempts.pop(attempt).close()
        with contextlib.suppress(OSError):  # a directory that holds something stays
            for path in self._made:
                path.rmdir()

    def refused(self) -> list[str]:
        return [name for name, _ in quarantined(self.path)]

    def others(self) -> dict[str, str]:
        if not self.path.is_dir():
            return {}
        with naming(self.path), os.scandir(self.path) as entries:
            found = {entry.name: why_other(entry) for entry in entries}
        return {name: why for name, why in sorted(found.items()) if why}

    def aged(self, days: float) -> list[str]:
        until = time.time() - days * _DAY
        return [name for name in self.refused() if _is_old(self.path / name, until)]

    def nbytes(self, name: str) -> int:
        return sum(Path(at, one).lstat().st_size for at, _, names in os.walk(self.path / name) for one in names)

    def delete(self, name: str) -> None:
        discard(self.path / name)

    def quarantine(self, step: int) -> str:
        return quarantine(self.path / step_name(step)).name

    def losses(self) -> dict[int, float]:
        """Those of the run that the directory is in; without those that are not finite numbers."""
        records = last_records(RunDir(self.path.absolute().parent).heldout, _HELDOUT_BYTES)
        pairs = ((record.get("step"), record.get("loss")) for record in records)
        return {step: loss for step, loss in pairs if type(step) is int and type(loss) is float and math.isfinite(loss)}


def _is_old(path: Path, until: float) -> bool:
    """Whether a quarantined directory was moved aside before `until`; a link there has no use at all."""
    try:
        return path.is_symlink() or path.lstat().st_ctime <= until
    except FileNotFoundError:
        return False  # another process has pruned it


def check_digest(digest: str, size: int, manifest: Outline, name: str) -> None:
    """CheckpointError if a file's content is not what its manifest says."""
    if Stored(size, digest) != manifest.files[name]:
        raise CheckpointError(f"{step_name(manifest.step)}/{name}: its content does not match its digest")
