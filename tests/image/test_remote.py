"""Builds on CodeBuild: what is made, what a build may do, how failures are told apart, what is left behind.

moto keeps S3, IAM, ECR, the logs and CodeBuild's projects; its builds end at once and well, so the answers of
builds that last or fail are those of botocore's Stubber.
"""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from moto import mock_aws
from moto.codebuild.models import CodeBuildBackend
from ruamel.yaml import YAML

from tests.parts.moto import server
from tools import __version__
from tools.aws.session import Session
from tools.cli import invoke
from tools.core import repo
from tools.core.errors import UserError
from tools.image import codebuild, remote_build
from tools.image.build import BuildFailed, Wish
from tools.image.codebuild import Place
from tools.image.rules.evaluate import Target

ACCOUNT, REGION = "123456789012", "us-west-2"
REPOSITORY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/team/train"
DIGEST = "sha256:" + "cd" * 32


@pytest.fixture(autouse=True)
def _no_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Logs of builds go to another place than the checkout's own."""
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with mock_aws():
        yield Session(REGION)


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big.bin").write_bytes(b"x" * 4096)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / ".dockerignore").write_text("data\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY run.sh /\nUSER 1000\n")
    return Wish(Target(tmp_path / "Dockerfile", tmp_path), (f"{REPOSITORY}:1",), {"NOTE": "two words; $HOME"})


@pytest.fixture
def place() -> Place:
    return Place.of(REPOSITORY)


def test_the_archive_is_the_context_and_the_same_for_the_same_files(wish: Wish) -> None:
    root = wish.target.context
    said: list[str] = []
    (root / "latest").symlink_to("data")
    (root / "hosts").symlink_to("../../etc/hosts")
    archive = remote_build.pack(root, wish.target.dockerfile, said.append)
    assert archive == remote_build.pack(root, wish.target.dockerfile, print)
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


