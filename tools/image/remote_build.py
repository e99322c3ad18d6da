"""Build and push an image on AWS CodeBuild: without an engine, or from another architecture."""

import hashlib
import io
import math
import os
import shlex
import stat
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tools.aws import Session
from tools.core import Say, UserError, secret_patterns, tables, wait
from tools.image import codebuild, ecr
from tools.image.build import BuildFailed, Request, refuse_secrets, write_log
from tools.image.build_failures import Cause, cause
from tools.image.codebuild import Project
from tools.image.dockerfile import context, dockerignore
from tools.image.engine import understood
from tools.image.push import IMMUTABLE, refusal
from tools.image.registry import split

EVERY = 5.0  # seconds between two polls
DOCKERFILE = ".trainyard.Dockerfile"  # its name in the archive
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file in the archive, so that equal contexts give equal archives


@dataclass(frozen=True)
class Built:
    """A successful build: its id, the digest at ECR, and the resources that were created for it."""

    id: str
    name: str
    digest: str
    seconds: float
    made: list[str] = field(default_factory=list)


def build(request: Request, session: Session, say: Say) -> Built:
    """Build on CodeBuild, follow the build, and return the digest at ECR.

    Raises BuildFailed with the phase's cause, UserError if the build did not start, and AwsError.
    """
    refuse_secrets(request.arguments)
    (name,) = request.names
    repository, tag = split(name)
    project = Project.of(repository)
    ecr.ensure(session, project.account, project.repository, say)
    if (existing := digest(session, project, tag)) is not None:
        raise UserError(f"{name} already exists: {existing}", IMMUTABLE, 1)
    archive = pack(request.target.context, request.target.dockerfile, say, request.limit)
    made = codebuild.ensure(session, project, say)
    key = f"{project.name}/{hashlib.sha256(archive).hexdigest()}.zip"
    owner = {"ExpectedBucketOwner": project.account}
    session.call("s3", "put_object", Bucket=project.bucket, Key=key, Body=archive, **owner)
    say(f"uploaded {context.shown(len(archive))} to s3://{project.bucket}/{key}")
    began = time.monotonic()
    started = session.call(
        "codebuild", "start_build",
        projectName=project.name, sourceTypeOverride="S3", sourceLocationOverride=f"{project.bucket}/{key}",
        buildspecOverride=buildspec(name, request.arguments, request.platform or "linux/amd64"),
    )["build"]  # fmt: skip
    say(f"started build {started['id']}")
    follow(session, started["id"], request.target.name, say)
    found = digest(session, project, tag)
    if found is None:
        raise UserError(f"the build succeeded, but ECR does not have {name}", code=1)
    return Built(started["id"], name, found, round(time.monotonic() - began, 1), made)


def pack(root: Path, dockerfile: Path, say: Say, limit: int = context.LIMIT) -> bytes:
    """Return the context, filtered by .dockerignore, as a zip, with the Dockerfile as DOCKERFILE.

    Links stay links, as Info-ZIP writes them. Raises UserError beyond `limit` bytes.
    """
    ignore = dockerignore.read(root, dockerfile)
    for text in context.guard(root, ignore, limit).warnings():
        say(text)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, _ in sorted(dockerignore.files(root, ignore)):
            path = root / name
            if path.is_symlink():
                archive.writestr(_entry(name, stat.S_IFLNK | 0o777), os.readlink(path))
            else:
                mode = 0o755 if os.access(path, os.X_OK) else 0o644
                archive.writestr(_entry(name, stat.S_IFREG | mode), path.read_bytes())
        archive.writestr(_entry(DOCKERFILE, stat.S_IFREG | 0o644), dockerfile.read_bytes())
    return out.getvalue()


def buildspec(name: str, arguments: Mapping[str, str], platform: str) -> str:
    """Return CodeBuild's instructions, with one phase for each step that can fail."""
    host = name.partition("/")[0]
    words = ["docker", "build", "--file", DOCKERFILE, "--platform", platform, "--tag", name]
    for key, value in arguments.items():
        words += ["--build-arg", f"{key}={value}"]
    login = f"aws ecr get-login-password | docker login --username AWS --password-stdin {shlex.quote(host)}"
    # CodeBuild runs post_build also after a failed build: the test keeps it from pushing then.
    push = f'test "$CODEBUILD_BUILD_SUCCEEDING" = 1 && docker push {shlex.quote(name)}'
    commands = {"install": "docker version", "pre_build": login, "build": shlex.join([*words, "."]), "post_build": push}
    out = io.StringIO()
    phases = {phase: {"commands": [text]} for phase, text in commands.items()}
    YAML(typ="safe").dump({"version": 0.2, "phases": phases}, out)
    return out.getvalue()


