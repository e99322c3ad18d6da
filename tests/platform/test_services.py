"""Services around jobs: TensorBoard, the debug pod, data preparation and the all-reduce test."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.parts.ports import free_port
from tests.platform.conftest import of_kind
from tools.cells.kustomize import Renderer
from tools.core import repo
from tools.core.verdict import State
from tools.facts.instances import HYPERPOD_PREFIX, INSTANCES
from tools.kube.manifests import Manifests
from tools.kube.selectors import REQUIRED
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring
from tools.workload import operator_admission
from tools.workload.pytorchjob import PyTorchJob
from training import prepare
from training.data.token_dataset import TokenDataset

Object = dict[str, Any]
Parse = Callable[[str], list[Object]]

ROOT = repo.root()
SERVICES = ROOT / "base/services"
CELLS = ("cpu/llama-tiny", "p5/llama-3-1-8b")


Named = dict[str, Object]


@pytest.fixture(scope="module")
def service(above: Callable[..., list[Object]]) -> Callable[[str, str], Named]:
    """A function from a cell and a service that is a Component to the objects by kind and name."""
    return lambda cell, name: named(above(cell, f"base/services/{name}"))


@pytest.fixture(scope="module")
def plain(renderer: Renderer, objects: Parse) -> Callable[[str], Named]:
    """A function from a service without a cell to its objects."""
    return lambda name: named(objects(renderer.build(SERVICES / name)))


def named(made: list[Object]) -> Named:
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in made}


def pods(made: Named) -> list[Object]:
    found = []
    for one in made.values():
        spec = one.get("spec", {})
        if one["kind"] == "Pod":
            found.append(spec)
        elif one["kind"] == "PyTorchJob":
            found += [replica["template"]["spec"] for replica in spec["pytorchReplicaSpecs"].values()]
        elif "template" in spec:
            found.append(spec["template"]["spec"])
    return found


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard-exposed", "debug"])
def test_services_alone(
    name: str,
    plain: Callable[[str], Named],
    loose: Callable[[Object], list[str]],
    faults: Callable[[Object], list[str]],
) -> None:
    check(plain(name), loose, faults)


@pytest.mark.parametrize("name", ["prepare", "nccl-test"])
@pytest.mark.parametrize("cell", CELLS)
def test_services_above_a_cell(
    name: str,
    cell: str,
    service: Callable[[str, str], Named],
    loose: Callable[[Object], list[str]],
    faults: Callable[[Object], list[str]],
) -> None:
    check(service(cell, name), loose, faults)


def check(made: dict[str, Object], loose: Callable[[Object], list[str]], faults: Callable[[Object], list[str]]) -> None:
    """Check objects by their schemas, the restricted standard, and each other."""
    assert {name: faults(one) for name, one in made.items() if faults(one)} == {}
    assert evaluate(Manifests("service", list(made.values()))).of(State.FAIL) == []
    assert pods(made)
    for pod in pods(made):
        assert loose(pod) == []
        assert "${" not in repr(pod)
        for container in pod["containers"]:
            assert re.search(r":\d+\.\d+\.\d+$", container["image"])
            resources = container["resources"]
            equal = resources["limits"]["memory"] == resources["requests"]["memory"]
            assert equal or "cpu" in resources["requests"]
        mounted = {one["name"] for container in pod["containers"] for one in container["volumeMounts"]}
        assert mounted == {one["name"] for one in pod["volumes"]}
        for name in config_maps(pod):
            assert f"ConfigMap/{name}" in made
        if "serviceAccountName" in pod:
            assert f"ServiceAccount/{pod['serviceAccountName']}" in made


def config_maps(pod: Object) -> list[str]:
    sources = [source for one in pod["volumes"] for source in one.get("projected", {}).get("sources", [one])]
    return [source["configMap"]["name"] for source in sources if "configMap" in source]


def test_the_restricted_check_sees_a_loosened_pod(
    plain: Callable[[str], Named], loose: Callable[[Object], list[str]]
) -> None:
    """Control: each removed line of a restricted pod is reported."""
    (pod,) = pods(plain("debug"))
    for path, expected in {
        ("securityContext", "runAsNonRoot"): "runAsNonRoot",
        ("securityContext", "seccompProfile"): "seccompProfile",
        ("containers", 0, "securityContext", "capabilities"): "capabilities",
        ("containers", 0, "securityContext", "allowPrivilegeEscalation"): "allowPrivilegeEscalation",
        ("automountServiceAccountToken",): "token",
    }.items():
        copy = json.loads(json.dumps(pod))
        at = copy
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        assert loose(copy) == [expected]
    assert loose({**pod, "hostNetwork": True, "volumes": [{"name": "x", "hostPath": {"path": "/"}}]}) == [
        "hostNetwork",
        "volume hostPath",
    ]


def test_tensorboard_reads_only_and_is_not_open(plain: Callable[[str], Named]) -> None:
    made = plain("tensorboard")
    (pod,) = pods(made)
    (container,) = pod["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert mounts["shared"]["readOnly"] is volumes["shared"]["persistentVolumeClaim"]["readOnly"] is True
    service, policy = (
        of_kind(made.values(), "Service")["spec"],
        of_kind(made.values(), "NetworkPolicy")["spec"],
    )
    labels = of_kind(made.values(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["type"] == "ClusterIP"
    assert service["selector"].items() <= labels.items()
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"trainyard/tensorboard-client": "true"}}}]
    (port,) = container["ports"]
    assert service["ports"][0]["targetPort"] == port["name"]
    assert rule["ports"][0]["port"] == port["containerPort"] == service["ports"][0]["port"]


def test_tensorboard_takes_its_arguments_and_answers(tmp_path: Path, plain: Callable[[str], Named]) -> None:
    """The container's command line, with a local directory and a free port, serves the list of runs."""
    (pod,) = pods(plain("tensorboard"))
    (container,) = pod["containers"]
    port = free_port()
    swap = {
        "--logdir=/shared/runs": f"--logdir={tmp_path}",
        "--port=6006": f"--port={port}",
        "--host=0.0.0.0": "--host=127.0.0.1",
    }
    arguments = [swap.pop(one, one) for one in container["args"]]
    assert swap == {}
    program = Path(sys.executable).parent / container["command"][0]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = next((line for line in process.stdout if f":{port}" in line), None)
        assert said is not None
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"GET /data/runs HTTP/1.0\r\n\r\n")
            assert connection.recv(64).split()[1] == b"200"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("cell", CELLS)
