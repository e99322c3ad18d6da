"""Every cell, rendered: the same bytes everywhere, and an object that a restricted namespace would take."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tools.cells import instance_patch, matrix
from tools.cells.kustomize import Renderer
from tools.core import repo
from tools.core.verdict import State
from tools.facts import environment
from tools.facts.instances import EFA, NVIDIA, Instance
from tools.kube.manifests import Manifests
from tools.simulator import wiring
from tools.workload.pytorchjob import RESTARTS_PER_NODE, PyTorchJob
from training import config

Objects = dict[tuple[str, str], dict[str, Any]]
Parse = Callable[[str], Objects]
CELLS = matrix.load(repo.root())
ON_MACHINES = [cell for cell in CELLS if cell.instance is not None]
# The restricted Pod Security Standard, Kubernetes v1.32.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
VOLUMES |= {"projected", "secret"}
PROFILES = ("RuntimeDefault", "Localhost")
CAPABILITIES = {"NET_BIND_SERVICE"}


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: cell.name)
def cell(request: pytest.FixtureRequest) -> matrix.Cell:
    found: matrix.Cell = request.param
    return found


@pytest.fixture(scope="module")
def text(cell: matrix.Cell, renderer: Renderer) -> str:
    """The cell as a user's command renders it."""
    return build_once(renderer, cell.name)


@functools.cache
def build_once(renderer: Renderer, name: str) -> str:
    """Render a cell once for all tests."""
    return renderer.build(repo.root() / "overlays" / name)


@pytest.fixture(scope="module")
def rendered(text: str, objects: Parse) -> Objects:
    return objects(text)


@pytest.fixture(scope="module")
def job(rendered: Objects) -> dict[str, Any]:
    (found,) = (one for (kind, _), one in rendered.items() if kind == "PyTorchJob")
    return found


@pytest.fixture(scope="module")
def pod(job: dict[str, Any]) -> dict[str, Any]:
    (replica_spec,) = job["spec"]["pytorchReplicaSpecs"].values()
    spec: dict[str, Any] = replica_spec["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def test_matrix_has_cells() -> None:
    assert "cpu/llama-tiny" in [cell.name for cell in CELLS]


def test_bytes_are_the_same_on_every_builder(cell: matrix.Cell, builder: Renderer, text: str) -> None:
    """The user's renderer a second time, the oldest and the newest."""
    assert builder.build(repo.root() / "overlays" / cell.name) == text


def test_cluster_facts_stay_out_of_jobs_and_cells(rendered: Objects) -> None:
    files = [path for top in ("base/pytorchjob", "overlays") for path in (repo.root() / top).rglob("*")]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.is_file()}
    assert len(texts) > 5
    assert [path for path, text in texts.items() if "${" in text] == []
    assert "${" not in repr(rendered)


