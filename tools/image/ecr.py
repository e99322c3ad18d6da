"""Amazon ECR: create a missing repository, and log docker in with the current identity."""

import base64
import re
from typing import Any

from tools.aws import Session
from tools.core import Say, UserError
from tools.image.engine import Engine, understood

NAME = r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"  # of a repository; it holds no character of IAM's patterns
HOST = re.compile(rf"^(\d{{12}})\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/({NAME})$")
LIKE = re.compile(r"^[^/]{0,200}\.ecr[.-][^/]{0,200}amazonaws\.com")  # a name that looks like one of ECR
FORM = "<account, 12 digits>.dkr.ecr.<region>.amazonaws.com/<name>"
# The settings of new repositories. An existing one is not changed; differences are printed.
SETTINGS: dict[str, Any] = {
    "imageTagMutability": "IMMUTABLE",
    "imageScanningConfiguration": {"scanOnPush": True},
    "encryptionConfiguration": {"encryptionType": "AES256"},
}


def prepare(repository: str, engine: Engine, say: Say) -> bool:
    """Create `repository` if it is missing, and log docker in; return whether it is on ECR.

    Raises UserError if the name looks like ECR but is invalid, or if the credentials belong to another
    account, and AwsError.
    """
    match = HOST.match(repository)
    if match is None:
        if LIKE.match(repository):
            raise UserError(f"{repository} is not the name of an ECR repository", FORM)
        return False
    account, region, name = match.groups()
    session = Session(region)
    ensure(session, account, name, say)
    answer = session.call("ecr", "get_authorization_token", registryIds=[account])
    with understood("ecr:GetAuthorizationToken"):
        token = answer["authorizationData"][0]["authorizationToken"]
        user, _, password = base64.b64decode(token).decode().partition(":")
    engine.login(repository.partition("/")[0], user, password)
    return True


def ensure(session: Session, account: str, name: str, say: Say) -> None:
    """Create the repository if it is missing: immutable tags, scan on push, encryption.

    Raises UserError, AwsError.
    """
    same_account(session, account)
    answer = session.find("ecr", "describe_repositories", repositoryNames=[name])
    if answer is None:
        session.call("ecr", "create_repository", repositoryName=name, **SETTINGS)
        say(f"created the repository {name} in {session.region}: immutable tags, scan on push, encrypted")
        return
    with understood("ecr:DescribeRepositories"):
        (found,) = answer["repositories"]
    for key, wanted in SETTINGS.items():
        if found.get(key) != wanted:
            say(f"the repository {name} has {key} {found.get(key)}, not {wanted}; it was not changed")


def same_account(session: Session, account: str) -> None:
    """Raise UserError unless the current identity belongs to the repository's account."""
    current = session.identity()["account"]
    if current != account:
        text = f"the current AWS identity belongs to account {current}, and the repository to {account}"
        raise UserError(text, "AWS_PROFILE selects another identity")
