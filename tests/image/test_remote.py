"""Builds on CodeBuild: resources, permissions, causes of failures, cleanup.

moto has S3, IAM, ECR, the logs and CodeBuild's projects. Its builds succeed at once, so that botocore's
Stubber answers for builds that take time or fail.
"""

from __future__ import annotations

import io
import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from moto.codebuild.models import CodeBuildBackend
from ruamel.yaml import YAML

from tests.parts.moto import ignore_bucket_policies, server
from tools import __version__
from tools.aws.session import Session
from tools.cli import invoke
from tools.core import repo
from tools.core.errors import UserError
from tools.image import codebuild, remote_build
from tools.image.build import BuildFailed, Request
from tools.image.codebuild import Project
from tools.image.rules.evaluate import Target

ACCOUNT, REGION = "123456789012", "us-west-2"
REPOSITORY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/team/train"
MANIFEST = '{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}'


@pytest.fixture(autouse=True)
def _no_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")
    ignore_bucket_policies(monkeypatch)


@pytest.fixture
def session(aws: None) -> Session:
    return Session(REGION)


@pytest.fixture
def build_request(tmp_path: Path) -> Request:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big.bin").write_bytes(b"x" * 4096)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / ".dockerignore").write_text("data\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY run.sh /\nUSER 1000\n")
    return Request(Target(tmp_path / "Dockerfile", tmp_path), (f"{REPOSITORY}:1",), {"NOTE": "two words; $HOME"})


@pytest.fixture
def project() -> Project:
    return Project.of(REPOSITORY)


def test_the_archive_is_the_context_and_the_same_for_the_same_files(build_request: Request) -> None:
    root = build_request.target.context
    said: list[str] = []
    (root / "latest").symlink_to("data")
    (root / "hosts").symlink_to("../../etc/hosts")
    archive = remote_build.pack(root, build_request.target.dockerfile, said.append)
    assert archive == remote_build.pack(root, build_request.target.dockerfile, print)
    assert [line.partition(": ")[2] for line in said] == ["hosts -> ../../etc/hosts"]
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        modes = {one.filename: stat.filemode(one.external_attr >> 16) for one in found.infolist()}
        assert modes == {
            ".dockerignore": "-rw-r--r--",
            remote_build.DOCKERFILE: "-rw-r--r--",
            "Dockerfile": "-rw-r--r--",
            "run.sh": "-rwxr-xr-x",
            "latest": "lrwxrwxrwx",
            "hosts": "lrwxrwxrwx",
        }
        assert found.read("latest") == b"data"


