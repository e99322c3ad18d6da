"""What a build on AWS CodeBuild needs, made where it is missing, listed, and taken away again.

One project and one role for each repository, so that a build can push to that repository and nowhere else.
All names follow from the repository's; what has not our tag is somebody else's and is never removed.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any

from tools.aws.session import AwsError, Session
from tools.core.errors import UserError
from tools.image import ecr
from tools.image.engine import Say

TAG = {"trainyard": "image-build"}
# AWS's own image with Docker in it; 8 vCPUs, 16 GB of memory, 128 GB of disk (CodeBuild user guide).
MACHINE, COMPUTE = "aws/codebuild/standard:7.0", "BUILD_GENERAL1_LARGE"
MINUTES = 120
KEPT_DAYS = 7  # contexts and logs
ROLE_SECONDS = 60.0  # until a new role may be assumed by CodeBuild


@dataclass(frozen=True)
class Place:
    """Where an image is built and pushed: an ECR repository, and the names of all that serves its builds."""

    account: str
    region: str
    repository: str  # without the registry

    @classmethod
    def of(cls, repository: str) -> Place:
        """Return the place of a repository's full name. Raises UserError where it is none of Amazon ECR."""
        match = ecr.HOST.match(repository)
        if match is None:
            hint = "--repository <account>.dkr.ecr.<region>.amazonaws.com/<name>"
            raise UserError(f"--remote pushes to Amazon ECR, and {repository} is no repository of it", hint)
        return cls(match[1], match[2], match[3])

    @property
    def name(self) -> str:
        """Return the name of project and role; at most 64 characters, as IAM wants it."""
        return f"trainyard-image-{re.sub(r'[^A-Za-z0-9-]+', '-', self.repository)}"[:64]

    @property
    def bucket(self) -> str:
        """Return the bucket of all contexts of this account and region."""
        return f"trainyard-image-build-{self.account}-{self.region}"

    @property
    def log_group(self) -> str:
        """Return CloudWatch's group, as CodeBuild names it."""
        return f"/aws/codebuild/{self.name}"

    @property
    def role_arn(self) -> str:
        """Return the role's ARN."""
        return f"arn:aws:iam::{self.account}:role/{self.name}"


def trust(place: Place) -> dict[str, Any]:
    """Return who may be the role: CodeBuild, for builds of this account."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "codebuild.amazonaws.com"},
                "Action": "sts:AssumeRole",
                "Condition": {"StringEquals": {"aws:SourceAccount": place.account}},
            }
        ],
    }


def policy(place: Place) -> dict[str, Any]:
    """Return what a build may do: read contexts, write its own log, push to its one repository."""
    logs = f"arn:aws:logs:{place.region}:{place.account}:log-group:{place.log_group}"
    push = ["BatchCheckLayerAvailability", "InitiateLayerUpload", "UploadLayerPart", "CompleteLayerUpload"]
    push += ["PutImage", "BatchGetImage", "GetDownloadUrlForLayer"]
    repository = f"arn:aws:ecr:{place.region}:{place.account}:repository/{place.repository}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow(["logs:CreateLogStream", "logs:PutLogEvents"], [logs, f"{logs}:*"]),
            _allow(["s3:GetObject"], [f"arn:aws:s3:::{place.bucket}/{place.name}/*"]),
            _allow(["ecr:GetAuthorizationToken"], ["*"]),
            _allow([f"ecr:{action}" for action in push], [repository]),
        ],
    }


def ensure(session: Session, place: Place, say: Say) -> list[str]:
    """Make what is missing and return what was made, in words. Raises AwsError."""
    made = [
        _bucket(session, place),
        _log_group(session, place),
        _role(session, place),
        _project(session, place),
    ]
    found = [one for one in made if one]
    for one in found:
        say(f"made {one}")
    return found


def cleanup(session: Session, place: Place, say: Say) -> list[str]:
    """Remove what `ensure` makes, as far as it has our tag; return what was removed. The image stays.

    The bucket goes when no other repository's contexts are in it. Raises AwsError, and UserError where the
    current identity is of another account.
    """
    ecr.same_account(session, place.account)
    removed = []
    projects = session.call("codebuild", "batch_get_projects", names=[place.name])["projects"]
    if projects and _ours(projects[0].get("tags")):
        session.call("codebuild", "delete_project", name=place.name)
        removed.append(f"project {place.name}")
    if _has_role(session, place):
        session.call("iam", "delete_role_policy", RoleName=place.name, PolicyName="build")
        session.call("iam", "delete_role", RoleName=place.name)
        removed.append(f"role {place.name}")
    if _has_log_group(session, place):
        session.call("logs", "delete_log_group", logGroupName=place.log_group)
        removed.append(f"log group {place.log_group}")
    if _has_bucket(session, place):
        removed += _empty(session, place)
    for one in removed:
        say(f"removed {one}")
    return removed


def _allow(actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def _tags(key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    return [{key: name, value: text} for name, text in TAG.items()]


def _ours(tags: list[dict[str, str]] | None) -> bool:
    found = {one.get("Key", one.get("key")): one.get("Value", one.get("value")) for one in tags or []}
    return all(found.get(name) == value for name, value in TAG.items())


def _bucket(session: Session, place: Place) -> str | None:
    """Make the bucket: nobody's but the account's, and contexts go after KEPT_DAYS."""
    if _has_bucket(session, place):
        return None
    where = {} if place.region == "us-east-1" else {"LocationConstraint": place.region}
    options = {"CreateBucketConfiguration": where} if where else {}
    session.call("s3", "create_bucket", Bucket=place.bucket, **options)
    closed = dict.fromkeys(
        ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
    )
    session.call("s3", "put_public_access_block", Bucket=place.bucket, PublicAccessBlockConfiguration=closed)
    session.call("s3", "put_bucket_tagging", Bucket=place.bucket, Tagging={"TagSet": _tags()})
    rule = {
        "ID": "contexts",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "Expiration": {"Days": KEPT_DAYS},
    }
    session.call(
        "s3",
        "put_bucket_lifecycle_configuration",
        Bucket=place.bucket,
        LifecycleConfiguration={"Rules": [rule]},
    )
    return f"bucket {place.bucket}"


def _has_bucket(session: Session, place: Place) -> bool:
    """Say whether the bucket is there; UserError where it is and somebody else's."""
    if not any(one["Name"] == place.bucket for one in session.call("s3", "list_buckets")["Buckets"]):
        return False
    if not _ours(session.call("s3", "get_bucket_tagging", Bucket=place.bucket)["TagSet"]):
        raise UserError(
            f"the bucket {place.bucket} is not trainyard's (no tag trainyard=image-build)", code=1
        )
    return True


