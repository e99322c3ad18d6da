"""Amazon ECR: a repository that is made when it is missing, and a login by the current identity."""

from __future__ import annotations

import base64
import re
from typing import Any

from tools.aws.session import AwsError, Session
from tools.core.errors import UserError
from tools.image.engine import Engine, Say

HOST = re.compile(r"^(\d{12})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(.+)$")
LIKE = re.compile(r"^[^/]*\.ecr[.-][^/]*amazonaws\.com")  # what was meant to be one of them
FORM = "<account, 12 digits>.dkr.ecr.<region>.amazonaws.com/<name>"
# What a repository that we make has; what somebody made otherwise is left as it is, and said.
SETTINGS: dict[str, Any] = {
    "imageTagMutability": "IMMUTABLE",
    "imageScanningConfiguration": {"scanOnPush": True},
    "encryptionConfiguration": {"encryptionType": "AES256"},
}


def prepare(repository: str, engine: Engine, say: Say) -> bool:
    """Make `repository` where it is missing, and log docker in; return whether it is one of ECR's.

    Raises UserError where the name is a slip of ECR's form, or another account's credentials are in use, and
    AwsError where AWS refuses.
    """
    match = HOST.match(repository)
    if match is None:
        if LIKE.match(repository):
            raise UserError(f"{repository} is no name of an ECR repository", FORM)
        return False
    account, region, name = match.groups()
    session = Session(region)
    ensure(session, account, name, say)
    answer = session.call("ecr", "get_authorization_token", registryIds=[account])
    token = answer["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    engine.login(repository.partition("/")[0], user, password)
    return True


def ensure(session: Session, account: str, name: str, say: Say) -> None:
    """Make the repository where it is missing: immutable tags, scan on push, encryption.

    An existing one is not changed; what it has otherwise is said. Raises UserError, AwsError.
    """
    same_account(session, account)
    found = _found(session, name)
    if found is None:
        session.call("ecr", "create_repository", repositoryName=name, **SETTINGS)
        say(f"made the repository {name} in {session.region}: immutable tags, scan on push, encrypted")
        return
    for key, wanted in SETTINGS.items():
        if found.get(key) != wanted:
            say(f"the repository {name} has {key} {found.get(key)}, not {wanted}; it is left as it is")


def same_account(session: Session, account: str) -> None:
    """Raise UserError where the current identity is of another account than the repository."""
    own = session.identity()["account"]
    if own != account:
        text = f"the current AWS identity is of account {own}, and the repository of {account}"
        raise UserError(text, "AWS_PROFILE chooses another identity")


def _found(session: Session, name: str) -> dict[str, Any] | None:
    try:
        answer = session.call("ecr", "describe_repositories", repositoryNames=[name])
    except AwsError as problem:
        if problem.kind == "missing":
            return None
        raise
    return dict(answer["repositories"][0])
