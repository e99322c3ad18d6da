"""What `yard job tensorboard` applies for a job, and that it says a URL only when something answers there."""

from __future__ import annotations

import socket

import pytest

from tests.job.conftest import Cluster, NewWorld
from tools.errors import UserError
from tools.job import tensorboard
from tools.kubectl import Kubectl


def test_it_has_the_jobs_image_and_claim(world: NewWorld) -> None:
    made = world("p5/llama-3-1-8b")
    spec = made.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    for volume in spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            volume["persistentVolumeClaim"]["claimName"] = "scratch"
    found = tensorboard.manifests(made.job)
    assert sorted(item["kind"] for item in found.objects) == ["Deployment", "NetworkPolicy", "Service"]
    (deployment,) = found.of_kind("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == spec["containers"][0]["image"]
    (claim,) = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert claim == {"claimName": "scratch", "readOnly": True}
    spec["volumes"] = [one for one in spec["volumes"] if "persistentVolumeClaim" not in one]
    with pytest.raises(UserError, match="mounts no claim"):
        tensorboard.manifests(made.job)


def test_a_url_is_one_that_answers(world: NewWorld, cluster: Cluster) -> None:
    """The stand-in answers as TensorBoard does, until it is ended; with `mute` it ends at once."""
    home = cluster(world())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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
    refused = pytest.raises(UserError, match="service/tensorboard: nobody there")
    with refused, tensorboard.forwarded(Kubectl(), port, lambda _: None):
        pass
