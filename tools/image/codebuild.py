"""The AWS resources of a build on CodeBuild: created if missing, listed, and removed.

Each repository has its own project and role, so that a build can push to that repository only. All names end
in a digest of account, region and repository. Resources without our tags are neither used nor removed.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Self

from tools.aws import AwsError, Session
from tools.aws.policies import VERSION
from tools.core import Say, UserError, tables, wait
from tools.image import ecr

TAG = {"trainyard": "image-build"}
REPOSITORY_TAG = "trainyard/repository"  # on all but the bucket, which the repositories share
DIGEST_LENGTH = 10
_TEMPLATES: dict[str, Any] = tables.load("image/codebuild.yaml")
KEPT_DAYS = 7  # of logs
ROLE_SECONDS = 60.0  # CodeBuild cannot assume a new role at once


@dataclass(frozen=True)
class Project:
    """An ECR repository, and the names of the resources for its builds."""

    account: str
    region: str
    repository: str  # without the registry

    @classmethod
    def of(cls, repository: str) -> Self:
        """Return the project of a repository's full name. Raises UserError unless it is on Amazon ECR."""
        match = ecr.HOST.match(repository)
        if match is None:
            hint = "--repository <account>.dkr.ecr.<region>.amazonaws.com/<name>"
            raise UserError(f"--remote pushes to Amazon ECR, and {repository} is not an ECR repository", hint)
        return cls(match[1], match[2], match[3])

    @property
    def name(self) -> str:
        """The name of project and role; IAM, which has no regions, allows 64 characters."""
        whole = f"{self.account}/{self.region}/{self.repository}"
        digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_LENGTH]
        readable = f"trainyard-image-{self.region}-{re.sub(r'[^A-Za-z0-9-]+', '-', self.repository)}"
        return f"{readable[: 63 - DIGEST_LENGTH]}-{digest}"

    @property
    def tags(self) -> dict[str, str]:
        return {**TAG, REPOSITORY_TAG: f"{self.region}/{self.repository}"}

    @property
    def partition(self) -> str:
        """The partition of the region, among those that have CodeBuild and ECR's usual host name."""
        starts = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
        return next((name for start, name in starts.items() if self.region.startswith(start)), "aws")

    def arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    @property
    def bucket(self) -> str:
        return f"trainyard-image-build-{self.account}-{self.region}"

    @property
    def log_group(self) -> str:
        return f"/aws/codebuild/{self.name}"

    @property
    def role_arn(self) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/{self.name}"


def policy(project: Project, name: str = "policy") -> dict[str, Any]:
    """Return a policy of codebuild.yaml: `trust` and `policy` of the role, or that of the `bucket`."""
    return {"Version": VERSION, "Statement": _template(project, name)}


def _template(project: Project, name: str) -> Any:
    """Return a part of codebuild.yaml with the names of the project's resources."""
    values = {
        "account": project.account, "name": project.name, "path": project.repository,
        "bucket": f"arn:{project.partition}:s3:::{project.bucket}", "bucket name": project.bucket,
        "log group": project.log_group, "logs": project.arn("logs", f"log-group:{project.log_group}"),
        "project": project.arn("codebuild", f"project/{project.name}"),
        "repository": project.arn("ecr", f"repository/{project.repository}"), "role": project.role_arn,
    }  # fmt: skip
    return tables.filled(_TEMPLATES[name], values)


def ensure(session: Session, project: Project, say: Say) -> list[str]:
    """Create what is missing and return the names of what was created. Raises AwsError."""
    steps = (_create_bucket, _create_log_group, _create_role, _create_project)
    created = [name for name in (create(session, project) for create in steps) if name]
    for name in created:
        say(f"created {name}")
    return created


def cleanup(session: Session, project: Project, say: Say) -> list[str]:
    """Remove what `ensure` creates and has our tag; return what was removed. The image stays.

    The bucket is removed if no other repository has contexts in it. Raises AwsError, and UserError if the
    current identity belongs to another account.
    """
    ecr.same_account(session, project.account)
    removed = []
    if _has_project(session, project):
        session.call("codebuild", "delete_project", name=project.name)
        removed.append(f"project {project.name}")
    if _has_role(session, project):
        session.call("iam", "delete_role_policy", RoleName=project.name, PolicyName="build")
        session.call("iam", "delete_role", RoleName=project.name)
        removed.append(f"role {project.name}")
    if _has_log_group(session, project):
        session.call("logs", "delete_log_group", logGroupName=project.log_group)
        removed.append(f"log group {project.log_group}")
    if _has_bucket(session, project):
        removed += _empty_bucket(session, project)
    for name in removed:
        say(f"removed {name}")
    return removed


