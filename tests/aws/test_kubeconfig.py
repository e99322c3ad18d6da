"""`yard cluster kubeconfig`: what the AWS CLI is asked, and what stays in the kubeconfig."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml  # type: ignore[import-untyped]

from tests.aws.account import ROLE, make_cluster, make_network
from tests.aws.conftest import Gaps, StandIn, Yard
from tools.aws.session import Session
from tools.kube.kubectl import Kubectl

ARN = "arn:aws:eks:us-west-2:123456789012:cluster/gpu"
CONFIG = """\
apiVersion: v1
kind: Config
current-context: other
clusters:
- name: other
  cluster: {server: "https://other"}
users:
- name: other
  user: {token: secret}
contexts:
- name: other
  context: {cluster: other, user: other}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig with another cluster."""
    path = tmp_path / "config"
    path.write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def log(session: Session, stand_in: StandIn) -> Path:
    """The log of the AWS CLI's stand-in, in an account with the cluster gpu."""
    make_cluster(session, "gpu", make_network(session, ["us-west-2a", "us-west-2b"]))
    return stand_in("aws")


def content(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def contexts() -> list[str]:
    return Kubectl().text("config", "get-contexts", "--output=name").split()


def current() -> str:
    return Kubectl().text("config", "current-context").strip()


def asked(log: Path) -> list[list[str]]:
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def test_a_cluster_is_added_and_the_rest_stays(file: Path, log: Path, yard: Yard) -> None:
    before = content(file)
    ran = yard("kubeconfig", "gpu", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, {"file": str(file), "context": "gpu", "changed": True})
    words = "eks update-kubeconfig --name gpu --region us-west-2 --alias gpu"
    assert asked(log) == [words.split()]
    after = content(file)
    for key in ("clusters", "users", "contexts"):
        assert before[key][0] in after[key]
    assert (contexts(), current()) == (["gpu", "other"], "other")
    assert "context gpu is up to date" in yard("kubeconfig", "gpu").out
    Kubectl().text("config", "set-context", "gpu", "--namespace=training")
    assert yard("kubeconfig", "gpu", "--use").code == 0
    assert current() == "gpu"
    (context,) = (row["context"] for row in content(file)["contexts"] if row["name"] == "gpu")
    assert context == {"cluster": ARN, "user": ARN, "namespace": "training"}


def test_the_profile_goes_to_the_aws_cli(
    file: Path, log: Path, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    (tmp_path / "aws").write_text("[profile team]\naws_access_key_id = a\naws_secret_access_key = b\n")
    assert yard("kubeconfig", "gpu", "--profile", "team", "--region", "us-west-2").code == 0
    assert asked(log)[0][-2:] == ["--profile", "team"]


def test_the_first_context_becomes_the_current_one(
    log: Path, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".kube" / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert yard("kubeconfig", "gpu", "--context", "team").code == 0
    assert (contexts(), current(), path.stat().st_mode & 0o777) == (["team"], "team", 0o600)


def test_a_name_that_is_taken_is_refused(file: Path, log: Path, yard: Yard) -> None:
    ran = yard("kubeconfig", "gpu", "--context", "other")
    assert (ran.code, "the context other already belongs to other" in ran.err) == (2, True)
    assert (file.read_text(encoding="utf-8"), asked(log)) == (CONFIG, [])
    assert yard("kubeconfig", "gpu", "--context", "other", "--replace").code == 0
    assert content(file)["contexts"][0]["context"]["cluster"] == ARN


def test_several_files_are_read_as_kubectl_reads_them(
    file: Path, log: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = file.with_name("first"), file
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    taken = yard("kubeconfig", "gpu", "--context", "other")
    assert (taken.code, "belongs to other" in taken.err, first.exists()) == (2, True, False)
    assert yard("kubeconfig", "gpu").code == 0
    assert [row["name"] for row in content(first)["contexts"]] == ["gpu"]
    assert (current(), content(second)) == ("other", yaml.safe_load(CONFIG))
    monkeypatch.setenv("KUBECONFIG", f"{second}:{first}")
    assert "is up to date" in yard("kubeconfig", "gpu").out, "in the second file"
    hidden = yard("kubeconfig", "gpu", "--context", "other", "--replace")
    assert (hidden.code, "uses the first file" in hidden.err) == (1, True)


@pytest.mark.parametrize("text", ["[1, 2]", "contexts: [a]", "a: ["])
def test_an_unusable_kubeconfig_is_one_error(
    text: str, file: Path, log: Path, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(text, encoding="utf-8")
    for path in (file, file.parent, file / "config"):
        monkeypatch.setenv("KUBECONFIG", str(path))
        ran = yard("kubeconfig", "gpu")
        assert (ran.code, ran.err.count("error: kubectl config")) == (2, 1), ran
    assert (file.read_text(encoding="utf-8"), asked(log)) == (text, [])


@pytest.mark.parametrize(("code", "exit_code"), [(255, 2), (254, 3), (253, 3)])
def test_a_failure_of_the_aws_cli_is_one_error(code: int, exit_code: int, file: Path, log: Path, yard: Yard) -> None:
    program = shutil.which("aws")
    assert program is not None
    Path(program).write_text(f"#!/bin/sh\necho; echo cannot open it >&2\nexit {code}\n", encoding="utf-8")
    ran = yard("kubeconfig", "gpu")
    assert (ran.code, "aws eks update-kubeconfig failed: cannot open it" in ran.err) == (exit_code, True)


def test_without_the_aws_cli_it_says_where_to_get_it(
    file: Path, log: Path, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only/kubectl").symlink_to(shutil.which("kubectl") or "")
    monkeypatch.setenv("PATH", str(tmp_path / "only"))
    ran = yard("kubeconfig", "gpu")
    assert (ran.code, "aws is not on PATH" in ran.err, "getting-started-install" in ran.err) == (
        2,
        True,
        True,
    )
    assert file.read_text(encoding="utf-8") == CONFIG


def test_a_cluster_that_is_not_active_is_not_added(file: Path, log: Path, gaps: Gaps, yard: Yard) -> None:
    gaps["eks", "describe_cluster"] = {"cluster": {"name": "gpu", "arn": ARN, "status": "CREATING"}}
    ran = yard("kubeconfig", "gpu")
    assert (ran.code, "the cluster gpu is CREATING" in ran.err, asked(log)) == (1, True, [])


def test_the_stand_in_does_what_the_aws_cli_does(
    file: Path, moto_server: str, stand_in: StandIn, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file, except for the address and certificate that AWS knows."""
    if shutil.which("aws") is None:
        pytest.skip("no AWS CLI on PATH: install it to compare the stand-in with it")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server)
    eks = boto3.client("eks", region_name="us-west-2")
    if "gpu" not in eks.list_clusters()["clusters"]:
        eks.create_cluster(name="gpu", roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["a", "b"]})
    written = []
    for _ in range(2):
        file.write_text(CONFIG, encoding="utf-8")
        for options in ([], ["--context", "other", "--replace", "--use"]):
            assert yard("kubeconfig", "gpu", *options).code == 0
            found = content(file)
            added = next(row["cluster"] for row in found["clusters"] if row["name"] == ARN)
            assert {"server", "certificate-authority-data"} == set(added)
            added.clear()
            written.append(found)
        stand_in("aws")
    eks.delete_cluster(name="gpu")
    assert written[:2] == written[2:]
    assert os.environ["FAKE_AWS_LOG"]
