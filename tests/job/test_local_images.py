"""`yard job submit` warns of images that no node can pull, and names the nodes that lack them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.job.conftest import NewWorld
from tools.core.errors import UserError
from tools.job import submit
from tools.kube.images import is_local
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests

IMAGE = "localhost/trainyard/trainer-cpu:0.1.0"


def node(name: str, *images: str, kind: str = "m5.xlarge") -> dict[str, Any]:
    labels = {"node.kubernetes.io/instance-type": kind}
    listed = [{"names": [f"{image}@sha256:{'0a' * 32}", image]} for image in images]
    return {"metadata": {"name": name, "labels": labels}, "status": {"images": listed}}


def warned(world: NewWorld, monkeypatch: pytest.MonkeyPatch, answer: Any, image: str = IMAGE) -> list[str]:
    made = world()
    template = made.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    template["containers"][0]["image"] = image
    template.pop("initContainers", None)
    template.pop("affinity", None)
    template["nodeSelector"] = {"node.kubernetes.io/instance-type": "m5.xlarge"}

    def items(self: Kubectl, *words: str, **_: Any) -> Any:
        assert words == ("nodes",)
        if isinstance(answer, UserError):
            raise answer
        return answer

    monkeypatch.setattr(Kubectl, "items", items)
    return list(submit.unpulled(Kubectl(), Manifests("cell", [made.job])))


def test_nodes_without_the_image_are_named(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("a", IMAGE), node("b"), node("c", "busybox"), node("gpu", kind="p5.48xlarge")]
    start = f"no node can pull {IMAGE} (localhost is the node itself); "
    assert warned(world, monkeypatch, nodes) == [start + "not listed by the kubelet of b, c"]
    many = [node(f"n{number}") for number in range(8)]
    assert warned(world, monkeypatch, many)[0].endswith("n0, n1, n2, n3, n4 and 3 more")
    assert warned(world, monkeypatch, [node("a", IMAGE)]) == [], "control: every node for the pods has it"


def test_unknown_nodes_are_said_to_be_unknown(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = UserError("kubectl get: nodes is forbidden", code=3)
    assert "is unknown: kubectl get: nodes is forbidden" in warned(world, monkeypatch, denied)[0]
    others = [node("gpu", kind="p5.48xlarge")]
    assert "is unknown: no node fits the pods" in warned(world, monkeypatch, others)[0]


def test_an_image_of_a_registry_asks_no_cluster(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = UserError("the cluster was asked")
    assert warned(world, monkeypatch, asked, "registry.example/trainer-cpu:0.1.0") == []


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        *((f"{name}/a:1", True) for name in ("localhost", "localhost:5000", "127.0.0.1:5000", "kind.local")),
        *((f"{name}/a:1", True) for name in ("ko.local", "[::1]:5000", "127.1.2.3")),
        *((name, False) for name in ("localhost", "a/localhost/b", "localhost.example/a", "127.example/a")),
        *((name, False) for name in ("registry.example:5000/a", "busybox", "mykind.local/a")),
    ],
)
def test_a_registry_of_loopback_is_local(image: str, expected: bool) -> None:
    assert is_local(image) == expected