def follow(session: Session, build_id: str, name: str, say: Say) -> None:
    """Print phases and log lines until the build ends. Raises BuildFailed.

    Ctrl-C stops the build, which otherwise costs money until it ends.
    """
    log = Log(session)
    statuses: dict[str, str] = {}

    def ended() -> dict[str, Any] | None:
        builds = session.call("codebuild", "batch_get_builds", ids=[build_id])["builds"]
        with understood("codebuild:BatchGetBuilds"):
            found: dict[str, Any] = builds[0]
        for phase in found.get("phases", []):
            status = phase.get("phaseStatus", "")
            if status and statuses.get(phase["phaseType"]) != status:
                statuses[phase["phaseType"]] = status
                say(f"{phase['phaseType']} {status} in {phase.get('durationInSeconds', 0)} s")
        log.read(found.get("logs") or {}, say)
        return found if found.get("buildComplete") or found["buildStatus"] != "IN_PROGRESS" else None

    try:
        found = wait.until(ended, math.inf, EVERY) or {}
    except KeyboardInterrupt:
        session.call("codebuild", "stop_build", id=build_id)
        say(f"stopped {build_id}")
        raise
    path = write_log(name, "\n".join(log.lines) + "\n")
    if found["buildStatus"] != "SUCCEEDED":
        raise BuildFailed(why(found, log.lines), path, 1)


class Log:
    """A build's lines in CloudWatch, as far as they were read."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lines: list[str] = []
        self._token: str | None = None

    def read(self, logs: Mapping[str, Any], say: Say) -> None:
        """Read new lines. CodeBuild opens the stream some time after the start."""
        if not logs.get("groupName") or not logs.get("streamName"):
            return
        wanted = {"logGroupName": logs["groupName"], "logStreamName": logs["streamName"], "startFromHead": True}
        while True:
            more = {"nextToken": self._token} if self._token else {}
            page = self.session.find("logs", "get_log_events", **wanted, **more)
            if page is None:
                return
            for event in page["events"]:
                self.lines.append(secret_patterns.mask(event["message"].rstrip("\n")))
                say(self.lines[-1])
            if page["nextForwardToken"] == self._token:
                return
            self._token = page["nextForwardToken"]


def why(found: Mapping[str, Any], lines: list[str]) -> Cause:
    """Return the cause of a failed build: its first failed phase, with that phase's message."""
    status = found["buildStatus"]
    phases: list[dict[str, Any]] = found.get("phases", [])
    failed = next((one for one in phases if one.get("phaseStatus") not in (None, "", "SUCCEEDED")), {})
    phase = failed.get("phaseType", "unknown phase")
    said = "; ".join(str(one.get("message") or one.get("statusCode")) for one in failed.get("contexts") or [])
    ended = tables.load("image/codebuild.yaml")["ended builds"]
    if status in ended:
        kind, message, remedy = ended[status]
        return Cause(kind, said or message, remedy, step=phase)
    if phase == "BUILD":
        inside = cause("\n".join(lines))
        return Cause(inside.kind, inside.line, inside.remedy, step=inside.step or phase)
    if phase == "POST_BUILD":
        problem = refusal("the image", "\n".join(lines))
        return Cause("not pushed", problem.message, problem.hint or "see the log", step=phase)
    kind, remedy = tables.load("image/tables.yaml")["phases"].get(phase, (f"{phase} failed", "see the log"))
    return Cause(kind, said or (lines[-1] if lines else status), remedy, step=phase)


def digest(session: Session, project: Project, tag: str) -> str | None:
    """Return the digest of a tag at ECR, or None. Raises AwsError."""
    wanted = {"repositoryName": project.repository, "imageIds": [{"imageTag": tag}]}
    images = (session.find("ecr", "describe_images", **wanted) or {}).get("imageDetails")
    return str(images[0]["imageDigest"]) if images else None


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = mode << 16
    return entry
