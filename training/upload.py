"""Uploads a finished model to S3, at a run's end or by `python -m training.upload --run DIR --to s3://...`.

The files of the exported directory go to the prefix, each with its SHA-256, which S3 checks on arrival. Then
every file is read back and hashed again. Only then MANIFEST.json is written, which lists all files with size
and digest: a prefix with a MANIFEST.json holds a complete model. Credentials are the process's own; in a pod
they are those of its service account, by EKS Pod Identity or IRSA.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.config import ConfigError
from training.run import bucket
from training.run.bucket import S3_PREFIX
from training.run.directory import RunDir, read_json, write_json
from training.run.failure import UploadError, one_line

MANIFEST = "MANIFEST.json"
CHUNK = 8 << 20
SAY_EVERY = 5.0  # seconds
Say = Callable[[str], None]


@dataclass(frozen=True)
class Uploaded:
    """The model at `to`: its run and step, the number of its files, and their total size in bytes."""

    to: str
    run: str
    step: int
    files: int
    nbytes: int


@dataclass(frozen=True)
class _Place:
    """A prefix in a bucket, and a client with this process's credentials."""

    client: Any
    bucket: str
    prefix: str

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def upload_run(run: RunDir, to: str, step: int, merge: bool, dtype: str, say: Say) -> Uploaded:
    """Export a run's checkpoint of `step` and upload it to `to`; `<run>/upload.json` records that.

    The export is kept in `<run>/export` until the upload is complete, and reused by another attempt.

    Raises:
        ConfigError: another attempt would fail the same way: no such bucket, no permission, another run's
        model. UploadError: the export or the transfer failed, or the bytes read back differ.
    """
    from training.export import ExportError, export_run

    kept = run.path / "export" / f"step-{step}-{'merged-' if merge else ''}{dtype}"
    if not kept.exists():
        try:
            export_run(run.path, kept, merge=merge, step=step, dtype=dtype, say=say)
        except ExportError as error:
            raise UploadError(str(error)) from error
    done = upload(kept, to, run.name, step, say)
    write_json(run.path / "upload.json", {**asdict(done), "time": time.time()})
    shutil.rmtree(run.path / "export", ignore_errors=True)
    return done


def already(run: RunDir, to: str, step: int) -> bool:
    """Whether the checkpoint of `step` is at `to`, by `<run>/upload.json`."""
    try:
        saved = read_json(run.path / "upload.json")
        return (saved["to"], saved["step"]) == (to, step)
    except (OSError, ValueError, KeyError):
        return False


def check(to: str, run: str, say: Say) -> None:
    """Check the destination before training.

    Raises ConfigError if it cannot work. If it cannot be checked now, only a line is reported.
    """
    place = _place(to)
    try:
        _check_owner(place, run)
    except UploadError as error:
        say(f"cannot check yet whether the model can be uploaded to {to}: {error}")


def upload(directory: Path, to: str, run: str, step: int, say: Say) -> Uploaded:
    """Upload the files of a directory to `to`, the manifest last; files that are there are not sent again.

    Raises:
        ConfigError, UploadError: as `upload_run`.
    """
    place = _place(to)
    _check_owner(place, run)
    files = {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*")) if path.is_file()
    }  # fmt: skip
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if not files:
        raise UploadError(f"{directory} contains no files")
    progress = _Progress(say, sum(sizes.values()))
    digests = {name: _digest(path.open("rb")) for name, path in files.items()}
    entries = {name: {"size": sizes[name], "sha256": digests[name]} for name in files}
    manifest = {"run": run, "step": step, "files": entries}
    before = _manifest(place)
    if before is not None and before != manifest:
        _put_manifest(place, {"run": run, "step": step, "files": {}, "state": "being replaced"})
    for name, path in files.items():
        _send(place, name, path, digests[name], progress)
    for name in files:
        _read_back(place, name, digests[name], progress)
    if before != manifest:
        _put_manifest(place, manifest)
    if _manifest(place) != manifest:
        raise UploadError(f"{place}/{MANIFEST} was read back with other content than was written")
    return Uploaded(to, run, step, len(files), sum(sizes.values()))


class _Progress:
    """Reports every SAY_EVERY seconds how much has been sent and read back."""

    def __init__(self, say: Say, total: int) -> None:
        self._say, self._total = say, total
        self._done = {"sent": 0, "read back": 0}
        self._said_at = time.monotonic()

    def more(self, what: str, count: int) -> None:
        self._done[what] += count
        if time.monotonic() - self._said_at >= SAY_EVERY:
            self._said_at = time.monotonic()
            share = self._done[what] / max(1, self._total)
            self._say(f"{what} {share:.0%} of {self._total / 2**30:.2f} GiB")