def test_a_role_may_read_contexts_write_its_log_and_push_to_one_repository(place: Place) -> None:
    """Held as text: nothing with a star but the login, which knows no resource."""
    said = codebuild.policy(place)["Statement"]
    everywhere = [one["Action"] for one in said if "*" in one["Resource"]]
    assert everywhere == [["ecr:GetAuthorizationToken"]]
    assert not any("*" in action for one in said for action in one["Action"])
    (push,) = (one for one in said if "ecr:PutImage" in one["Action"])
    assert push["Resource"] == [f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/team/train"]
    assert codebuild.trust(place)["Statement"][0]["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT}
    }


def test_everything_is_made_once_listed_and_removed(session: Session, place: Place) -> None:
    """A second build makes nothing; the control is a bucket without our tag, which is nobody's to remove."""
    made = codebuild.ensure(session, place, print)
    assert [one.split()[0] for one in made] == ["bucket", "log", "role", "project"]
    assert codebuild.ensure(session, place, print) == []
    closed = session.call("s3", "get_public_access_block", Bucket=place.bucket)
    assert set(closed["PublicAccessBlockConfiguration"].values()) == {True}
    (project,) = session.call("codebuild", "batch_get_projects", names=[place.name])["projects"]
    assert project["serviceRole"] == place.role_arn
    session.call("s3", "put_object", Bucket=place.bucket, Key=f"{place.name}/1.zip", Body=b"x")
    removed = codebuild.cleanup(session, place, print)
    assert [one.split()[0] for one in removed] == ["project", "role", "log", "1", "bucket"]
    assert codebuild.cleanup(session, place, print) == []
    session.call(
        "s3", "create_bucket", Bucket=place.bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    session.call(
        "s3", "put_bucket_tagging", Bucket=place.bucket, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}
    )
    with pytest.raises(UserError, match="is not trainyard's"):
        codebuild.cleanup(session, place, print)


def test_another_repositorys_contexts_keep_the_bucket(session: Session, place: Place) -> None:
    codebuild.ensure(session, place, print)
    session.call("s3", "put_object", Bucket=place.bucket, Key="trainyard-image-other/1.zip", Body=b"x")
    assert f"bucket {place.bucket}" not in codebuild.cleanup(session, place, print)
    assert session.call("s3", "list_objects_v2", Bucket=place.bucket)["KeyCount"] == 1


def test_arguments_reach_docker_as_they_are(wish: Wish) -> None:
    spec = YAML(typ="safe").load(remote_build.buildspec(wish.names[0], wish.arguments, "linux/amd64"))
    (command,) = spec["phases"]["build"]["commands"]
    assert "--build-arg 'NOTE=two words; $HOME'" in command
    assert command.endswith(" .")
    assert spec["phases"]["post_build"]["commands"][0].startswith(
        'test "$CODEBUILD_BUILD_SUCCEEDING" = 1 && '
    )


def _answer(status: str, *phases: tuple[str, str, str], logs: bool = True) -> dict[str, Any]:
    shown = [
        {"phaseType": kind, "phaseStatus": state, "durationInSeconds": 3, "contexts": [{"message": text}]}
        for kind, state, text in phases
    ]
    where = {"logs": {"groupName": "/aws/codebuild/x", "streamName": "s"}} if logs else {}
    return {
        "builds": [
            {
                "id": "p:1",
                "buildStatus": status,
                "buildComplete": status != "IN_PROGRESS",
                "phases": shown,
                **where,
            }
        ]
    }


def _events(token: str, *lines: str) -> dict[str, Any]:
    return {"events": [{"timestamp": 1, "message": line + "\n"} for line in lines], "nextForwardToken": token}


@pytest.mark.parametrize(
    ("status", "phase", "message", "lines", "kind"),
    [
        ("FAILED", "DOWNLOAD_SOURCE", "AccessDenied", [], "the context was not fetched"),
        ("FAILED", "PROVISIONING", "no capacity", [], "no build machine"),
        ("FAILED", "PRE_BUILD", "exit status 1", ["denied"], "no login to the registry"),
        (
            "FAILED",
            "BUILD",
            "exit status 1",
            ["ERROR: ResolutionImpossible: for help visit"],
            "dependency conflict",
        ),
        ("FAILED", "BUILD", "exit status 1", ["write /x: no space left on device"], "no space"),
        ("FAILED", "POST_BUILD", "exit status 1", ["tag invalid: immutable"], "not pushed"),
        ("TIMED_OUT", "BUILD", "timed out", [], "too slow"),
        ("STOPPED", "BUILD", "stopped by user", [], "stopped"),
        ("FAULT", "QUEUED", "internal", [], "CodeBuild failed"),
    ],
)
def test_failures_are_told_apart_by_their_phase(
    session: Session, status: str, phase: str, message: str, lines: list[str], kind: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(remote_build, "EVERY", 0.0)
    said: list[str] = []
    with Stubber(session.client("codebuild")) as builds, Stubber(session.client("logs")) as logs:
        builds.add_response(
            "batch_get_builds", _answer("IN_PROGRESS", ("SUBMITTED", "SUCCEEDED", ""), logs=False)
        )
        builds.add_response("batch_get_builds", _answer(status, (phase, "FAILED", message)))
        logs.add_response("get_log_events", _events("a", *lines))
        logs.add_response("get_log_events", _events("a"))
        with pytest.raises(BuildFailed) as caught:
            remote_build.follow(session, "p:1", "remote-test", said.append)
    assert caught.value.cause.kind == kind
    assert "SUBMITTED SUCCEEDED in 3 s" in said
    assert said[-len(lines) :] == lines or not lines


def test_a_build_that_went_well_ends_with_ecrs_digest(
    session: Session, wish: Wish, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an image in ECR the same build is no success; with the tag there before, none is begun."""
    monkeypatch.setattr(remote_build, "follow", lambda *_: None)
    with pytest.raises(UserError, match="ECR does not have"):
        remote_build.build(wish, session, print)
    (context,) = session.call("s3", "list_objects_v2", Bucket=place.bucket)["Contents"]
    assert context["Key"].startswith(f"{place.name}/")
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
    )

    def push(*_: object) -> None:
        session.call("ecr", "put_image", repositoryName="team/train", imageManifest=manifest, imageTag="1")

    monkeypatch.setattr(remote_build, "follow", push)
    built = remote_build.build(wish, session, print)
    assert built.digest == remote_build.digest(session, place, "1")
    assert built.made == []
    with pytest.raises(UserError, match="is there already"):
        remote_build.build(wish, session, print)


def test_the_command_builds_once_lists_what_it_made_and_takes_it_away(
    wish: Wish, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """AWS behind HTTP. moto's builds run no buildspec: this one pushes, as the buildspec says.

    Control: before it does, the build that ended well is no success.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    words = ["image", "build", str(wish.target.context), "--repository", REPOSITORY, "--json"]
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
    )
    begin = CodeBuildBackend.start_build

    def build(backend: CodeBuildBackend, *given: Any, **named: Any) -> dict[str, Any]:
        pushed = {"repositoryName": "team/train", "imageManifest": manifest, "imageTag": __version__}
        Session(REGION).call("ecr", "put_image", **pushed)
        return begin(backend, *given, **named)

    with server() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        assert invoke([*words, "--remote"]) == 1
        assert "the build ended well, and ECR does not have" in capsys.readouterr().err
        assert invoke([*words, "--cleanup"]) == 0
        assert len(json.loads(capsys.readouterr().out)["removed"]) == 5
        monkeypatch.setattr(CodeBuildBackend, "start_build", build)
        assert invoke([*words, "--remote"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["digest"] == remote_build.digest(Session(REGION), Place.of(REPOSITORY), __version__)
        assert [one.split()[0] for one in said["made"]] == ["bucket", "log", "role", "project"]
        assert invoke([*words, "--remote"]) == 1
        assert "is there already" in capsys.readouterr().err
        assert invoke([*words, "--cleanup"]) == 0
        removed = json.loads(capsys.readouterr().out)["removed"]
        assert [one.split()[0] for one in removed] == ["project", "role", "log", "1", "bucket"]
        assert invoke([*words, "--cleanup"]) == 0
        assert json.loads(capsys.readouterr().out) == {"removed": []}
        words[words.index(REPOSITORY)] = REPOSITORY.replace(ACCOUNT, "999999999999")
        assert invoke([*words, "--cleanup"]) == 2
        assert "is of account 123456789012, and the repository of 999999999999" in capsys.readouterr().err


def test_an_interrupted_build_is_stopped(session: Session) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("SUBMITTED"):
            raise KeyboardInterrupt

    with Stubber(session.client("codebuild")) as builds:
        builds.add_response(
            "batch_get_builds", _answer("IN_PROGRESS", ("SUBMITTED", "SUCCEEDED", ""), logs=False)
        )
        builds.add_response("stop_build", {"build": {"id": "p:1"}}, {"id": "p:1"})
        with pytest.raises(KeyboardInterrupt):
            remote_build.follow(session, "p:1", "remote-test", interrupt)
        builds.assert_no_pending_responses()


def test_only_ecr_is_pushed_to() -> None:
    with pytest.raises(UserError, match="no repository of it"):
        Place.of("registry.example/team/train")
