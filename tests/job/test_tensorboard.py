"""The objects that `yard job tensorboard` applies, and the URL that it prints only if something answers."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard, workload
from tests.parts.ports import free_port
from tools.core.errors import UserError
from tools.job import tensorboard
from tools.kube.kubectl import Kubectl


def test_it_has_the_jobs_image_and_claim(world: NewWorld) -> None:
    made = world("p5/llama-3-1-8b")
    spec = made.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    for volume in spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            volume["persistentVolumeClaim"]["claimName"] = "scratch"
    found = tensorboard.manifests(workload(made.job))
    assert sorted(item["kind"] for item in found.objects) == ["Deployment", "NetworkPolicy", "Service"]
    (deployment,) = found.of_kind("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == spec["containers"][0]["image"]
    (claim,) = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert claim == {"claimName": "scratch", "readOnly": True}
    spec["volumes"] = [one for one in spec["volumes"] if "persistentVolumeClaim" not in one]
    with pytest.raises(UserError, match="mounts no claim"):
        tensorboard.manifests(workload(made.job))


def test_a_url_is_one_that_answers(world: NewWorld, cluster: Cluster) -> None:
    """The stand-in answers as TensorBoard does until it is stopped. With `mute` it ends at once."""
    home = cluster(world())
    port = free_port()
    with tensorboard.forwarded(Kubectl(), port, lambda _: None) as (url, directory):
        assert (url, directory) == (f"http://127.0.0.1:{port}", "/shared/runs")
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)):
        taken = pytest.raises(UserError, match=f"port {port} of this machine: Address already in use")
        with taken, tensorboard.forwarded(Kubectl(), port, lambda _: None):
            pass
    (home / "mute").touch()
    refused = pytest.raises(UserError, match="service/tensorboard: no such service")
    with refused, tensorboard.forwarded(Kubectl(), port, lambda _: None):
        pass


def test_exposed_only_the_proxy_is_reached(world: NewWorld) -> None:
    """TensorBoard listens on the pod's loopback; what asks for a password listens on all addresses."""
    made = world()
    found = tensorboard.manifests(workload(made.job), exposed=True)
    (deployment,) = found.of_kind("Deployment")
    (service,) = found.of_kind("Service")
    (policy,) = found.of_kind("NetworkPolicy")
    board, proxy = deployment["spec"]["template"]["spec"]["containers"]
    assert board["image"] == made.container(0)["image"] != proxy["image"]
    assert "--host=127.0.0.1" in board["args"]
    assert "readinessProbe" not in board, "the kubelet does not reach the loopback"
    (port,) = proxy["ports"]
    assert port["containerPort"] == tensorboard.HTTPS
    assert proxy["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert tensorboard.HTTPS in [one["port"] for one in service["spec"]["ports"]]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": tensorboard.HTTPS}]}]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert {one["secret"]["secretName"] for one in volumes if "secret" in one} == set(tensorboard.SECRETS)


def test_exposed_without_its_secrets_nothing_is_applied(world: NewWorld, cluster: Cluster) -> None:
    cluster(world())
    with pytest.raises(UserError, match="lacks secret tensorboard-tls") as refused:
        tensorboard.require_secrets(Kubectl(None, "team-a"))
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("kubectl create secret tls tensorboard-tls")
    assert refused.value.hint.endswith(" -n team-a")


def test_runs_of_this_machine_have_their_own_names(tmp_path: Path, yard: Yard) -> None:
    for name in ("before", "after", "other/before"):
        (tmp_path / name / "tensorboard").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
        (tmp_path / name / "tensorboard/events.out.tfevents.1.host").write_bytes(b"")
    port = free_port()
    runs = [tmp_path / "before", tmp_path / "after"]
    with tensorboard.on_this_machine(runs, port, lambda _: None) as (url, directory):
        assert {path.name: path.resolve() for path in Path(directory).iterdir()} == {
            run.name: run / "tensorboard" for run in runs
        }
        with urllib.request.urlopen(f"{url}/data/environment", timeout=30) as answer:
            assert json.load(answer)["data_location"] == directory
    (tmp_path / "after/profile").mkdir()
    (tmp_path / "after/profile/rank-00000.json.gz").write_bytes(b"")
    assert tensorboard.traces(runs) == [tmp_path / "after/profile/rank-00000.json.gz"]
    same = [str(runs[0]), str(tmp_path / "other/before")]
    assert "two runs are called before" in yard.err("tensorboard", *same, code=2)
    assert "none is a run on this machine" in yard.err("tensorboard", "one", "two", code=2)
