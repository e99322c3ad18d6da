"""The objects below an S3 prefix, read with the process's own identity, or anonymously."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from botocore import UNSIGNED
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    ResponseStreamingError,
)

from training.data.errors import DataError
from training.data.retries import GaveUp, Retries
from training.run.bucket import client as s3_client
from training.stage.item import Body, Item, Say, chosen, safe_name

_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")
_NETWORK = (ConnectionError, HTTPClientError, ResponseStreamingError)
_REASONS = {
    "NoSuchBucket": "there is no such bucket",
    "NoSuchKey": "the object is gone",
    "404": "there is no such bucket or object",
    "AccessDenied": "this identity may not read it: it needs s3:ListBucket and s3:GetObject",
    "403": "this identity may not read it: it needs s3:ListBucket and s3:GetObject",
    "PreconditionFailed": "the object changed while it was read",
    "InvalidAccessKeyId": "the access key is unknown",
    "SignatureDoesNotMatch": "the secret key is wrong",
    "ExpiredToken": "the credentials have expired",
}


def items(source: str, include: tuple[str, ...], anonymous: bool, say: Say) -> list[Item]:
    """Return the objects at or below s3://bucket/prefix. Raises DataError."""
    found = _URL.fullmatch(source)
    if found is None:
        raise DataError(f"{source} is not s3://bucket/prefix")
    bucket, prefix = found[1], found[2] or ""
    settings: dict[str, Any] = {"signature_version": UNSIGNED} if anonymous else {}
    try:
        with _errors(source):
            client = s3_client(**settings)
            objects = {one["Key"]: one for one in _listed(client, bucket, prefix)}
    except _NETWORK as error:
        raise GaveUp(f"{source}: {error}") from None
    if prefix in objects and not prefix.endswith("/"):  # a console makes an empty object of that name for a folder
        objects, root = {prefix: objects[prefix]}, prefix.rpartition("/")[0]
    else:
        root = prefix.rstrip("/")
    names = {key[len(root) :].lstrip("/"): key for key in objects if not key.endswith("/")}
    wanted = chosen((name for name, key in names.items() if _below(key, root)), include)
    return [_item(client, bucket, safe_name(name, source), objects[names[name]], say) for name in wanted]


def _below(key: str, root: str) -> bool:
    return not root or key.startswith(f"{root}/")


def _listed(client: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from page.get("Contents") or []


def _item(client: Any, bucket: str, name: str, entry: dict[str, Any], say: Say) -> Item:
    def opened(offset: int, stop: threading.Event) -> Body:
        return _Object(client, bucket, entry, offset, Retries(f"s3://{bucket}/{entry['Key']}", say, stop))

    return Item(name, int(entry["Size"]), str(entry["ETag"]), opened)


class _Object:
    """The bytes of one version of an object from an offset on. A broken connection is opened again."""

    def __init__(self, client: Any, bucket: str, entry: dict[str, Any], offset: int, retries: Retries) -> None:
        self._client, self._bucket, self._entry, self._retries = client, bucket, entry, retries
        self._at = offset
        self._body: Any = None

    def read(self, size: int) -> bytes:
        while self._at < self._entry["Size"]:
            try:
                data = self._some(size)
            except _NETWORK as error:
                self.close()
                self._retries.failed(str(error))
                continue
            if data:
                self._retries.succeeded()
                self._at += len(data)
                return data
            self.close()
            self._retries.failed(f"the answer ended at byte {self._at:,} of {self._entry['Size']:,}")
        return b""

    def _some(self, size: int) -> bytes:
        key = self._entry["Key"]
        with _errors(f"s3://{self._bucket}/{key}"):
            if self._body is None:
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=key, IfMatch=self._entry["ETag"], Range=f"bytes={self._at}-"
                )
                self._body = answer["Body"]
            data: bytes = self._body.read(size)
            return data

    def close(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None


@contextmanager
def _errors(where: str) -> Iterator[None]:
    """Turn the library's errors into DataError, except those of the network, which the caller handles."""
    try:
        yield
    except (NoCredentialsError, CredentialRetrievalError) as error:
        raise DataError(
            f"{where}: this process has no credentials ({error}); give the service account a role (EKS Pod "
            "Identity or IRSA), or read a public bucket with --no-sign-request"
        ) from None
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _REASONS:
            raise DataError(f"{where}: {_REASONS[code]}") from None
        raise GaveUp(f"{where}: {error}") from None
    except _NETWORK:
        raise
    except BotoCoreError as error:
        raise DataError(f"{where}: {error}") from None