def _empty(session: Session, place: Place) -> list[str]:
    """Remove this repository's contexts, and the bucket when nothing is left in it."""
    found = list(session.pages("s3", "list_objects_v2", "Contents", Bucket=place.bucket))
    own = [one["Key"] for one in found if one["Key"].startswith(f"{place.name}/")]
    for key in own:
        session.call("s3", "delete_object", Bucket=place.bucket, Key=key)
    removed = [f"{len(own)} contexts in {place.bucket}"] if own else []
    if len(own) == len(found):
        session.call("s3", "delete_bucket", Bucket=place.bucket)
        removed.append(f"bucket {place.bucket}")
    return removed


def _log_group(session: Session, place: Place) -> str | None:
    if _has_log_group(session, place):
        return None
    session.call("logs", "create_log_group", logGroupName=place.log_group, tags=TAG)
    session.call("logs", "put_retention_policy", logGroupName=place.log_group, retentionInDays=KEPT_DAYS)
    return f"log group {place.log_group}"


def _has_log_group(session: Session, place: Place) -> bool:
    found = session.call("logs", "describe_log_groups", logGroupNamePrefix=place.log_group)["logGroups"]
    return any(one["logGroupName"] == place.log_group for one in found)


def _role(session: Session, place: Place) -> str | None:
    new = not _has_role(session, place)
    if new:
        document = json.dumps(trust(place))
        session.call(
            "iam", "create_role", RoleName=place.name, AssumeRolePolicyDocument=document, Tags=_tags()
        )
    # Also of an older trainyard's role: what a build may do is what is written here.
    document = json.dumps(policy(place))
    session.call("iam", "put_role_policy", RoleName=place.name, PolicyName="build", PolicyDocument=document)
    return f"role {place.name}" if new else None


def _has_role(session: Session, place: Place) -> bool:
    """Say whether the role is there; UserError where it is and somebody else's."""
    try:
        found = session.call("iam", "get_role", RoleName=place.name)["Role"]
    except AwsError as problem:
        if problem.kind == "missing":
            return False
        raise
    if not _ours(found.get("Tags")):
        raise UserError(f"the role {place.name} is not trainyard's (no tag trainyard=image-build)", code=1)
    return True


def _project(session: Session, place: Place) -> str | None:
    """Make the project; CodeBuild does not know a new role at once, so that it is asked again for a while."""
    if session.call("codebuild", "batch_get_projects", names=[place.name])["projects"]:
        return None
    wanted = {
        "name": place.name,
        "description": f"yard image build --remote, for {place.repository}",
        "source": {"type": "S3", "location": f"{place.bucket}/{place.name}/context.zip"},
        "artifacts": {"type": "NO_ARTIFACTS"},
        "environment": {
            "type": "LINUX_CONTAINER", "image": MACHINE, "computeType": COMPUTE, "privilegedMode": True,
        },
        "serviceRole": place.role_arn,
        "timeoutInMinutes": MINUTES,
        "tags": _tags("key", "value"),
        "logsConfig": {"cloudWatchLogs": {"status": "ENABLED", "groupName": place.log_group}},
    }  # fmt: skip
    deadline = time.monotonic() + ROLE_SECONDS
    while True:
        try:
            session.call("codebuild", "create_project", **wanted)
            return f"project {place.name}"
        except AwsError as problem:
            if "sts:AssumeRole" not in problem.message or time.monotonic() > deadline:
                raise
        time.sleep(5)
