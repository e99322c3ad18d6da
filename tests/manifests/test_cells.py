"""Every cell, rendered: the same bytes everywhere, and an object that a restricted namespace would take."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import matrix, repo
from tools.kustomize import Renderer
from training import config

Objects = dict[tuple[str, str], dict[str, Any]]
Parse = Callable[[str], Objects]
CELLS = matrix.load(repo.root())
# The restricted Pod Security Standard, Kubernetes v1.32.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
VOLUMES |= {"projected", "secret"}
PROFILES = ("RuntimeDefault", "Localhost")
CAPABILITIES = {"NET_BIND_SERVICE"}


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: cell.name)
def cell(request: pytest.FixtureRequest) -> matrix.Cell:
    """Each cell of the matrix."""
    found: matrix.Cell = request.param
    return found


@pytest.fixture(scope="module")
def rendered(cell: matrix.Cell, renderer: Renderer, objects: Parse) -> Objects:
    """The cell's objects."""
    return objects(renderer.build(repo.root() / "overlays" / cell.name))


@pytest.fixture(scope="module")
def job(rendered: Objects) -> dict[str, Any]:
    """The cell's one PyTorchJob."""
    (found,) = (one for (kind, _), one in rendered.items() if kind == "PyTorchJob")
    return found


@pytest.fixture(scope="module")
def pod(job: dict[str, Any]) -> dict[str, Any]:
    """The job's one pod template's spec."""
    (replica_spec,) = job["spec"]["pytorchReplicaSpecs"].values()
    spec: dict[str, Any] = replica_spec["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod's one container."""
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def test_matrix_has_cells() -> None:
    assert "cpu/llama-tiny" in [cell.name for cell in CELLS]


def test_bytes_are_the_same_on_every_builder(
    cell: matrix.Cell, builder: Renderer, renderer: Renderer
) -> None:
    path = repo.root() / "overlays" / cell.name
    first = builder.build(path)
    assert first == builder.build(path)
    assert first == renderer.build(path)


def test_cluster_facts_stay_out_of_jobs_and_cells(rendered: Objects) -> None:
    files = [path for top in ("base/pytorchjob", "overlays") for path in (repo.root() / top).rglob("*")]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.is_file()}
    assert len(texts) > 5
    assert [path for path, text in texts.items() if "${" in text] == []
    assert "${" not in repr(rendered)


def test_job_is_one_world(job: dict[str, Any], cell: matrix.Cell, container: dict[str, Any]) -> None:
    """Worker-only with c10d, one number of nodes, and no flag that wins over what the operator sets."""
    spec = job["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]
    elastic = spec["elasticPolicy"]
    assert elastic["rdzvBackend"] == "c10d"
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == elastic["minReplicas"] == elastic["maxReplicas"] == cell.nodes
    assert container["name"] == "pytorch"
    assert container["command"] == ["torchrun"]
    words = [*container["command"], *container["args"]]
    assert not [word for word in words if re.match(r"--(nnodes|nproc|rdzv|standalone|master|node)", word)]


def test_job_ends_restarts_and_drains_as_the_operator_needs(
    job: dict[str, Any], cell: matrix.Cell, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    policy = job["spec"]["runPolicy"]
    assert policy["cleanPodPolicy"] == "Running"
    assert policy["backoffLimit"] == matrix.RESTARTS_PER_NODE * cell.nodes
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
    """Control: the same pod with one thing loosened at a time is not clean."""

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
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": own}], "ports": [{"protocol": "TCP"}]}]


def test_container_is_whole(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Mounts and volumes belong together; each $(NAME) stands below the variable it names."""
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert sorted(mounted) == sorted(volume["name"] for volume in pod["volumes"])
    seen: list[str] = []
    for entry in container["env"]:
        assert set(re.findall(r"\$\(([^)]*)\)", entry.get("value", ""))) <= set(seen)
        assert ("value" in entry) != ("valueFrom" in entry)
        seen.append(entry["name"])
    assert len(set(seen)) == len(seen)
    token = next(entry for entry in container["env"] if entry["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["optional"] is True


def test_labels_reach_the_pods(job: dict[str, Any], cell: matrix.Cell) -> None:
    labels = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert labels == job["metadata"]["labels"]
    assert (labels["trainyard/hardware"], labels["trainyard/model"]) == (cell.hardware, cell.model)


def test_names_fit_the_services(job: dict[str, Any]) -> None:
    name = job["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(f"{name}-worker-999") <= 63


def test_configuration_is_the_trainers(rendered: Objects, tmp_path: Path) -> None:
    """What the pod would read is a whole, valid configuration, and no section stands in two ConfigMaps."""
    maps = [one["data"] for (kind, _), one in rendered.items() if kind == "ConfigMap"]
    assert sorted(file for data in maps for file in data) == ["cell.yaml", "hardware.yaml", "model.yaml"]
    for data in maps:
        for file, text in data.items():
            (tmp_path / file).write_text(text, encoding="utf-8")
    loaded = config.load(tmp_path)
    assert loaded.train.steps > 0
    sections = [line.split(":")[0] for data in maps for text in data.values() for line in text.splitlines()]
    tops = [section for section in sections if section in config.OWNER]
    assert sorted(tops) == sorted(set(tops))
    assert set(tops) >= {"model", "parallel", "device"}
