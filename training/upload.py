"""A finished model on S3: `python -m training.upload --run DIR --to s3://BUCKET/PREFIX`, or when a run ends.

The files of the exported directory go to the prefix, each with its SHA-256, which S3 checks as it takes them.
Then every file is read back and hashed again, and only then MANIFEST.json is written, which names all with
size and digest: who finds a MANIFEST.json finds a whole model. Credentials are the process's own, in a pod
those of its service account, by EKS Pod Identity or IRSA.
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

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config as ClientConfig
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError, NoCredentialsError

from training.config import ConfigError
from training.config.run import S3_PREFIX
from training.run.directory import RunDir, read_json, write_json
from training.run.failure import UploadError, one_line

MANIFEST = "MANIFEST.json"
ATTEMPTS = 8  # botocore's own, with its exponential backoff of at most 20 s each
CHUNK = 8 << 20
SAY_EVERY = 5.0  # seconds
_NOT_ALLOWED = "this identity may not {what}: it needs s3:ListBucket, s3:GetObject and s3:PutObject"
# What another try with the same configuration and identity would meet again.
_REFUSED = {
    "NoSuchBucket": "there is no such bucket",
    "InvalidBucketName": "that is no bucket's name",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION to its own",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION to its own",
    "AccessDenied": _NOT_ALLOWED,
    "403": _NOT_ALLOWED,
    "InvalidAccessKeyId": "its credentials are not known",
    "SignatureDoesNotMatch": "its credentials are wrong",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Uploaded:
    """What lies at `to` now: the run and step it is of, its files, and their bytes together."""

    to: str
    run: str
    step: int
    files: int
    nbytes: int


@dataclass(frozen=True)
class _Place:
    """A prefix in a bucket, and the client that speaks for this process."""

    client: Any
    bucket: str
    prefix: str

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def upload_run(run: RunDir, to: str, step: int, merge: bool, dtype: str, say: Say) -> Uploaded:
    """Export a run's checkpoint of `step` and bring it to `to`; `<run>/upload.json` says that it is there.

    What is exported is kept in `<run>/export` until it is there, and used again by another try.

    Raises:
        ConfigError: another try would fail the same way: no such bucket, no permission, another run's model.
        UploadError: the export or the transfer failed, or what was read back is not what was sent.
    """
    from training.export import ExportError, export_run

    kept = run.path / "export" / f"step-{step}-{'merged-' if merge else ''}{dtype}"
    if not kept.exists():
        try:
            export_run(run.path, kept, merge=merge, step=step, dtype=dtype, say=say)
        except ExportError as error:
            raise UploadError(str(error)) from error
    done = upload(kept, to, run.path.resolve().name, step, say)
    write_json(run.path / "upload.json", {**asdict(done), "time": time.time()})
    shutil.rmtree(run.path / "export", ignore_errors=True)
    return done


def already(run: RunDir, to: str, step: int) -> bool:
    """Whether `<run>/upload.json` says that the checkpoint of `step` lies at `to`."""
    try:
        saved = read_json(run.path / "upload.json")
        return (saved["to"], saved["step"]) == (to, step)
    except (OSError, ValueError, KeyError):
        return False


def check(to: str, run: str, say: Say) -> None:
    """Look at the destination before a run spends anything.

    Raises ConfigError where it cannot work; what cannot be told yet is said.
    """
    place = _place(to)
    try:
        _check_owner(place, run)
    except UploadError as error:
        say(f"whether the model can go to {to} is open: {error}")


def upload(directory: Path, to: str, run: str, step: int, say: Say) -> Uploaded:
    """Bring the files of a directory to `to`, the manifest last; what is there already is not sent again.

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
        raise UploadError(f"{directory} holds no files")
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
        raise UploadError(f"{place}/{MANIFEST} was read back and is not what was written")
    return Uploaded(to, run, step, len(files), sum(sizes.values()))


