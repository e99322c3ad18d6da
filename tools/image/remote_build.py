"""Build and push an image on AWS CodeBuild: where no engine is, or the laptop is another architecture."""

from __future__ import annotations

import hashlib
import io
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

from tools.aws.session import AwsError, Session
from tools.core import repo
from tools.core.errors import UserError
from tools.image import codebuild, ecr
from tools.image.build import BuildFailed, Wish, refuse_secrets
from tools.image.build_failures import Cause, cause
from tools.image.codebuild import Place
from tools.image.dockerfile import context, dockerignore
from tools.image.engine import Say
from tools.image.push import refusal
from tools.image.registry import split

EVERY = 5.0  # seconds between two looks
DOCKERFILE = ".trainyard.Dockerfile"  # its name in the archive, wherever it stood
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: an equal context is an equal archive
# What a failed phase says (CodeBuild user guide, build phases). BUILD and POST_BUILD are told by their logs.
PHASES = {
    "QUEUED": ("no build machine", "the account's limit of builds at a time: Service Quotas, CodeBuild"),
    "PROVISIONING": ("no build machine", "try again; the message says whether image or network is at fault"),
    "DOWNLOAD_SOURCE": ("the context was not fetched", "may the project's role read the bucket?"),
    "INSTALL": ("the build machine has no docker", "codebuild.MACHINE names its image"),
    "PRE_BUILD": ("no login to the registry", "may the project's role call ecr:GetAuthorizationToken?"),
}


@dataclass(frozen=True)
class Built:
    """A build that ended well: its id, the digest that ECR has, and what was made for it."""

    id: str
    name: str
    digest: str
    seconds: float
    made: list[str] = field(default_factory=list)


def build(wish: Wish, session: Session, say: Say) -> Built:
    """Build `wish` on CodeBuild, follow it, and return the digest that ECR has under its name.

    Raises BuildFailed with the phase's cause; UserError where nothing was begun; AwsError.
    """
    refuse_secrets(wish.arguments)
    (name,) = wish.names
    repository, tag = split(name)
    place = Place.of(repository)
    ecr.ensure(session, place.account, place.repository, say)
    if (there := digest(session, place, tag)) is not None:
        hint = "a tag names one image for ever: another one, --tag-from"
        raise UserError(f"{name} is there already: {there}", hint, 1)
    archive = pack(wish.target.context, wish.target.dockerfile, say, wish.limit)
    made = codebuild.ensure(session, place, say)
    key = f"{place.name}/{hashlib.sha256(archive).hexdigest()}.zip"
    session.call("s3", "put_object", Bucket=place.bucket, Key=key, Body=archive)
    say(f"uploaded {context.shown(len(archive))} to s3://{place.bucket}/{key}")
    began = time.monotonic()
    started = session.call(
        "codebuild", "start_build",
        projectName=place.name, sourceTypeOverride="S3", sourceLocationOverride=f"{place.bucket}/{key}",
        buildspecOverride=buildspec(name, wish.arguments, wish.platform or "linux/amd64"),
    )["build"]  # fmt: skip
    say(f"build {started['id']} has begun")
    follow(session, started["id"], wish.target.name, say)
    found = digest(session, place, tag)
    if found is None:
        raise UserError(f"the build ended well, and ECR does not have {name}", code=1)
    return Built(started["id"], name, found, round(time.monotonic() - began, 1), made)


def pack(root: Path, dockerfile: Path, say: Say, limit: int = context.LIMIT) -> bytes:
    """Return the context as a zip, as .dockerignore lets it through, with the Dockerfile as DOCKERFILE.

    Links are links in it, as Info-ZIP writes them. Raises UserError beyond `limit` bytes.
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
    """Return CodeBuild's instructions, one phase for each thing that can fail by itself."""
    host = name.partition("/")[0]
    words = ["docker", "build", "--file", DOCKERFILE, "--platform", platform, "--tag", name]
    for key, value in arguments.items():
        words += ["--build-arg", f"{key}={value}"]
    login = f"aws ecr get-login-password | docker login --username AWS --password-stdin {shlex.quote(host)}"
    # A phase after a failed one runs all the same: without the test a failed build would end in its push.
    push = f'test "$CODEBUILD_BUILD_SUCCEEDING" = 1 && docker push {shlex.quote(name)}'
    commands = {
        "install": "docker version",
        "pre_build": login,
        "build": shlex.join([*words, "."]),
        "post_build": push,
    }
    out = io.StringIO()
    phases = {phase: {"commands": [text]} for phase, text in commands.items()}
    YAML(typ="safe").dump({"version": 0.2, "phases": phases}, out)
    return out.getvalue()


