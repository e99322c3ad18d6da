"""The committed steps of a run below `s3://bucket/prefix`.

    step-00000100/MANIFEST.json                       the commit: put if no writer has put one (If-None-Match: *)
    step-00000100/<digest of the manifest>.signature  with a signing key
    step-00000100/<attempt>/rank-00000.safetensors    files, in the folder of the attempt that the manifest names
    step-00000100/MANIFEST.bad.json                   in place of MANIFEST.json: set aside, kept as evidence
    LOSSES.json                                       held-out losses, by which the best steps are kept

A writer sends files into a folder of its own, so that two writers of one step cannot mix their files. boto3 sends
large files in parts, each with its SHA-256, which S3 checks on arrival; the checksum that S3 then reports is
compared with the one of what was read here. An object is never renamed or overwritten, but for LOSSES.json.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.checkpoint.attempt import REFUSED
from training.checkpoint.disk import exactly, file_digest, file_size, sync_file
from training.checkpoint.errors import CheckpointError, UnreachableError, UnusableError, naming
from training.checkpoint.layout import MANIFEST, Manifest, Outline, Sealed, manifest_limit, step_name, step_of
from training.checkpoint.tier import Tier, check_digest
from training.run import bucket
from training.run.failure import one_line
from training.run.files import open_regular

BAD_MANIFEST = "MANIFEST.bad.json"
LOSSES = "LOSSES.json"
PART = 16 << 20  # bytes, unless a file then had more than _MOST_PARTS
_MOST_PARTS = 9_000  # S3 takes 10,000
_AT_ONCE = 16  # requests
_CONFLICTS = 5  # answers 409 to one commit, which S3 gives while another commit of the same key runs
_MOST_MANIFEST = manifest_limit(1 << 30)
_SIGNATURE_BYTES = 4096
_DAY = 86400.0


class AbsentError(CheckpointError):
    """There is no such object."""


class Bucket:
    """The steps below a prefix, whose last part is the run's name."""

    def __init__(self, address: str, client: Any = None) -> None:
        found = bucket.S3_PREFIX.fullmatch(address.rstrip("/"))
        if found is None:
            raise UnusableError(f"{address!r} is not a prefix in a bucket: write s3://bucket/prefix/run")
        self.place, self.at_once = found[0], _AT_ONCE
        self.run = found[2].rpartition("/")[2]
        self._name, self._prefix = found[1], found[2]
        self._attempts: dict[str, bool] = {}  # by name: whether it is committed
        self._ends = False
        with self._doing("open it"):
            self._client = client or bucket.client()

    def runs(self) -> list[str]:
        return [name for name in self._names() if step_of(name) is None]

    def where(self, step: int) -> str:
        return f"{self.place}/{step_name(step)}"

    def steps(self) -> list[int]:
        return [step for step, there in self._manifests(MANIFEST) if there]

    def newest_first(self) -> Iterator[int]:
        """Committed steps, newest first; asks S3 about one after the other."""
        for step in reversed(self._folders()):
            if self._exists(f"{step_name(step)}/{MANIFEST}"):
                yield step

    def sealed(self, step: int) -> Sealed:
        data = self._read(f"{step_name(step)}/{MANIFEST}", _MOST_MANIFEST)
        name = _signature_name(step_name(step), data)

        def signature() -> bytes:
            try:
                return self._read(name, _SIGNATURE_BYTES)
            except AbsentError as error:
                raise CheckpointError(str(error)) from FileNotFoundError(name)

        return Sealed(step_name(step), self.run, data, signature)

    def check_sizes(self, manifest: Outline) -> None:
        folder = f"{step_name(manifest.step)}/{manifest.attempt}/"
        there = {name[len(folder) :]: size for name, size, _ in self._objects(folder)}
        for name, stored in sorted(manifest.files.items()):
            if name not in there:
                raise CheckpointError(f"{step_name(manifest.step)}/{name}: No such file or directory")
            if there[name] != stored.size:
                told = f"has {there[name]} bytes, the manifest says {stored.size}"
                raise CheckpointError(f"{step_name(manifest.step)}/{name}: {told}")

    def check_contents(self, manifest: Manifest) -> None:
        self.check_sizes(manifest)
        for name in sorted(manifest.files):
            digest, size = hashlib.sha256(), 0
            with self._doing(f"read {name}"):
                body = self._client.get_object(Bucket=self._name, Key=self._key(_file(manifest, name)))["Body"]
                for chunk in body.iter_chunks(1 << 20):
                    digest.update(chunk)
                    size += len(chunk)
            check_digest(digest.hexdigest(), size, manifest, name)

    def local(self, manifest: Manifest, name: str) -> Path | None:
        return None

    def get(self, manifest: Manifest, name: str, to: Path) -> None:
        with self._doing(f"read {name}"):
            self._client.download_file(self._name, self._key(_file(manifest, name)), str(to))
        check_digest(file_digest(to), file_size(to), manifest, name)
        sync_file(to)

    def begin(self, manifest: Manifest) -> str:
        attempt = f"{step_name(manifest.step)}/{manifest.attempt}"
        self._attempts[attempt] = False
        return attempt

    def put(self, attempt: str, manifest: Manifest, name: str, source: Tier) -> None:
        path = source.local(manifest, name)
        if path is not None:
            self._send(f"{attempt}/{name}", manifest, name, path)
            return
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "file"
            source.get(manifest, name, path)
            self._send(f"{attempt}/{name}", manifest, name, path)

    def commit(self, attempt: str, manifest: Manifest, data: bytes, signature: bytes | None) -> None:
        folder, what = step_name(manifest.step), f"commit step {manifest.step}"
        key = f"{folder}/{MANIFEST}"
        self.check_sizes(manifest)  # another writer of the same copy may have given up and deleted the files
        if signature is not None:
            self._write(_signature_name(folder, data), signature, what)
        for _ in range(_CONFLICTS):
            answer = self._put_if_absent(key, data, what)
            if answer == "409":
                time.sleep(0.1)
                continue
            if answer is not None and self._read(key, _MOST_MANIFEST) != data:  # an answer can be lost
                self._delete([_signature_name(folder, data)])
                raise CheckpointError(f"{folder}: another writer committed it meanwhile")
            self._attempts[attempt] = True
            return
        raise CheckpointError(f"{folder}: other writers commit it all the time")

    def abandon(self, attempt: str) -> None:
        committed = self._attempts.pop(attempt)
        folder = attempt.partition("/")[0]
        if not committed and _attempt_in(folder, self._manifest(f"{folder}/{MANIFEST}")) != attempt:
            self._delete(name for name, _, _ in self._objects(f"{attempt}/"))

    def refused(self) -> list[str]:
        there = {step for step, there in self._manifests(BAD_MANIFEST) if there}
        return [f"{step_name(step)}/{BAD_MANIFEST}" for step in sorted(there)]

    def others(self) -> dict[str, str]:
        return dict.fromkeys(self.refused(), REFUSED)

    def aged(self, days: float) -> list[str]:
        until = time.time() - days * _DAY
        return [
            name for name in self.refused() for _, _, since in self._objects(name) if since.timestamp() <= until
        ]  # fmt: skip

    def nbytes(self, name: str) -> int:
        return sum(size for _, size, _ in self._objects(f"{name.partition('/')[0]}/"))

    def delete(self, name: str) -> None:
        """Delete everything of a step, its manifest first, so that what is left is not a step.

        If a refused step was committed again, its new files stay.
        """
        folder, _, refused = name.partition("/")
        new = self._manifest(f"{folder}/{MANIFEST}") if refused else None
        if new is not None:
            old = self._manifest(name)
            if old is not None and old != new:
                self._delete([_signature_name(folder, old)])
            attempt = _attempt_in(folder, old)
            if attempt is not None and attempt != _attempt_in(folder, new):
                self._delete(each for each, _, _ in self._objects(f"{attempt}/"))
            self._delete([name])
            return
        self._delete([f"{folder}/{MANIFEST}"])
        self._delete(name for name, _, _ in self._objects(f"{folder}/"))

    def quarantine(self, step: int) -> str:
        bad = f"{step_name(step)}/{BAD_MANIFEST}"
        self._write(bad, self._read(f"{step_name(step)}/{MANIFEST}", _MOST_MANIFEST), f"set step {step} aside")
        self._delete([f"{step_name(step)}/{MANIFEST}"])
        return bad

    def losses(self) -> dict[int, float]:
        """Those that the run has told with its newest checkpoint here."""
        try:
            told = json.loads(self._read(LOSSES, 16 << 20))
            pairs = [(int(step), loss) for step, loss in told.items()]
        except AbsentError:
            return {}
        except (ValueError, AttributeError, RecursionError):
            raise CheckpointError(f"{self.place}/{LOSSES}: damaged") from None
        return {step: loss for step, loss in pairs if type(loss) is float and math.isfinite(loss)}

    def tell_losses(self, losses: dict[int, float]) -> None:
        """Keep the held-out losses, for whoever prunes."""
        self._write(LOSSES, json.dumps(losses, sort_keys=True).encode(), "write the held-out losses")

    def end(self) -> None:
        """Let the transfers that run fail, because the process is asked to stop."""
        self._ends = True

    def _progress(self, _: int) -> None:
        if self._ends:
            raise CheckpointError(f"{self.place}: the transfer was given up, because the run stops")

    def check_access(self) -> None:
        """CheckpointError if this identity cannot list and write here; nothing is left behind."""
        self._folders()
        where = {"Bucket": self._name, "Key": self._key(".probe")}
        with self._doing("write there"):
            opened = self._client.create_multipart_upload(**where)
            self._client.abort_multipart_upload(**where, UploadId=opened["UploadId"])

    def _folders(self) -> list[int]:
        """Steps with a folder, ascending; a folder without a manifest is an attempt."""
        found = (step_of(name) for name in self._names())
        return sorted(step for step in found if step is not None)

    def _names(self) -> list[str]:
        with self._doing("list it"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._name, Prefix=f"{self._prefix}/", Delimiter="/"
            )
            entries = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        return [entry[len(self._prefix) + 1 : -1] for entry in entries]

    def _manifests(self, name: str) -> list[tuple[int, bool]]:
        """Each step with a folder, and whether that has the manifest."""
        folders = self._folders()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(zip(folders, pool.map(lambda step: self._exists(f"{step_name(step)}/{name}"), folders)))

    def _manifest(self, name: str) -> bytes | None:
        """The bytes of a manifest, None without it."""
        try:
            return self._read(name, _MOST_MANIFEST)
        except AbsentError:
            return None

    def _send(self, to: str, manifest: Manifest, name: str, path: Path) -> None:
        """Send one file; S3 checks what arrives, and its checksum must be that of what was read here."""
        from boto3.s3.transfer import TransferConfig

        part = max(PART, -(-manifest.files[name].size // _MOST_PARTS))
        expected = _checksum(path, manifest, name, part)
        key, settings = self._key(to), TransferConfig(multipart_threshold=part, multipart_chunksize=part)
        with self._doing(f"write {name}"):
            extra = {"ChecksumAlgorithm": "SHA256"}
            self._client.upload_file(
                str(path), self._name, key, ExtraArgs=extra, Config=settings, Callback=self._progress
            )
            there = self._client.head_object(Bucket=self._name, Key=key, ChecksumMode="ENABLED")
        reported = str(there.get("ChecksumSHA256", "")).partition("-")[0]
        if (there["ContentLength"], reported) != (manifest.files[name].size, expected):
            raise CheckpointError(f"{self.place}/{to}: S3 has checksum {reported or 'none'}, {expected} was sent")

    def _put_if_absent(self, name: str, data: bytes, what: str) -> str | None:
        """Put an object that does not exist; the code of S3's refusal, None if it is there now."""
        with self._doing(what):
            try:
                self._client.put_object(
                    Bucket=self._name, Key=self._key(name), Body=data, IfNoneMatch="*", ChecksumAlgorithm="SHA256"
                )
            except bucket.errors() as error:
                if bucket.code_of(error) == "PreconditionFailed":
                    return "412"
                if bucket.code_of(error) == "ConditionalRequestConflict":
                    return "409"
                raise
        return None

    def _write(self, name: str, data: bytes, what: str) -> None:
        with self._doing(what):
            self._client.put_object(Bucket=self._name, Key=self._key(name), Body=data, ChecksumAlgorithm="SHA256")

    def _read(self, name: str, limit: int) -> bytes:
        with self._doing(f"read {name}"):
            body = self._client.get_object(Bucket=self._name, Key=self._key(name))["Body"]
            data: bytes = body.read(limit + 1)
        if len(data) > limit:
            raise CheckpointError(f"{self.place}/{name}: has more than {limit:,} bytes")
        return data

    def _exists(self, name: str) -> bool:
        try:
            with self._doing(f"read {name}"):
                self._client.head_object(Bucket=self._name, Key=self._key(name))
        except AbsentError:
            return False
        return True

    def _objects(self, prefix: str) -> list[tuple[str, int, Any]]:
        """Name, size and time of every object whose name begins so."""
        with self._doing(f"list {prefix}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=self._key(prefix))
            entries = [entry for page in pages for entry in page.get("Contents", [])]
        start = len(self._prefix) + 1
        return [(entry["Key"][start:], entry["Size"], entry["LastModified"]) for entry in entries]

    def _delete(self, names: Any) -> None:
        for name in names:
            with self._doing(f"delete {name}"):
                self._client.delete_object(Bucket=self._name, Key=self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Turn the libraries' errors into CheckpointError."""
        try:
            yield
        except bucket.errors() as error:
            if bucket.code_of(error) in bucket.ABSENT:
                raise AbsentError(f"{self.place}: cannot {what}: No such file or directory") from None
            if (reason := bucket.refusal(error, what)) is not None:
                raise UnusableError(f"{self.place}: {reason}") from error
            raise UnreachableError(f"{self.place}: cannot {what}: {one_line(str(error))}") from error


def _file(manifest: Outline, name: str) -> str:
    return f"{step_name(manifest.step)}/{manifest.attempt}/{name}"


def _signature_name(folder: str, manifest: bytes) -> str:
    return f"{folder}/{hashlib.sha256(manifest).hexdigest()}.signature"


def _attempt_in(folder: str, manifest: bytes | None) -> str | None:
    """The folder of the attempt that a manifest names; None without one, or where it is damaged."""
    try:
        return f"{folder}/{json.loads(manifest or b'')['attempt']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _checksum(path: Path, manifest: Manifest, name: str, part: int) -> str:
    """S3's checksum of a file that is sent in such parts, without the number of parts.

    CheckpointError if the file is not what the manifest says.
    """
    whole, parts, size = hashlib.sha256(), [], 0
    with naming(path), open_regular(path) as file:
        while chunk := exactly(file.read, part):
            whole.update(chunk)
            parts.append(hashlib.sha256(chunk).digest())
            size += len(chunk)
    check_digest(whole.hexdigest(), size, manifest, name)
    if size < part:  # one request
        return base64.b64encode(whole.digest()).decode()
    return base64.b64encode(hashlib.sha256(b"".join(parts)).digest()).decode()