class _Progress:
    """Says now and then how much has been sent and read back."""

    def __init__(self, say: Say, total: int) -> None:
        self._say, self._total = say, total
        self._done = {"sent": 0, "read back": 0}
        self._said_at = time.monotonic()

    def more(self, what: str, count: int) -> None:
        self._done[what] += count
        if time.monotonic() - self._said_at >= SAY_EVERY:
            self._said_at = time.monotonic()
            share = self._done[what] / max(1, self._total)
            self._say(f"{what} {share:.0%} of {self._total / 1e9:.2f} GB")


def _place(to: str) -> _Place:
    found = S3_PREFIX.fullmatch(to)
    if found is None:
        raise ConfigError(f"upload.to is {to!r}: write s3://bucket/prefix")
    settings = ClientConfig(
        retries={"mode": "standard", "max_attempts": ATTEMPTS},
        connect_timeout=10,
        read_timeout=60,
        user_agent_extra="trainyard",
    )
    with _errors(to, "open it"):
        return _Place(boto3.Session().client("s3", config=settings), found[1], found[2])


def _check_owner(place: _Place, run: str) -> None:
    there = _manifest(place)
    if there is not None and there.get("run") != run:
        raise ConfigError(
            f"upload.to is {str(place)!r}, which holds the model of run {there.get('run')}; "
            "name another prefix"
        )


def _manifest(place: _Place) -> dict[str, Any] | None:
    """The manifest at a place, or None where there is none."""
    try:
        with _errors(str(place), "read it"):
            answer = place.client.get_object(Bucket=place.bucket, Key=place.key(MANIFEST))
            value = json.loads(answer["Body"].read())
    except _NotThere:
        return None
    except ValueError:
        raise ConfigError(f"{place}/{MANIFEST} is there and is no manifest; name another prefix") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{place}/{MANIFEST} is there and is no manifest; name another prefix")
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
    """Send a file, in parts when it is large; not again when the same one was sent before."""
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
        raise UploadError(f"{place}/{name} was read back with SHA-256 {found[:12]}, {digest[:12]} was sent")


def _digest(stream: Any, told: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 of a stream's bytes, in hexadecimal; the stream is closed."""
    found = hashlib.sha256()
    with stream:
        while chunk := stream.read(CHUNK):
            found.update(chunk)
            told(len(chunk))
    return found.hexdigest()


class _NotThere(Exception):
    """The object that was asked for does not exist."""


@contextmanager
def _errors(place: str, what: str) -> Iterator[None]:
    """Turn what the libraries raise into the two errors of this module."""
    try:
        yield
    except (NoCredentialsError, CredentialRetrievalError) as error:
        raise ConfigError(
            f"upload.to is {place!r}, and this process has no identity for it: {one_line(str(error))}; "
            "give the service account a role (EKS Pod Identity or IRSA)"
        ) from error
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ("NoSuchKey", "404"):
            raise _NotThere from None
        if code in _REFUSED:
            raise ConfigError(f"upload.to is {place!r}: {_REFUSED[code].format(what=what)}") from error
        raise UploadError(f"{place}: cannot {what}: {one_line(str(error))}") from error
    except (BotoCoreError, Boto3Error) as error:
        refused = next((code for code in _REFUSED if f"({code})" in str(error)), None)
        if refused is not None:  # an error of s3transfer holds the client's error as text only
            raise ConfigError(f"upload.to is {place!r}: {_REFUSED[refused].format(what=what)}") from error
        raise UploadError(f"{place}: cannot {what}: {one_line(str(error))}") from error
    except OSError as error:
        raise UploadError(f"{place}: cannot {what}: {error.strerror or error}") from error


def main() -> None:
    """Command line: what was uploaded, as JSON; else one line on standard error and exit 2 (transfer: 1)."""
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

    run = RunDir(given.run)
    try:
        done = upload_run(run, given.to, checkpoint_of(run).step, given.merge, given.dtype, say)
    except (ConfigError, CheckpointError) as error:
        say(f"error: {error}")
        sys.exit(2)
    except UploadError as error:
        say(f"error: {error}")
        sys.exit(1)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
