"""A pod as a local process: the kubelet's rules for variables, volumes and paths; addresses and devices."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.core.errors import UserError
from tools.kube.manifests import Manifests
from tools.simulator import environment, volumes
from tools.simulator.local_pod import LocalPod, local_pods
from tools.workload import operator_pods

Job = Callable[..., dict[str, Any]]

CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "c"},
    "data": {"A": "1", "not ok": "2"},
}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"token": "aGlkZGVu"}}


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return container


def resolved(job: dict[str, Any], share: int = 1) -> environment.Environment:
    pod = operator_pods.pods(job)[1]
    return environment.resolve(pod, pod.container, Manifests("here", [job, CONFIG, SECRET]), share)


def locally(job: dict[str, Any], tmp_path: Path, user: dict[str, str] | None = None) -> list[LocalPod]:
    pods = operator_pods.pods(job)
    user = {"PATH": os.environ["PATH"], **(user or {})}
    return local_pods(pods, Manifests("here", [job, CONFIG, SECRET]), tmp_path / "local", tmp_path, user)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NONE)", "$(NONE)"),
        ("$(A", "$(A"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(EMPTY)", ""),
    ],
)
def test_expansion(text: str, value: str) -> None:
    assert environment.expand(text, {"A": "1", "EMPTY": ""}) == value


def test_order_of_variables(make_job: Job) -> None:
    job = make_job()
    container_of(job).update(
        envFrom=[
            {"prefix": "P_", "configMapRef": {"name": "c"}},
            {"secretRef": {"name": "gone", "optional": True}},
        ],
        env=[
            {"name": "EARLY", "value": "$(LATE)"},
            {"name": "LATE", "value": "$(P_A)"},
            {"name": "P_A", "value": "again $(P_A)"},
            {"name": "PET_NNODES", "value": "7"},
        ],
    )
    values = resolved(job).values
    assert values["EARLY"] == "$(LATE)"  # nothing that stands behind is known
    assert values["LATE"] == "1"
    assert values["P_A"] == "again 1"
    assert "P_not ok" not in values
    assert values["PET_NNODES"] == "2:2"  # the operator's entry stands last


def test_references(make_job: Job) -> None:
    job = make_job(name="refs")
    container = container_of(job)
    container["resources"] = {"limits": {"memory": "3Gi"}, "requests": {"cpu": "4"}}

    def field(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    def resource(name: str, **more: str) -> dict[str, Any]:
        return {"resourceFieldRef": {"resource": name, **more}}

    sources = {
        "POD": field("metadata.name"),
        "JOB": field("metadata.labels['training.kubeflow.org/job-name']"),
        "NONE": field("metadata.annotations['none']"),
        "NODE": field("spec.nodeName"),
        "IP": field("status.podIP"),
        "CPUS": resource("requests.cpu"),
        "MILLIS": resource("requests.cpu", divisor="1m"),
        "MEMORY": resource("requests.memory", divisor="1Mi"),
        "TOKEN": {"secretKeyRef": {"name": "s", "key": "token"}},
        "LACKS": {"secretKeyRef": {"name": "s", "key": "other", "optional": True}},
        "KEY": {"configMapKeyRef": {"name": "c", "key": "A"}},
    }
    container["env"] = [{"name": name, "valueFrom": source} for name, source in sources.items()]
    found = resolved(job, share=3)
    own = {name: found.values.get(name) for name in sources}
    assert own == {
        "POD": "refs-worker-1",
        "JOB": "refs",
        "NONE": "",
        "NODE": socket.gethostname(),
        "IP": "127.0.0.1",
        "CPUS": "3",  # this machine's share, not the 4 that are asked of a cluster
        "MILLIS": "3000",
        "MEMORY": "3072",
        "TOKEN": "hidden",
        "LACKS": None,
        "KEY": "1",
    }
    assert found.secret == {"TOKEN"}
    assert found.missing == []


@pytest.mark.parametrize("limits", [{}, {"limits": {"memory": "0"}}])
def test_without_a_limit_memory_is_the_machines(limits: dict[str, Any], make_job: Job) -> None:
    """A kubelet merges what the node has into the limits that a container lacks; a request stays 0."""
    job = make_job()
    container = container_of(job)
    container["resources"] = limits
    container["env"] = [
        {"name": name, "valueFrom": {"resourceFieldRef": {"resource": f"{name}.memory", "divisor": "1Gi"}}}
        for name in ("limits", "requests")
    ]
    values = resolved(job).values
    assert int(values["limits"]) > 0
    assert values["requests"] == "0"


def test_what_is_not_optional_is_missed(make_job: Job) -> None:
    job = make_job()
    container_of(job)["env"] = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "Z"}}}]
    assert resolved(job).missing == ["ConfigMap c with key Z (for X)"]


def test_cores_are_shared_and_never_none() -> None:
    cores = environment.cores()
    assert environment.core_share(1) == cores
    assert environment.core_share(10 * cores) == 1


def test_addresses_grow_with_the_pods_index_as_texts() -> None:
    found = environment.addresses(250)
    assert sorted(found) == found
    assert len(set(found)) == 250


def test_paths_are_translated_by_components_and_longest_mount_first() -> None:
    mounts = [
        volumes.Mount("/shared/data", Path("/here/d"), "x"),
        volumes.Mount("/shared", Path("/here/s"), "x"),
        volumes.Mount("/tmp", Path("/here/t"), "x"),
    ]
    translated = volumes.Volumes(mounts).translate
    assert translated("/shared/data/x") == "/here/d/x"
    assert translated("/shared/database") == "/here/s/database"
    assert translated("--out=/shared/runs:/tmp") == "--out=/here/s/runs:/here/t"
    assert translated("cd /tmp; ls '/shared'") == "cd /here/t; ls '/here/s'"
    for same in ("/tmpfile", "s3://bucket/shared", "/usr/shared/x", "a/tmp/b"):
        assert translated(same) == same


def test_volumes_become_files(make_job: Job, tmp_path: Path) -> None:
    job = make_job(name="vol")
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    items = [{"key": "A", "path": "sub/a"}]
    spec["volumes"] += [
        {
            "name": "both",
            "projected": {"sources": [{"configMap": {"name": "c", "items": items}}, {"secret": {"name": "s"}}]},
        },
        {"name": "other", "persistentVolumeClaim": {"claimName": "other"}},
        {"name": "host", "hostPath": {"path": "/etc"}},
        {"name": "none", "secret": {"secretName": "gone", "optional": True}},
    ]
    spec["containers"][0]["volumeMounts"] += [
        {"name": "both", "mountPath": "/both/"},
        {"name": "host", "mountPath": "/host"},
        {"name": "other", "mountPath": "/other", "subPath": "below"},
    ]
    manifests = Manifests("here", [job, CONFIG, SECRET])
    pod = operator_pods.pods(job)[0]
    directory = tmp_path / "local" / "pods" / pod.name
    (directory / "tmp").mkdir(parents=True)
    (directory / "tmp" / "stale").touch()
    assert volumes.materialise(pod, manifests, tmp_path / "local", directory) == []
    assert (directory / "both" / "sub" / "a").read_text() == "1"
    assert (directory / "both" / "token").read_text() == "hidden"
    assert not (directory / "tmp" / "stale").exists()
    assert list((directory / "host").iterdir()) == []
    local = {mount.path: mount for mount in locally(job, tmp_path)[0].mounts}
    assert local["/shared"].local == tmp_path / "local"
    assert local["/other"].local == tmp_path / "local" / "claims" / "other" / "below"
    assert local["/both"].kind == "ConfigMap c + Secret s"
    assert "an empty directory here" in local["/host"].kind


def test_pod_names_become_this_machine_only_where_they_are_addresses(make_job: Job, tmp_path: Path) -> None:
    env = {"MY_HOST": "net-worker-1.ns.svc", "NAME": "net-worker-0", "LOG": "/shared/net-worker-0/x"}
    words = [
        "python",
        "--at=net-worker-0:1",
        "tcp://net-worker-0.ns:2",
        "/shared/net-worker-0/y",
        "net-worker-01",
    ]
    first = locally(make_job(name="net", env=env, command=words, port=5), tmp_path)[0]
    values = first.environment
    assert values["PET_RDZV_ENDPOINT"] == "127.0.0.1:5"
    assert values["MY_HOST"] == "127.0.0.1"
    assert values["NAME"] == "net-worker-0"
    assert values["LOG"] == f"{tmp_path}/local/net-worker-0/x"
    assert first.argv[1:] == [
        "--at=127.0.0.1:1",
        "tcp://127.0.0.1:2",
        f"{tmp_path}/local/net-worker-0/y",
        "net-worker-01",
    ]
    assert (values["PET_LOCAL_ADDR"], values["HOSTNAME"]) == ("127.0.0.100", "net-worker-0")


def test_python_is_this_one_and_the_shell_stays_outside(make_job: Job, tmp_path: Path) -> None:
    user = {
        "LANG": "C.UTF-8",
        "SECRET_OF_MINE": "x",
        "RANK": "3",
        "HOME": "/home/me",
        "LD_LIBRARY_PATH": "/l",
        "TRAINYARD_SIGNING_KEY_FILE": "key",
    }
    first = locally(make_job(), tmp_path, user)[0]
    assert Path(first.argv[0]).parent == Path(sys.executable).parent
    values = first.environment
    assert "SECRET_OF_MINE" not in values
    assert "RANK" not in values
    assert values["HOME"] == str(tmp_path / "local" / "pods" / "job-worker-0" / "tmp")
    assert (values["LANG"], values["LD_LIBRARY_PATH"]) == ("C.UTF-8", "/l")
    assert values["TRAINYARD_SIGNING_KEY_FILE"] == str(Path.cwd() / "key")
    assert values["PATH"].startswith(f"{Path(sys.executable).parent}:")


def test_gpus_are_shared_out_as_a_device_plugin_would(make_job: Job, tmp_path: Path) -> None:
    job = make_job()
    assert [pod.environment["CUDA_VISIBLE_DEVICES"] for pod in locally(job, tmp_path)] == ["", ""]
    container_of(job)["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    user = {"CUDA_VISIBLE_DEVICES": "7,5,3,1,0"}
    assert [pod.environment["CUDA_VISIBLE_DEVICES"] for pod in locally(job, tmp_path, user)] == ["7,5", "3,1"]
    with pytest.raises(UserError, match=r"2 pods ask for 4 GPUs \(nvidia.com/gpu\), this machine has 3"):
        locally(job, tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1,2"})


def test_working_directory_below_a_mount_else_the_checkout(make_job: Job, tmp_path: Path) -> None:
    job = make_job()
    assert locally(job, tmp_path)[0].cwd == tmp_path
    container_of(job)["workingDir"] = "/shared/code"
    assert locally(job, tmp_path)[0].cwd == tmp_path / "local" / "code"
    container_of(job)["workingDir"] = "/workspace"
    assert locally(job, tmp_path)[0].cwd == tmp_path


def test_a_command_only_the_image_knows_is_an_error(make_job: Job, tmp_path: Path) -> None:
    job = make_job()
    del container_of(job)["command"]
    with pytest.raises(UserError, match="has no command: only its image knows it"):
        locally(job, tmp_path)
