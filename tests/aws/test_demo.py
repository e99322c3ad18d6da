"""The commands of `yard demo` on clusters that this machine cannot have: kind, minikube, k3s, others."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.aws.conftest import StandIn
from tools import cli
from tools.cluster import demo
from tools.cluster.demo import Demo
from tools.cluster.snapshot import CLASSES, CRD, JOBS, Snapshot
from tools.core.errors import UserError

IMAGE = "localhost/trainyard/trainer-cpu:0.1.0"
READY = [{"type": "Ready", "status": "True"}]
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


def snapshot(
    provider: str = "kind://docker/lab/lab-control-plane",
    labels: dict[str, str] | None = None,
    images: list[str] | None = None,
    provisioner: str = "rancher.io/local-path",
    more: dict[str, Any] | None = None,
) -> Snapshot:
    status = {"conditions": READY, "images": [{"names": images or []}]}
    node = {
        "metadata": {"name": "n", "labels": labels or {}},
        "spec": {"providerID": provider},
        "status": status,
    }
    storage = {"metadata": {"name": "standard", "annotations": DEFAULT}, "provisioner": provisioner}
    objects: dict[str, Any] = {"nodes": [node, node], "namespaces": [], CRD: [], CLASSES: [storage], JOBS: []}
    return Snapshot(objects | (more or {}))


def named(*names: str, **labels: str) -> list[dict[str, Any]]:
    marks = {"trainyard/demo": labels["mark"]} if "mark" in labels else {}
    return [{"metadata": {"name": name, "labels": marks, "namespace": "other"}} for name in names]


def lines(steps: Any) -> list[str]:
    return [str(step) for step in steps]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that knows no image, first on PATH."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def test_an_empty_kind_cluster_gets_everything(docker: Path) -> None:
    found = lines(Demo("kind-lab").platform(snapshot()))
    assert found == [
        "kubectl --context=kind-lab apply --server-side -k base/plugins/training-operator",
        "kubectl --context=kind-lab label namespace kubeflow trainyard/demo=operator --overwrite",
        "kubectl --context=kind-lab rollout status deployment/training-operator -n kubeflow --timeout=300s",
        "kubectl --context=kind-lab create -f tools/cluster/demo.yaml",
        "kubectl --context=kind-lab apply --server-side -n trainyard-demo -k base/storage/single-node",
        "yard image build trainer-cpu",
        f"kind load docker-image {IMAGE} --name lab",
    ]


@pytest.mark.parametrize(
    ("seen", "last"),
    [
        (snapshot("", {"minikube.k8s.io/name": "mini"}), f"minikube image load {IMAGE} --profile mini"),
        (snapshot(images=[IMAGE]), "-k base/storage/single-node"),
        (snapshot(images=[IMAGE], provisioner="nfs.csi.k8s.io"), "-k base/storage/default-class"),
    ],
)
def test_the_image_and_the_claim_are_those_of_the_cluster(seen: Snapshot, last: str, docker: Path) -> None:
    assert lines(Demo("c").platform(seen))[-1].endswith(last)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (snapshot(more={"nodes": []}), "no node of the cluster is ready"),
        (snapshot("k3s://n"), "only kind and minikube can load it"),
        (snapshot(more={CLASSES: []}), "no default storage class"),
        (snapshot(more={"namespaces": named(demo.NAME)}), "exists and is not of a demo"),
        (snapshot(more={"namespaces": named("kubeflow")}), "the namespace kubeflow exists"),
    ],
)
def test_what_is_not_the_demos_is_not_used(seen: Snapshot, said: str, docker: Path) -> None:
    with pytest.raises(UserError, match=said):
        lines(Demo("c").platform(seen))


def test_only_what_the_demo_made_is_removed() -> None:
    ours = named(demo.NAME, mark="namespace") + named("kubeflow", mark="operator")
    deleted = lines(Demo("c").remove(snapshot(more={"namespaces": ours, CRD: named(JOBS)})))
    assert deleted[0] == "kubectl --context=c delete pytorchjobs --all -n trainyard-demo"
    assert deleted[-1] == "kubectl --context=c delete -k base/plugins/training-operator"
    assert "kubectl --context=c delete namespace trainyard-demo" in deleted
    used = snapshot(more={"namespaces": ours, JOBS: named("theirs")})
    assert not any("delete -k" in line for line in lines(Demo("c").remove(used)))
    assert "because other jobs use it: other/theirs" in " ".join(Demo("c").left(used))
    theirs = named(demo.NAME) + named("kubeflow")
    assert lines(Demo("c").remove(snapshot(more={"namespaces": theirs}))) == []
    assert lines(Demo("kind-trainyard-demo").remove(snapshot())) == ["kind delete cluster --name trainyard-demo"]


def test_without_a_cluster_and_kind_one_sentence_says_what_to_install(
    docker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho \'{"current-context": ""}\'\n', encoding="utf-8")
    kubectl.chmod(0o755)
    assert cli.invoke(["demo"]) == 2
    said = capsys.readouterr().err
    assert "no cluster for the demo: the kubeconfig has no current context, and PATH has no kind" in said
    assert "install Docker and kind" in said


def test_a_new_cluster_is_made_with_kind(stand_in: StandIn, docker: Path) -> None:
    kind = docker.with_name("kind")
    kind.write_text("#!/bin/sh\n", encoding="utf-8")
    kind.chmod(0o755)
    made = demo.cluster(new=True)
    assert made is not None
    assert shlex.split(str(made)) == ["kind", "create", "cluster", "--name", demo.NAME, "--wait=120s"]