def test_preparation_is_the_cells_own_pod_on_a_cpu_node(
    cell: str, service: Callable[[str, str], Named], renderer: Renderer, objects: Parse
) -> None:
    """Same image, configuration and data directory as the cell, so the same tokenizer and shards."""
    made = service(cell, "prepare")
    job = of_kind(made.values(), "Job")
    (pod,) = pods(made)
    (container,) = pod["containers"]
    of_cell = named(objects(renderer.build(ROOT / "overlays" / cell)))
    (trainer,) = pods(of_cell)
    (trains,) = trainer["containers"]
    assert not [name for name in made if name.startswith(("PyTorchJob/", "NetworkPolicy/"))]
    assert job["metadata"]["name"] == f"{cell.replace('/', '-')}-train-prepare"
    assert container["image"] == trains["image"]
    assert [made[f"ConfigMap/{name}"]["data"] for name in config_maps(pod)] == [
        of_cell[f"ConfigMap/{name}"]["data"] for name in config_maps(trainer)
    ]
    data = {one["name"]: one.get("value") for one in trains["env"]}["TRAINYARD_DATA"]
    assert container["args"][container["args"].index("--data") + 1] == data
    assert container["args"][container["args"].index("--config") + 1] == trains["args"][-1]
    (term,) = pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    (rule,) = term["matchExpressions"]
    names = {machine.name for machine in INSTANCES.values() if machine.device_resource}
    assert rule["operator"] == "NotIn"
    assert set(rule["values"]) == names | {HYPERPOD_PREFIX + name for name in names}
    assert "tolerations" not in pod
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_preparation_runs_by_the_jobs_own_command(
    tmp_path: Path, service: Callable[[str, str], Named], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The Job's arguments, with local directories and another text, write a dataset."""
    made = service("cpu/llama-tiny", "prepare")
    (pod,) = pods(made)
    (container,) = pod["containers"]
    config, text = tmp_path / "config", tmp_path / "text"
    for directory in (config, text):
        directory.mkdir()
    for number in range(60):
        (text / f"{number}.txt").write_text(f"text {number} of some, {number**3}\n" * 40, encoding="utf-8")
    for name in config_maps(pod):
        for file, content in made[f"ConfigMap/{name}"]["data"].items():
            source = content.replace("source: python-stdlib", f"source: {text}").replace(
                "vocab_size: 4096", "vocab_size: 300"
            )
            (config / file).write_text(source, encoding="utf-8")
    assert container["command"] == ["python"]
    assert container["args"][:2] == ["-m", prepare.__name__]
    swap = {"/etc/trainyard": str(config), "/shared/data": str(tmp_path / "data")}
    monkeypatch.setattr(sys, "argv", ["prepare", *(swap.get(one, one) for one in container["args"][2:])])
    prepare.main()
    (dataset,) = [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert len(TokenDataset.open(dataset, "train", 64)) > 0  # as the trainer reads it
    assert dataset.name in capsys.readouterr().out


@pytest.mark.parametrize("cell", CELLS)
def test_all_reduce_uses_what_the_cell_would_use(
    cell: str, service: Callable[[str, str], Named], renderer: Renderer, objects: Parse
) -> None:
    made = service(cell, "nccl-test")
    job = of_kind(made.values(), "PyTorchJob")
    trainer = of_kind(objects(renderer.build(ROOT / "overlays" / cell)), "PyTorchJob")
    pod, before = pods({"x": job})[0], pods({"x": trainer})[0]
    (container,), (own,) = pod["containers"], before["containers"]
    assert container["resources"] == own["resources"]
    assert container["image"] == own["image"]
    assert container["env"][: len(own["env"])] == own["env"]
    assert pod.get("affinity") == before.get("affinity")
    assert pod.get("tolerations") == before.get("tolerations")
    workers, wanted = (one["spec"]["pytorchReplicaSpecs"]["Worker"] for one in (job, trainer))
    assert workers["replicas"] == wanted["replicas"]
    assert operator_admission.rejections(job, "1.9.4") == []
    workload = PyTorchJob(job, manifests=Manifests(cell, list(made.values())))
    assert wiring.analyse(workload).verdict.state is State.PASS
    name = f"{job['metadata']['name']}-worker-999"
    assert len(name) <= 63
    policy = of_kind(made.values(), "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert policy == {"training.kubeflow.org/job-name": job["metadata"]["name"]}


def test_all_reduce_measures_and_checks() -> None:
    """The script on two ranks prints a table of correct sums."""
    command = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
    command += [str(SERVICES / "nccl-test/allreduce.py"), "--largest=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +(\d+) +([\d.]+) +[\d.]+ +[\d.]+  (\w+)$", done.stdout, re.M)
    sizes = (65536, 262144, 1048576)
    assert [(int(size), verdict) for size, _, verdict in rows] == [(size, "right") for size in sizes]
    assert all(float(ms) > 0 for _, ms, _ in rows)
    assert "all-reduce of 2 ranks by gloo" in done.stdout


def test_all_reduce_says_when_a_sum_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the same measurement with a rank that contributes a wrong value."""
    spec = importlib.util.spec_from_file_location("allreduce", SERVICES / "nccl-test/allreduce.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        assert script.measure(65536, torch.device("cpu"), 1)[1]
        monkeypatch.setattr(script.dist, "get_rank", lambda: 1)
        assert not script.measure(65536, torch.device("cpu"), 1)[1]
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_reach_says_what_answers_and_what_does_not(listener: int) -> None:
    closed = free_port()
    good = reach(f"127.0.0.1:{listener}", "localhost")
    assert good.returncode == 0
    assert [line.split()[0] for line in good.stdout.splitlines()] == ["good", "good"]
    bad = reach(f"127.0.0.1:{closed}", "no-such-name.invalid:80", f"127.0.0.1:{listener}")
    assert bad.returncode == 1
    first, second, third = bad.stdout.splitlines()
    assert first.startswith("BAD")
    assert "no process listens" in first
    assert "does not resolve" in second
    assert third.startswith("good")


@pytest.mark.parametrize("arguments", [[], ["host:"], ["host:http"]])
def test_reach_explains_itself(arguments: list[str]) -> None:
    done = reach(*arguments)
    assert done.returncode == 2
    assert "HOST[:PORT]" in done.stderr


def reach(*targets: str) -> subprocess.CompletedProcess[str]:
    script = SERVICES / "debug/reach.py"
    return subprocess.run([sys.executable, script, *targets], capture_output=True, text=True, timeout=300, check=False)