def test_a_role_may_read_contexts_write_its_log_and_push_to_one_repository(project: Project) -> None:
    """Only the login, which has no resource, allows all resources."""
    said = codebuild.policy(project)["Statement"]
    everywhere = [one["Action"] for one in said if "*" in one["Resource"]]
    assert everywhere == [["ecr:GetAuthorizationToken"]]
    assert not any("*" in action for one in said for action in one["Action"])
    (push,) = (one for one in said if "ecr:PutImage" in one["Action"])
    assert push["Resource"] == [f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/team/train"]
    assert codebuild.policy(project, "trust")["Statement"][0]["Condition"] == {
        "StringEquals": {
            "aws:SourceAccount": ACCOUNT,
            "aws:SourceArn": f"arn:aws:codebuild:{REGION}:{ACCOUNT}:project/{project.name}",
        }
    }


def test_resources_are_created_once_listed_and_removed(session: Session, project: Project) -> None:
    """A second build creates nothing. A bucket without our tag is not removed."""
    made = codebuild.ensure(session, project, print)
    assert [one.split()[0] for one in made] == ["bucket", "log", "role", "project"]
    assert codebuild.ensure(session, project, print) == []
    closed = session.call("s3", "get_public_access_block", Bucket=project.bucket)
    assert set(closed["PublicAccessBlockConfiguration"].values()) == {True}
    (found,) = session.call("codebuild", "batch_get_projects", names=[project.name])["projects"]
    assert found["serviceRole"] == project.role_arn
    session.call("s3", "put_object", Bucket=project.bucket, Key=f"{project.name}/1.zip", Body=b"x")
    removed = codebuild.cleanup(session, project, print)
    assert [one.split()[0] for one in removed] == ["project", "role", "log", "1", "bucket"]
    assert codebuild.cleanup(session, project, print) == []
    where = {"LocationConstraint": REGION}
    session.call("s3", "create_bucket", Bucket=project.bucket, CreateBucketConfiguration=where)
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    session.call("s3", "put_bucket_tagging", Bucket=project.bucket, Tagging=tags)
    with pytest.raises(UserError, match="is not trainyard's"):
        codebuild.cleanup(session, project, print)


def test_another_repositorys_contexts_keep_the_bucket(session: Session, project: Project) -> None:
    codebuild.ensure(session, project, print)
    session.call("s3", "put_object", Bucket=project.bucket, Key="trainyard-image-other/1.zip", Body=b"x")
    assert f"bucket {project.bucket}" not in codebuild.cleanup(session, project, print)
    assert session.call("s3", "list_objects_v2", Bucket=project.bucket)["KeyCount"] == 1


def test_a_role_that_stays_unknown_is_one_error(
    session: Session, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codebuild, "ROLE_SECONDS", 0.0)
    text = "CodeBuild is not authorized to perform: sts:AssumeRole on arn:aws:iam::1:role/x"
    with Stubber(session.client("codebuild")) as builds:
        builds.add_response("batch_get_projects", {"projects": []})
        builds.add_client_error("create_project", "InvalidInputException", text)
        with pytest.raises(
            UserError, match="cannot assume the new role trainyard-image-us-west-2-team-train"
        ) as caught:
            codebuild.ensure(session, project, print)
    assert caught.value.code == 1


def test_arguments_reach_docker_unchanged(build_request: Request) -> None:
    text = remote_build.buildspec(build_request.names[0], build_request.arguments, "linux/amd64")
    phases = YAML(typ="safe").load(text)["phases"]
    (command,) = phases["build"]["commands"]
    assert "--build-arg 'NOTE=two words; $HOME'" in command
    assert command.endswith(" .")
    assert phases["post_build"]["commands"][0].startswith('test "$CODEBUILD_BUILD_SUCCEEDING" = 1 && ')


def _answer(status: str, phase: str, state: str, text: str = "", logs: bool = True) -> dict[str, Any]:
    contexts = [{"message": text}]
    shown = {"phaseType": phase, "phaseStatus": state, "durationInSeconds": 3, "contexts": contexts}
    build = {"id": "p:1", "buildStatus": status, "buildComplete": status != "IN_PROGRESS", "phases": [shown]}
    where = {"logs": {"groupName": "/aws/codebuild/x", "streamName": "s"}} if logs else {}
    return {"builds": [build | where]}


STARTED = _answer("IN_PROGRESS", "SUBMITTED", "SUCCEEDED", logs=False)


def _events(token: str, *lines: str) -> dict[str, Any]:
    return {"events": [{"timestamp": 1, "message": line + "\n"} for line in lines], "nextForwardToken": token}


@pytest.mark.parametrize(
    ("status", "phase", "message", "lines", "kind"),
    [
        ("FAILED", "DOWNLOAD_SOURCE", "AccessDenied", [], "the context was not fetched"),
        ("FAILED", "PROVISIONING", "no capacity", [], "no build machine"),
        ("FAILED", "PRE_BUILD", "exit status 1", ["denied"], "no login to the registry"),
        ("FAILED", "BUILD", "exit status 1", ["ERROR: ResolutionImpossible: for"], "dependency conflict"),
        ("FAILED", "BUILD", "exit status 1", ["write /x: no space left on device"], "no space"),
        ("FAILED", "POST_BUILD", "exit status 1", ["tag invalid: immutable"], "not pushed"),
        ("TIMED_OUT", "BUILD", "timed out", [], "too slow"),
        ("STOPPED", "BUILD", "stopped by user", [], "stopped"),
        ("FAULT", "QUEUED", "internal", [], "CodeBuild failed"),
    ],
)
def test_the_phase_decides_the_cause_of_a_failure(
    session: Session, status: str, phase: str, message: str, lines: list[str], kind: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(remote_build, "EVERY", 0.0)
    said: list[str] = []
    with Stubber(session.client("codebuild")) as builds, Stubber(session.client("logs")) as logs:
        builds.add_response("batch_get_builds", STARTED)
        builds.add_response("batch_get_builds", _answer(status, phase, "FAILED", message))
        logs.add_response("get_log_events", _events("a", *lines))
        logs.add_response("get_log_events", _events("a"))
        with pytest.raises(BuildFailed) as caught:
            remote_build.follow(session, "p:1", "remote-test", said.append)
    assert caught.value.cause.kind == kind
    assert "SUBMITTED SUCCEEDED in 3 s" in said
    assert said[-len(lines) :] == lines or not lines


def test_a_successful_build_ends_with_the_digest_of_ecr(
    session: Session, build_request: Request, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the image at ECR the build fails. If the tag exists before, no build starts."""
    monkeypatch.setattr(remote_build, "follow", lambda *_: None)
    with pytest.raises(UserError, match="ECR does not have"):
        remote_build.build(build_request, session, print)
    (context,) = session.call("s3", "list_objects_v2", Bucket=project.bucket)["Contents"]
    assert context["Key"].startswith(f"{project.name}/")

    def push(*_: object) -> None:
        session.call("ecr", "put_image", repositoryName="team/train", imageManifest=MANIFEST, imageTag="1")

    monkeypatch.setattr(remote_build, "follow", push)
    built = remote_build.build(build_request, session, print)
    assert built.digest == remote_build.digest(session, project, "1")
    assert built.made == []
    with pytest.raises(UserError, match="already exists"):
        remote_build.build(build_request, session, print)


def test_the_command_builds_once_lists_its_resources_and_removes_them(
    aws_keys: None,
    build_request: Request,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """AWS over HTTP. moto runs no buildspec, so the test pushes in its place.

    Control: before that, a successful build without an image at ECR is an error.
    """
    words = ["image", "build", str(build_request.target.context), "--repository", REPOSITORY, "--json"]
    begin = CodeBuildBackend.start_build

    def build(backend: CodeBuildBackend, *given: Any, **named: Any) -> dict[str, Any]:
        pushed = {"repositoryName": "team/train", "imageManifest": MANIFEST, "imageTag": __version__}
        Session(REGION).call("ecr", "put_image", **pushed)
        return begin(backend, *given, **named)

    with server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        assert invoke([*words, "--remote"]) == 1
        assert "the build succeeded, but ECR does not have" in capsys.readouterr().err
        assert invoke([*words, "--cleanup"]) == 0
        assert len(json.loads(capsys.readouterr().out)["removed"]) == 5
        monkeypatch.setattr(CodeBuildBackend, "start_build", build)
        assert invoke([*words, "--remote"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["digest"] == remote_build.digest(Session(REGION), Project.of(REPOSITORY), __version__)
        assert [one.split()[0] for one in said["made"]] == ["bucket", "log", "role", "project"]
        assert invoke([*words, "--remote"]) == 1
        assert "already exists" in capsys.readouterr().err
        assert invoke([*words, "--cleanup"]) == 0
        removed = json.loads(capsys.readouterr().out)["removed"]
        assert [one.split()[0] for one in removed] == ["project", "role", "log", "1", "bucket"]
        assert invoke([*words, "--cleanup"]) == 0
        assert json.loads(capsys.readouterr().out) == {"removed": []}
        words[words.index(REPOSITORY)] = REPOSITORY.replace(ACCOUNT, "999999999999")
        assert invoke([*words, "--cleanup"]) == 2
        assert "belongs to account 123456789012, and the repository to 999999999999" in capsys.readouterr().err


def test_an_interrupted_build_is_stopped(session: Session) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("SUBMITTED"):
            raise KeyboardInterrupt

    with Stubber(session.client("codebuild")) as builds:
        builds.add_response("batch_get_builds", STARTED)
        builds.add_response("stop_build", {"build": {"id": "p:1"}}, {"id": "p:1"})
        with pytest.raises(KeyboardInterrupt):
            remote_build.follow(session, "p:1", "remote-test", interrupt)
        builds.assert_no_pending_responses()


def test_only_ecr_is_pushed_to() -> None:
    with pytest.raises(UserError, match="is not an ECR repository"):
        Project.of("registry.example/team/train")