def follow(session: Session, build_id: str, name: str, say: Say) -> None:
    """Give phases and log lines to `say` until the build is over. Raises BuildFailed where it failed.

    Interrupted, it stops the build, so that nothing is paid for that nobody waits for.
    """
    log = Log(session)
    told: dict[str, str] = {}
    try:
        while True:
            found = session.call("codebuild", "batch_get_builds", ids=[build_id])["builds"][0]
            for phase in found.get("phases", []):
                status = phase.get("phaseStatus", "")
                if status and told.get(phase["phaseType"]) != status:
                    told[phase["phaseType"]] = status
                    say(f"{phase['phaseType']} {status} in {phase.get('durationInSeconds', 0)} s")
            log.read(found.get("logs") or {}, say)
            if found.get("buildComplete") or found["buildStatus"] != "IN_PROGRESS":
                break
            time.sleep(EVERY)
    except KeyboardInterrupt:
        session.call("codebuild", "stop_build", id=build_id)
        say(f"stopped {build_id}")
        raise
    path = repo.local() / "images" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(log.lines) + "\n", encoding="utf-8")
    if found["buildStatus"] != "SUCCEEDED":
        raise BuildFailed(why(found, log.lines), path, 1)


class Log:
    """A build's lines in CloudWatch, as far as they have been read."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lines: list[str] = []
        self._token: str | None = None

    def read(self, logs: Mapping[str, Any], say: Say) -> None:
        """Read what is new; nothing where CodeBuild has not opened the stream yet."""
        if not logs.get("groupName") or not logs.get("streamName"):
            return
        wanted = {
            "logGroupName": logs["groupName"],
            "logStreamName": logs["streamName"],
            "startFromHead": True,
        }
        while True:
            more = {"nextToken": self._token} if self._token else {}
            try:
                page = self.session.call("logs", "get_log_events", **wanted, **more)
            except AwsError as problem:
                if problem.kind == "missing":
                    return
                raise
            for event in page["events"]:
                self.lines.append(event["message"].rstrip("\n"))
                say(self.lines[-1])
            if page["nextForwardToken"] == self._token:
                return
            self._token = page["nextForwardToken"]


def why(found: Mapping[str, Any], lines: list[str]) -> Cause:
    """Return the one cause of a build that did not succeed: its first failed phase, and what that said."""
    status = found["buildStatus"]
    phases: list[dict[str, Any]] = found.get("phases", [])
    failed = next((one for one in phases if one.get("phaseStatus") not in (None, "", "SUCCEEDED")), {})
    phase = failed.get("phaseType", "unknown phase")
    said = "; ".join(str(one.get("message") or one.get("statusCode")) for one in failed.get("contexts") or [])
    if status == "STOPPED":
        return Cause("stopped", said or "somebody stopped the build", "start it again", step=phase)
    if status == "TIMED_OUT":
        return Cause(
            "too slow", said or f"more than {codebuild.MINUTES} minutes", "a smaller image", step=phase
        )
    if status == "FAULT":
        return Cause("CodeBuild failed", said or status, "start it again", step=phase)
    if phase == "BUILD":
        inside = cause("\n".join(lines))
        return Cause(inside.kind, inside.line, inside.remedy, step=inside.step or phase)
    if phase == "POST_BUILD":
        problem = refusal("the image", "\n".join(lines))
        return Cause("not pushed", problem.message, problem.hint or "the log says why", step=phase)
    kind, remedy = PHASES.get(phase, (f"{phase} failed", "the log says why"))
    return Cause(kind, said or (lines[-1] if lines else status), remedy, step=phase)


def digest(session: Session, place: Place, tag: str) -> str | None:
    """Return the digest that ECR has under a tag, or None. Raises AwsError."""
    wanted = {"repositoryName": place.repository, "imageIds": [{"imageTag": tag}]}
    try:
        found = session.call("ecr", "describe_images", **wanted)["imageDetails"]
    except AwsError as problem:
        if problem.kind == "missing":
            return None
        raise
    return str(found[0]["imageDigest"]) if found else None


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = mode << 16
    return entry