def test_job_is_one_world(job: dict[str, Any], cell: matrix.Cell, container: dict[str, Any]) -> None:
    """Worker-only with c10d, one number of nodes, and no flag that overrides the operator's variables."""
    spec = job["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    elastic = spec["elasticPolicy"]
    assert elastic["rdzvBackend"] == "c10d"
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == elastic["minReplicas"] == elastic["maxReplicas"] == cell.nodes
    assert container["name"] == "pytorch"
    assert container["command"] == ["python", "-m", "training.entrypoint", "torchrun"]
    words = [*container["command"], *container["args"]]
    assert not [word for word in words if re.match(r"--(nnodes|nproc|rdzv|standalone|master|node)", word)]


def test_job_ends_restarts_and_drains_as_the_operator_needs(
    job: dict[str, Any], cell: matrix.Cell, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    policy = job["spec"]["runPolicy"]
    assert policy["cleanPodPolicy"] == "Running"
    assert policy["backoffLimit"] == RESTARTS_PER_NODE * cell.nodes
    assert "ttlSecondsAfterFinished" not in policy  # a reconciler would start the finished job again
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > int(environment["PET_SHUTDOWN_TIMEOUT"]) > 30


def test_image_has_a_fixed_tag_or_digest(container: dict[str, Any]) -> None:
    assert re.search(r"(:[^:/]*\d[^:/]*|@sha256:[0-9a-f]{64})$", container["image"])
    assert not container["image"].endswith(":latest")


def test_requests_fit_limits(container: dict[str, Any]) -> None:
    resources = container["resources"]
    assert set(resources["requests"]) >= {"cpu", "memory"}
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


def violations(pod: dict[str, Any]) -> list[str]:
    """Return what the restricted Pod Security Standard forbids in a pod, and a mounted token."""
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    context = pod.get("securityContext", {})
    if pod.get("automountServiceAccountToken", True):
        found.append("token")
    found += [f"volume {key}" for volume in pod["volumes"] for key in set(volume) - {"name"} - VOLUMES]
    for one in [*pod.get("initContainers", []), *pod["containers"]]:
        own = one.get("securityContext", {})
        if not own.get("runAsNonRoot", context.get("runAsNonRoot")):
            found.append("runAsNonRoot")
        if own.get("runAsUser", context.get("runAsUser")) == 0:
            found.append("runAsUser")
        if own.get("seccompProfile", context.get("seccompProfile", {})).get("type") not in PROFILES:
            found.append("seccompProfile")
        if own.get("privileged"):
            found.append("privileged")
        if own.get("allowPrivilegeEscalation", True):
            found.append("allowPrivilegeEscalation")
        held = own.get("capabilities", {})
        if "ALL" not in held.get("drop", []) or set(held.get("add", [])) - CAPABILITIES:
            found.append("capabilities")
        found += [f"hostPort {port['hostPort']}" for port in one.get("ports", []) if port.get("hostPort")]
    return found


def test_pod_security_is_restricted(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert violations(pod) == []
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000


def test_restricted_check_sees_each_violation(pod: dict[str, Any]) -> None:
    """Control: the same pod with one rule violated at a time."""

    def own(it: dict[str, Any]) -> dict[str, Any]:
        context: dict[str, Any] = it["containers"][0]["securityContext"]
        return context

    loosened: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
        ("hostNetwork", lambda it: it.update(hostNetwork=True)),
        ("token", lambda it: it.pop("automountServiceAccountToken")),
        ("runAsNonRoot", lambda it: it["securityContext"].pop("runAsNonRoot")),
        ("runAsUser", lambda it: it["securityContext"].update(runAsUser=0)),
        ("seccompProfile", lambda it: it["securityContext"].pop("seccompProfile")),
        ("volume hostPath", lambda it: it["volumes"].append({"name": "h", "hostPath": {"path": "/"}})),
        ("privileged", lambda it: own(it).update(privileged=True)),
        ("allowPrivilegeEscalation", lambda it: own(it).pop("allowPrivilegeEscalation")),
        ("capabilities", lambda it: own(it).pop("capabilities")),
        ("hostPort 1", lambda it: it["containers"][0]["ports"][0].update(hostPort=1)),
    ]
    for name, loosen in loosened:
        changed = copy.deepcopy(pod)
        loosen(changed)
        assert violations(changed) == [name]


def test_references_resolve(rendered: Objects, job: dict[str, Any], pod: dict[str, Any]) -> None:
    assert ("ServiceAccount", pod["serviceAccountName"]) in rendered
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    sources = volumes["config"]["projected"]["sources"]
    maps = [rendered["ConfigMap", source["configMap"]["name"]] for source in sources]
    files = {file for one in maps for file in one["data"]}
    assert files == {f"{name}.yaml" for name in config.FILES}
    # The claim is one per team, never a cell's own.
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == "trainyard"
    assert not [kind for kind, _ in rendered if kind == "PersistentVolumeClaim"]


def test_only_the_jobs_own_pods_may_connect(rendered: Objects, job: dict[str, Any]) -> None:
    (policy,) = (one["spec"] for (kind, _), one in rendered.items() if kind == "NetworkPolicy")
    own = {"matchLabels": {"training.kubeflow.org/job-name": job["metadata"]["name"]}}
    assert policy["podSelector"] == own
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"from": [{"podSelector": own}], "ports": [{"protocol": "TCP"}]}]
    assert policy["egress"][0] == {"to": [{"podSelector": own}], "ports": [{"protocol": "TCP"}]}


