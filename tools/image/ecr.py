"""Amazon ECR: a repository that is made when it is missing, and a login by the current identity."""

from __future__ import annotations

import base64
import re
from typing import Any

from tools.errors import UserError
from tools.image.engine import Engine, Say

HOST = re.compile(r"^(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(.+)$")
# What a repository that we make has; what somebody made otherwise is left as it is, and said.
SETTINGS: dict[str, Any] = {
    "imageTagMutability": "IMMUTABLE",
    "imageScanningConfiguration": {"scanOnPush": True},
    "encryptionConfiguration": {"encryptionType": "AES256"},
}


def prepare(repository: str, engine: Engine, say: Say) -> bool:
    """Make `repository` where it is missing, and log docker in; return whether it is one of ECR's.

    Raises UserError where there are no credentials, another account's are in use, or AWS refuses.
    """
    match = HOST.match(repository)
    if match is None:
        return False
    account, region, name = match.groups()
    ensure(account, region, name, say)
    _login(account, region, repository.partition("/")[0], engine)
    return True


def ensure(account: str, region: str, name: str, say: Say) -> None:
    """Make the repository where it is missing: immutable tags, scan on push, encryption.

    An existing one is not changed; what it has otherwise is said. Raises UserError.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        own = _client("sts", region).get_caller_identity()["Account"]
        if own != account:
            text = f"the current AWS identity is of account {own}, and the repository of {account}"
            raise UserError(text, "AWS_PROFILE chooses another identity")
        ecr = _client("ecr", region)
        try:
            found = ecr.describe_repositories(repositoryNames=[name])["repositories"][0]
        except ecr.exceptions.RepositoryNotFoundException:
            ecr.create_repository(repositoryName=name, **SETTINGS)
            say(f"made the repository {name} in {region}: immutable tags, scan on push, encrypted")
            return
    except (ClientError, BotoCoreError) as problem:
        raise _refused(problem) from problem
    for key, wanted in SETTINGS.items():
        if found.get(key) != wanted:
            say(f"the repository {name} has {key} {found.get(key)}, not {wanted}; it is left as it is")


def _login(account: str, region: str, registry: str, engine: Engine) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = _client("ecr", region).get_authorization_token(registryIds=[account])
    except (ClientError, BotoCoreError) as problem:
        raise _refused(problem) from problem
    token = answer["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    engine.login(registry, user, password)


def _client(service: str, region: str) -> Any:
    import boto3

    return boto3.client(service, region_name=region)


def _refused(problem: Exception) -> UserError:
    text = str(problem)
    if "credentials" in text.lower():
        return UserError(
            "no AWS credentials", "aws configure sso, or AWS_PROFILE; aws sts get-caller-identity", 3
        )
    return UserError(f"AWS: {text}", "aws sts get-caller-identity shows who is asking", 1)
