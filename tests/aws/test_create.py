"""create, adopt and scale: a stand-in for eksctl creates resources in a moto server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.aws.account import ROLE
from tests.aws.conftest import Change, Gaps, StandIn, Yard
from tests.aws.eks_state import Associations
from tests.aws.test_access import simulator
from tools.aws.session import Session
from tools.cluster import create
from tools.core.errors import UserError


@pytest.fixture
def eks(moto_server: str, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Any:
    """EKS in an empty account of the server, with the stand-in for eksctl on PATH."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server)
    stand_in("eksctl")
    client = boto3.client("eks", region_name="us-west-2")
    for name in client.list_clusters()["clusters"]:
        for group in client.list_nodegroups(clusterName=name)["nodegroups"]:
            client.delete_nodegroup(clusterName=name, nodegroupName=group)
        client.delete_cluster(name=name)
    return client


def called(tmp_path: Path) -> list[str]:
    """Return what eksctl had to create, in order."""
    log = tmp_path / "eksctl.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line)[1] for line in lines]


def test_a_cluster_is_created_and_checked(eks: Any, yard: Yard, own_steps: None, gaps: Gaps, tmp_path: Path) -> None:
    Associations(gaps)
    simulator(gaps)
    dry = yard("create", "cpu-demo", "--dry-run")
    assert dry.out.startswith("eksctl create cluster --config-file=clusters/cpu-demo/eksctl.yaml")
    assert (dry.code, called(tmp_path)) == (0, [])
    ran = yard("create", "cpu-demo")
    assert ran.code == 0, ran.err
    assert "building cluster stack" in ran.err
    assert "cluster cpu-demo: ACTIVE, Kubernetes 1.35" in ran.out
    assert "node group cpu: ACTIVE, 2 nodes" in ran.out
    assert "node group system: ACTIVE, 2 nodes" in ran.out