def test_container_is_whole(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Mounts and volumes belong together. Each $(NAME) follows the variable that it names."""
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    seen: list[str] = []
    for entry in container["env"]:
        assert set(re.findall(r"\$\(([^)]*)\)", entry.get("value", ""))) <= set(seen)
        assert ("value" in entry) != ("valueFrom" in entry)
        seen.append(entry["name"])
    assert len(set(seen)) == len(seen)
    (secrets,) = (volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets")
    assert all(source["secret"]["optional"] for source in secrets)


def test_labels_reach_the_pods(job: dict[str, Any], cell: matrix.Cell) -> None:
    labels = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert labels == job["metadata"]["labels"]
    assert (labels["trainyard/hardware"], labels["trainyard/model"]) == (cell.hardware, cell.model)


def test_names_fit_the_services(job: dict[str, Any]) -> None:
    name = job["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-worker-999") <= 63


def test_configuration_is_the_trainers(
    rendered: Objects, cell: matrix.Cell, container: dict[str, Any], tmp_path: Path
) -> None:
    """The pod reads a complete, valid configuration, and no section is in two ConfigMaps."""
    maps = [one["data"] for (kind, _), one in rendered.items() if kind == "ConfigMap"]
    assert sorted(file for data in maps for file in data) == ["cell.yaml", "hardware.yaml", "model.yaml"]
    for data in maps:
        for file, text in data.items():
            (tmp_path / file).write_text(text, encoding="utf-8")
    loaded = config.load(tmp_path)
    assert loaded.train.steps >= loaded.checkpoint.every
    sections = [line.split(":")[0] for data in maps for text in data.values() for line in text.splitlines()]
    tops = [section for section in sections if section in config.OWNER]
    assert sorted(tops) == sorted(set(tops))
    assert set(tops) >= {"model", "parallel", "device"}
    # The container starts the entry point that the configuration is for, and each process gets whole batches.
    assert container["args"] == ["-m", loaded.task, "--config", "/etc/trainyard"]
    processes = cell.instance.processes if cell.instance else 1
    assert loaded.accumulation(cell.nodes * processes) >= 1


def test_wiring_is_right(rendered: Objects, job: dict[str, Any], cell: matrix.Cell) -> None:
    """One rendezvous for all pods, and as many processes as the nodes have devices. Nothing is started."""
    manifests = Manifests(cell.name, list(rendered.values()))
    analysis = wiring.analyse(PyTorchJob(job, manifests=manifests))
    assert analysis.verdict.state is State.PASS, analysis.verdict.summary
    processes = cell.instance.processes if cell.instance else 1
    assert wiring.world_size(analysis.nodes) == cell.nodes * processes


@pytest.mark.parametrize("cell", ON_MACHINES, ids=lambda cell: cell.name, scope="module", indirect=True)
def test_pod_asks_for_what_its_machine_has(
    cell: matrix.Cell, job: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """All devices and interfaces of one machine, and the processors and memory left for its pods."""
    instance = cell.instance
    assert instance is not None
    assert job["spec"]["nprocPerNode"] == str(instance.processes)
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (selector,) = term["matchExpressions"]
    assert selector == {
        "key": "node.kubernetes.io/instance-type",
        "operator": "In",
        "values": [instance.name, f"ml.{instance.name}"],
    }
    check_amounts(instance, container["resources"])
    devices = {key for key in container["resources"]["limits"] if "/" in key}
    assert {one["key"] for one in pod["tolerations"]} == devices
    assert all(one["operator"] == "Exists" for one in pod["tolerations"])
    (shm,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["medium"] == "Memory"
    assert gib(shm["sizeLimit"]) <= gib(container["resources"]["limits"]["memory"]) / 8
    given = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment.variables(instance).items() <= given.items()
    said = [environment.guidance(name, value, [instance]) for name, value in given.items()]
    assert {one.say for one in said if one is not None} <= {environment.Say.SET}


def check_amounts(instance: Instance, resources: dict[str, Any]) -> None:
    """Compare requests and limits with the machine's numbers, read again from the fact table."""
    requests, limits = resources["requests"], resources["limits"]
    assert {key: value for key, value in requests.items() if key != "cpu"} == limits
    assert "cpu" not in limits
    assert 0.9 * instance.vcpus - 1 <= int(requests["cpu"]) < instance.allocatable_cpu_m / 1000
    left = instance.allocatable_memory_mib - instance.hugepages_2mi_mib
    assert 0.8 * left < gib(limits["memory"]) * 1024 < left
    assert limits[str(instance.device_resource)] == str(instance.accelerators)
    assert limits.get(EFA, "0") == str(instance.efa)
    asked = int(limits.get(instance_patch.HUGEPAGES, "0Mi").removesuffix("Mi"))
    assert (asked > 0) == (instance.efa > 0)
    assert asked <= instance.hugepages_2mi_mib


def gib(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi"))


def test_images_follow_the_hardware() -> None:
    """Each kind of device has its image, under a name that no public registry has."""
    kinds = {None: "trainer-cpu", NVIDIA: "trainer-cuda", "aws.amazon.com/neuron": "trainer-neuron"}
    for hardware, default in matrix.read(repo.root()).machines.items():
        path = repo.root() / f"overlays/hardware/{hardware}/kustomization.yaml"
        (image,) = YAML(typ="safe").load(path)["images"]
        kind = default.device_resource if default else None
        assert image == {
            "name": "trainer", "newName": f"localhost/trainyard/{kinds[kind]}", "newTag": "0.1.0"
        }  # fmt: skip