def _place(to: str) -> _Place:
    found = S3_PREFIX.fullmatch(to)
    if found is None:
        raise ConfigError(f"upload.to is {to!r}: write s3://bucket/prefix")
    with _errors(to, "open it"):
        return _Place(bucket.client(), found[1], found[2])


def _check_owner(place: _Place, run: str) -> None:
    there = _manifest(place)
    if there is not None and there.get("run") != run:
        raise ConfigError(
            f"upload.to is {str(place)!r}, which holds the model of run {there.get('run')}; use another prefix"
        )


def _manifest(place: _Place) -> dict[str, Any] | None:
    """The manifest at a place, or None without one."""
    try:
        with _errors(str(place), "read it"):
            answer = place.client.get_object(Bucket=place.bucket, Key=place.key(MANIFEST))
            value = json.loads(answer["Body"].read())
    except _NotThere:
        return None
    except ValueError:
        raise ConfigError(f"{place}/{MANIFEST} exists but is not a manifest; use another prefix") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{place}/{MANIFEST} exists but is not a manifest; use another prefix")
    return value


def _put_manifest(place: _Place, manifest: dict[str, Any]) -> None:
    with _errors(str(place), f"write {MANIFEST}"):
        place.client.put_object(
            Bucket=place.bucket,
            Key=place.key(MANIFEST),
            Body=json.dumps(manifest, indent=2).encode(),
            ContentType="application/json",
            ChecksumAlgorithm="SHA256",
        )


def _send(place: _Place, name: str, path: Path, digest: str, progress: _Progress) -> None:
    """Send a file, a large one in parts; skip a file that was sent before."""
    if _sent_before(place, name, path.stat().st_size, digest):
        progress.more("sent", path.stat().st_size)
        return
    with _errors(str(place), f"write {name}"):
        place.client.upload_file(
            str(path),
            place.bucket,
            place.key(name),
            ExtraArgs={"ChecksumAlgorithm": "SHA256", "Metadata": {"sha256": digest}},
            Callback=lambda count: progress.more("sent", count),
        )


def _sent_before(place: _Place, name: str, size: int, digest: str) -> bool:
    try:
        with _errors(str(place), f"read {name}"):
            there = place.client.head_object(Bucket=place.bucket, Key=place.key(name))
    except _NotThere:
        return False
    return bool(there["ContentLength"] == size and there["Metadata"].get("sha256") == digest)


def _read_back(place: _Place, name: str, digest: str, progress: _Progress) -> None:
    with _errors(str(place), f"read {name}"):
        body = place.client.get_object(Bucket=place.bucket, Key=place.key(name))["Body"]
        found = _digest(body, lambda count: progress.more("read back", count))
    if found != digest:
        raise UploadError(f"{place}/{name}: SHA-256 {digest[:12]} was sent, but {found[:12]} was read back")


def _digest(stream: Any, told: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 of a stream's bytes, in hexadecimal; closes the stream."""
    found = hashlib.sha256()
    with stream:
        while chunk := stream.read(CHUNK):
            found.update(chunk)
            told(len(chunk))
    return found.hexdigest()


class _NotThere(Exception):
    """The requested object does not exist."""


@contextmanager
def _errors(place: str, what: str) -> Iterator[None]:
    """Turn the libraries' errors into ConfigError and UploadError."""
    try:
        yield
    except bucket.errors() as error:
        if bucket.code_of(error) in bucket.ABSENT:
            raise _NotThere from None
        if (refused := bucket.refusal(error, what)) is not None:
            raise ConfigError(f"upload.to is {place!r}: {refused}") from error
        raise UploadError(f"{place}: cannot {what}: {one_line(str(error))}") from error
    except OSError as error:
        raise UploadError(f"{place}: cannot {what}: {error.strerror or error}") from error


def main() -> None:
    """Command line: the result as JSON; on failure one line on standard error and exit 2 (transfer: 1)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, type=Path, help="run directory")
    parser.add_argument("--to", required=True, help="s3://bucket/prefix")
    parser.add_argument("--merge", action="store_true", help="add adapters to their base")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32")
    given = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    from training.checkpoint.errors import CheckpointError
    from training.sample import checkpoint_of

    run, skipped = RunDir(given.run), list[str]()
    try:
        step = checkpoint_of(run, skipped=skipped).step
        for line in skipped:
            say(line)
        done = upload_run(run, given.to, step, given.merge, given.dtype, say)
    except (ConfigError, CheckpointError) as error:
        say(f"error: {error}")
        sys.exit(2)
    except UploadError as error:
        say(f"error: {error}")
        sys.exit(1)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
