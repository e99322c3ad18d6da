"""A client of S3 with this process's credentials, and what its errors mean.

In a pod the credentials are those of its service account, by EKS Pod Identity or IRSA. boto3 is imported when a
client is made, because most processes need none.
"""

from __future__ import annotations

import re
from typing import Any

from training.run.failure import one_line

# S3's rules for bucket names. A key has no blanks, no slash at its ends, and no part `.` or `..`: its last part also
# names a directory.
S3_PREFIX = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?!(?:\S*/)?\.\.?(?:/|$))([^\s/](?:\S*[^\s/])?)")
READ_SECONDS = 60
ATTEMPTS = 8  # botocore's attempts, with exponential backoff of at most 20 s each
ABSENT = ("NoSuchKey", "404")
_NOT_ALLOWED = "this identity may not {what}: it needs s3:ListBucket, s3:GetObject and s3:PutObject"
# Errors that another attempt with the same configuration and identity would get again.
_REFUSED = {
    "NoSuchBucket": "there is no such bucket",
    "InvalidBucketName": "the bucket's name is not valid",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION to it",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION to it",
    "AccessDenied": _NOT_ALLOWED,
    "403": _NOT_ALLOWED,
    "InvalidAccessKeyId": "the access key is unknown",
    "SignatureDoesNotMatch": "the secret key is wrong",
}


def client(**more: Any) -> Any:
    """A client that tries each request up to ATTEMPTS times; `more` are further settings of botocore."""
    import boto3
    from botocore.config import Config

    settings = Config(
        retries={"mode": "standard", "max_attempts": ATTEMPTS},
        connect_timeout=10,
        read_timeout=READ_SECONDS,
        user_agent_extra="trainyard",
        **more,
    )
    return boto3.Session().client("s3", config=settings)


def errors() -> tuple[type[Exception], ...]:
    """What a client and its transfers raise."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError

    return _client_error(), BotoCoreError, Boto3Error


def code_of(error: Exception) -> str:
    """S3's code of an error; empty for an error without an answer. s3transfer's errors have it in their text."""
    if isinstance(error, _client_error()):
        return str(error.response.get("Error", {}).get("Code", ""))
    return next((code for code in _REFUSED if f"({code})" in str(error)), "")


def refusal(error: Exception, what: str) -> str | None:
    """Why no attempt to do `what` would succeed, None for an error that may go away."""
    from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

    if isinstance(error, (NoCredentialsError, CredentialRetrievalError)):
        return (
            f"this process has no credentials ({one_line(str(error))}); "
            "in a pod, give the service account a role (EKS Pod Identity or IRSA); elsewhere, set AWS_PROFILE"
        )
    code = code_of(error)
    return _REFUSED[code].format(what=what) if code in _REFUSED else None


def _client_error() -> Any:
    from botocore.exceptions import ClientError

    return ClientError