def _tags(tags: dict[str, str], key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    return [{key: name, value: text} for name, text in tags.items()]


def _require_ours(what: str, wanted: dict[str, str], tags: list[dict[str, str]] | dict[str, str] | None) -> None:
    """Raise UserError for a resource without our tags: another user made it and may read it."""
    pairs = tags if isinstance(tags, dict) else {}
    for one in tags if isinstance(tags, list) else []:
        pairs |= {one.get("Key", one.get("key", "")): one.get("Value", one.get("value", ""))}
    missing = [f"{name}={value}" for name, value in wanted.items() if pairs.get(name) != value]
    if missing:
        raise UserError(f"{what} is not trainyard's (no tag {', '.join(missing)})", code=1)


def _create_bucket(session: Session, project: Project) -> str | None:
    """Create the bucket: without public access, and contexts expire."""
    if _has_bucket(session, project):
        return None
    where = {"CreateBucketConfiguration": {"LocationConstraint": project.region}}
    settings = {
        "create_bucket": {} if project.region == "us-east-1" else where,
        "put_bucket_policy": {"Policy": json.dumps(policy(project, "bucket"))},
        "put_bucket_tagging": {"Tagging": {"TagSet": _tags(TAG)}},
        **_TEMPLATES["bucket settings"],
    }
    for operation, parameters in settings.items():
        session.call("s3", operation, Bucket=project.bucket, **parameters)
    return f"bucket {project.bucket}"


def _has_bucket(session: Session, project: Project) -> bool:
    """Return whether the bucket exists. Raises UserError if it does not have our tag."""
    if not any(one["Name"] == project.bucket for one in session.call("s3", "list_buckets")["Buckets"]):
        return False
    tags = session.call("s3", "get_bucket_tagging", Bucket=project.bucket)["TagSet"]
    _require_ours(f"the bucket {project.bucket}", TAG, tags)
    return True


def _empty_bucket(session: Session, project: Project) -> list[str]:
    """Remove this repository's contexts, and the bucket if that leaves it empty."""
    objects = list(session.pages("s3", "list_objects_v2", "Contents", Bucket=project.bucket))
    keys = [one["Key"] for one in objects if one["Key"].startswith(f"{project.name}/")]
    for key in keys:
        session.call("s3", "delete_object", Bucket=project.bucket, Key=key)
    removed = [f"{len(keys)} contexts in {project.bucket}"] if keys else []
    if len(keys) == len(objects):
        session.call("s3", "delete_bucket", Bucket=project.bucket)
        removed.append(f"bucket {project.bucket}")
    return removed


def _create_log_group(session: Session, project: Project) -> str | None:
    if _has_log_group(session, project):
        return None
    session.call("logs", "create_log_group", logGroupName=project.log_group, tags=project.tags)
    session.call("logs", "put_retention_policy", logGroupName=project.log_group, retentionInDays=KEPT_DAYS)
    return f"log group {project.log_group}"


def _has_log_group(session: Session, project: Project) -> bool:
    """Return whether the log group exists. Raises UserError if it does not have our tags."""
    found = session.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=project.log_group)
    if not any(one["logGroupName"] == project.log_group for one in found):
        return False
    arn = project.arn("logs", f"log-group:{project.log_group}")
    tags = session.call("logs", "list_tags_for_resource", resourceArn=arn)["tags"]
    _require_ours(f"the log group {project.log_group}", project.tags, tags)
    return True


def _create_role(session: Session, project: Project) -> str | None:
    name, new = project.name, not _has_role(session, project)
    if new:
        trusted = json.dumps(policy(project, "trust"))
        tags = _tags(project.tags)
        session.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trusted, Tags=tags)
    # An existing role gets it too: an older trainyard may have created it.
    document = json.dumps(policy(project))
    session.call("iam", "put_role_policy", RoleName=name, PolicyName="build", PolicyDocument=document)
    return f"role {name}" if new else None


def _has_role(session: Session, project: Project) -> bool:
    """Return whether the role exists. Raises UserError if it does not have our tags."""
    found = session.find("iam", "get_role", RoleName=project.name)
    if found is not None:
        _require_ours(f"the role {project.name}", project.tags, found["Role"].get("Tags"))
    return found is not None


def _has_project(session: Session, project: Project) -> bool:
    """Return whether the project exists. Raises UserError if it lacks our tags or has another role."""
    found = session.call("codebuild", "batch_get_projects", names=[project.name])["projects"]
    for one in found:
        _require_ours(f"the CodeBuild project {project.name}", project.tags, one.get("tags"))
        if one.get("serviceRole") != project.role_arn:
            raise UserError(f"the CodeBuild project {project.name} has the role {one.get('serviceRole')}", code=1)
    return bool(found)


def _create_project(session: Session, project: Project) -> str | None:
    if _has_project(session, project):
        return None
    wanted = {**_template(project, "project"), "tags": _tags(project.tags, "key", "value")}

    def created() -> bool:
        try:
            session.call("codebuild", "create_project", **wanted)
        except AwsError as problem:
            if "sts:AssumeRole" not in problem.message:
                raise
            return False
        return True

    if not wait.until(created, ROLE_SECONDS, every=5):
        raise UserError(f"CodeBuild cannot assume the new role {project.name}", "try again in a minute", 1)
    return f"project {project.name}"