def test_a_failed_run_is_continued(eks: Any, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EKSCTL_FAIL", "cpu")
    failed = yard("create", "cpu-demo")
    assert (failed.code, "no capacity for cpu" in failed.err) == (1, True)
    assert eks.list_nodegroups(clusterName="cpu-demo")["nodegroups"] == ["system"]
    monkeypatch.delenv("FAKE_EKSCTL_FAIL")
    words = yard("create", "cpu-demo", "--dry-run").out.splitlines()
    assert [line.split()[2] for line in words] == ["nodegroup", "accessentry", "addon", "identity"]
    # The commands stop at pod identities, for which moto lacks calls; the nodes exist by then.
    again = yard("create", "cpu-demo")
    assert called(tmp_path) == ["cluster", "nodegroup", "accessentry", "addon"]
    assert sorted(eks.list_nodegroups(clusterName="cpu-demo")["nodegroups"]) == ["cpu", "system"]
    assert again.code == 3, "the exit code of that command"
    assert "yard cluster identity failed: eks:" in again.err, "its error without the hint"


def test_the_exit_code_of_eksctl_is_not_enough(eks: Any, yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "bin" / "eksctl").write_text("#!/bin/sh\necho all done\n", encoding="utf-8")
    ran = yard("create", "cpu-demo")
    assert (ran.code, "the cluster cpu-demo is missing" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("states", "waited", "said"),
    [
        (["ACTIVE"], 0, None),
        (["CREATING", "ACTIVE"], 1, None),
        (["UPDATING", "UPDATING"], 1, "is UPDATING"),
        (["CREATING", "FAILED"], 1, "yard cluster down cpu-demo"),
        (["DELETING"], 0, "is DELETING"),
    ],
)
def test_a_control_plane_that_is_being_created_is_waited_for(
    session: Session,
    change: Change,
    gaps: Gaps,
    monkeypatch: pytest.MonkeyPatch,
    states: list[str],
    waited: int,
    said: str | None,
) -> None:
    left, waits = list(states), []
    notes: list[str] = []
    gaps["eks", "describe_cluster"] = lambda **_: {"cluster": {"name": "cpu-demo", "status": left.pop(0)}}
    monkeypatch.setattr(Session, "wait", lambda *given, **_: waits.append(given))
    if said is None:
        create.settle(session, change("cpu-demo"), notes.append)
    else:
        with pytest.raises(UserError) as caught:
            create.settle(session, change("cpu-demo"), notes.append)
        assert said in f"{caught.value.message} {caught.value.hint}"
    assert (len(waits), len(notes), left) == (waited, waited, [])


def test_without_eksctl_the_hint_is_its_installation(eks: Any, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    ran = yard("create", "cpu-demo")
    assert (ran.code, "eksctl is not on PATH" in ran.err, "installation" in ran.err) == (2, True, True)
    assert yard("create", "cpu-demo", "--dry-run").code == 0


def test_a_foreign_cluster_is_not_touched(eks: Any, yard: Yard, tmp_path: Path) -> None:
    eks.create_cluster(name="cpu-demo", roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["a", "b"]})
    ran = yard("create", "cpu-demo")
    assert (ran.code, "is not tagged trainyard/cluster=us-west-2/cpu-demo" in ran.err) == (2, True)
    assert called(tmp_path) == []


def test_a_stale_config_is_refused(eks: Any, yard: Yard, change: Change, tmp_path: Path) -> None:
    change("cpu-demo", NODES_CPU="m5.4xlarge 2-2 us-west-2a")
    ran = yard("create", "cpu-demo")
    assert (ran.code, "is out of date" in ran.err, called(tmp_path)) == (2, True, [])


def test_adopting_only_adds(eks: Any, yard: Yard, tmp_path: Path) -> None:
    absent = yard("adopt", "gpu-hyperpod", "--dry-run")
    assert (absent.code, "the cluster gpu-hyperpod-eks does not exist" in absent.err) == (2, True)
    eks.create_cluster(name="gpu-hyperpod-eks", roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["a", "b"]})
    words = yard("adopt", "gpu-hyperpod", "--dry-run").out.splitlines()
    assert [line.split()[2] for line in words] == ["accessentry", "addon", "identity"]
    assert yard("create", "gpu-hyperpod").code == 2
    assert yard("adopt", "cpu-demo").code == 2


def test_scale_within_bounds(eks: Any, yard: Yard, change: Change) -> None:
    change("cpu-demo", NODES_CPU="m5.2xlarge 0-3 us-west-2a")
    yard("config", "cpu-demo")
    eks.create_cluster(name="cpu-demo", roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["a", "b"]})
    bounds = {"minSize": 0, "maxSize": 3, "desiredSize": 0}
    eks.create_nodegroup(
        clusterName="cpu-demo", nodegroupName="cpu", nodeRole=ROLE, subnets=["a"], scalingConfig=bounds
    )

    def desired() -> int:
        group = eks.describe_nodegroup(clusterName="cpu-demo", nodegroupName="cpu")["nodegroup"]
        return int(group["scalingConfig"]["desiredSize"])

    dry = yard("scale", "cpu-demo", "cpu", "3", "--dry-run")
    assert (dry.code, "desiredSize: 0 -> 3" in dry.out, desired()) == (1, True, 0)
    assert "1.15 $/h" in dry.out
    assert (yard("scale", "cpu-demo", "cpu", "3").code, desired()) == (0, 3)
    assert "already 3 nodes" in yard("scale", "cpu-demo", "cpu", "3", "--dry-run").out
    less = yard("scale", "cpu-demo", "cpu", "2", "--dry-run", "--json")
    assert (less.code, json.loads(less.out)["changes"]) == (1, ["desiredSize: 3 -> 2"])
    assert yard("scale", "cpu-demo", "cpu", "4").code == 2
    assert "did you mean cpu?" in yard("scale", "cpu-demo", "cup", "1").err
    assert desired() == 3
