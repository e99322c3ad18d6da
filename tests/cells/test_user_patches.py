"""What users build on a cell: patches, names, images and replicas of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.cells.kustomize import Renderer

Objects = dict[tuple[str, str], dict[str, Any]]
Parse = Callable[[str], Objects]
NAME = "cpu-llama-tiny-train"

PATCHES = Path(__file__).with_name("user_patches")
JOB_PATCH, DAEMON_SET, DAEMON_SET_PATCH = (
    (PATCHES / f"{name}.yaml").read_text(encoding="utf-8") for name in ("job_patch", "daemon_set", "daemon_set_patch")
)
POD_KINDS = {
    "Pod": ("v1", "{spec: %s}"),
    "PodTemplate": ("v1", "{template: {spec: %s}}"),
    "ReplicationController": ("v1", "{spec: {template: {spec: %s}}}"),
    "Deployment": ("apps/v1", "{spec: {template: {spec: %s}}}"),
    "ReplicaSet": ("apps/v1", "{spec: {template: {spec: %s}}}"),
    "StatefulSet": ("apps/v1", "{spec: {template: {spec: %s}}}"),
    "DaemonSet": ("apps/v1", "{spec: {template: {spec: %s}}}"),
    "Job": ("batch/v1", "{spec: {template: {spec: %s}}}"),
    "CronJob": ("batch/v1", "{spec: {jobTemplate: {spec: {template: {spec: %s}}}}}"),
}


OLD_POD = """{containers: [{name: a, image: b, env: [{name: E, value: e}],
  ports: [{containerPort: 1}, {containerPort: 1, protocol: UDP}],
  volumeMounts: [{name: v, mountPath: /v}], volumeDevices: [{name: d, devicePath: /d}]}],
  initContainers: [{name: i, image: i}], volumes: [{name: v, emptyDir: {}}], imagePullSecrets: [{name: p}],
  hostAliases: [{ip: 1.1.1.1, hostnames: [x]}], tolerations: [{key: k}],
  topologySpreadConstraints: [{topologyKey: t, whenUnsatisfiable: DoNotSchedule, maxSkew: 1}]}"""

NEW_POD = """{containers: [{name: a, env: [{name: F, value: f}],
  ports: [{containerPort: 1, protocol: UDP, name: u}],
  volumeMounts: [{name: w, mountPath: /w}], volumeDevices: [{name: d, devicePath: /e}]}],
  initContainers: [{name: j, image: j}], volumes: [{name: w, emptyDir: {}}], imagePullSecrets: [{name: q}],
  hostAliases: [{ip: 1.1.1.2, hostnames: [y]}], tolerations: [{key: l}],
  topologySpreadConstraints: [{topologyKey: t, whenUnsatisfiable: ScheduleAnyway, maxSkew: 2}]}"""


def user(checkout: Path, text: str, **files: str) -> Path:
    """Write a user's kustomization beside the checkout's overlays and return its directory."""
    directory = checkout / "mine"
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (directory / f"{name}.yaml").write_text(content, encoding="utf-8")
    return directory


def pod_of(one: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = one["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return spec


def patched(checkout: Path) -> Path:
    """Return a user's kustomization with merge patches of the cell's job and of a native DaemonSet."""
    return user(
        checkout,
        "resources: [../overlays/cpu/llama-tiny, plugin.yaml]\npatches: [{path: job.yaml}, {path: patch.yaml}]\n",
        plugin=DAEMON_SET,
        job=JOB_PATCH,
        patch=DAEMON_SET_PATCH,
    )


def test_merge_patch_adds_and_keeps(checkout: Path, builder: Renderer, objects: Parse) -> None:
    cell = objects(builder.build(checkout / "overlays/cpu/llama-tiny"))["PyTorchJob", NAME]
    built = objects(builder.build(patched(checkout)))
    before, after = pod_of(cell), pod_of(built["PyTorchJob", NAME])
    (old,), (new,) = before["containers"], after["containers"]
    for key in ("image", "command", "args", "resources", "securityContext"):
        assert new[key] == old[key]
    assert names(new["env"]) == names(old["env"]) | {"NCCL_DEBUG"}
    assert {entry["name"]: entry.get("value") for entry in new["env"]}["HOME"] == "/shared/home"
    assert {port["containerPort"] for port in new["ports"]} == {23456, 9090}
    mounts = [{one["mountPath"] for one in container["volumeMounts"]} for container in (old, new)]
    assert mounts[1] - mounts[0] == {"/scratch"}
    assert mounts[0] < mounts[1]
    assert names(after["volumes"]) == names(before["volumes"]) | {"scratch"}
    shm = next(volume for volume in after["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert names(after["initContainers"]) == {"fetch"}
    daemon = built["DaemonSet", "plugin"]["spec"]["template"]["spec"]
    assert daemon["containers"][0]["image"] == "plugin:1"
    assert names(daemon["containers"][0]["env"]) == {"FIRST", "SECOND"}
    assert names(daemon["volumes"]) == {"sockets", "more"}


def test_without_the_schema_the_same_patch_loses_the_container(
    checkout: Path, builder: Renderer, objects: Parse
) -> None:
    """Control: this is why openapi.json exists. No renderer reports the loss."""
    drop_openapi(checkout)
    (container,) = pod_of(objects(builder.build(patched(checkout)))["PyTorchJob", NAME])["containers"]
    assert "image" not in container
    assert names(container["env"]) == {"NCCL_DEBUG", "HOME"}


def test_a_schema_of_the_job_alone_loses_native_containers(checkout: Path, builder: Renderer, objects: Parse) -> None:
    """Control: why openapi.json lists the native kinds."""
    path = checkout / "base/pytorchjob/merge-keys/openapi.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    natives = set(POD_KINDS)
    assert natives <= set(schema["definitions"])
    schema["definitions"] = {name: one for name, one in schema["definitions"].items() if name not in natives}
    path.write_text(json.dumps(schema), encoding="utf-8")
    built = objects(builder.build(patched(checkout)))
    assert "image" in pod_of(built["PyTorchJob", NAME])["containers"][0]
    assert "image" not in built["DaemonSet", "plugin"]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("kind", POD_KINDS)
def test_native_kinds_merge_as_without_us(kind: str, checkout: Path, renderer: Renderer, tmp_path: Path) -> None:
    """A merge patch of a native kind gives the same object with and without the cell in the build."""
    version, shape = POD_KINDS[kind]
    head = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: it}}\n"
    files = {"it": head + body(shape % OLD_POD), "patch": head + body(shape % NEW_POD)}
    patches = "patches: [{path: patch.yaml}]\n"
    both = user(checkout, f"resources: [../overlays/cpu/llama-tiny, it.yaml]\n{patches}", **files)
    alone = user(tmp_path, f"resources: [it.yaml]\n{patches}", **files)
    text = renderer.build(alone)
    assert "image: b" in text
    assert text.strip() in renderer.build(both)


def test_json6902_patch_appends(checkout: Path, builder: Renderer, objects: Parse) -> None:
    path = "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/env/-"
    patch = f'[{{"op": "add", "path": "{path}", "value": {{"name": "NCCL_DEBUG", "value": "INFO"}}}}]'
    mine = user(
        checkout,
        f"resources: [../overlays/cpu/llama-tiny]\npatches: [{{target: {{kind: PyTorchJob}}, patch: '{patch}'}}]\n",
    )
    (container,) = pod_of(objects(builder.build(mine))["PyTorchJob", NAME])["containers"]
    assert container["env"][-1] == {"name": "NCCL_DEBUG", "value": "INFO"}
    assert "image" in container
    assert len(container["env"]) > 5


def test_names_images_and_replicas_follow_a_user(checkout: Path, builder: Renderer, objects: Parse) -> None:
    """A prefix and suffix above the leaf reach every reference. One number sets all three of the job's."""
    mine = user(
        checkout,
        "resources: [../overlays/cpu/llama-tiny]\n"
        "namespace: team\nnamePrefix: we-\nnameSuffix: -r001\n"
        "images: [{name: localhost/trainyard/trainer-cpu, newName: registry.example/cpu, newTag: 2.0.0}]\n"
        f"replicas: [{{name: {NAME}, count: 3}}]\n",
    )
    built = objects(builder.build(mine))
    job = built["PyTorchJob", f"we-{NAME}-r001"]
    pod = pod_of(job)
    assert {one["metadata"]["namespace"] for one in built.values()} == {"team"}
    sources = [source["configMap"]["name"] for source in pod["volumes"][0]["projected"]["sources"]]
    assert all(("ConfigMap", source) in built for source in sources)
    assert all(source.startswith("we-cpu-llama-tiny-") for source in sources)
    assert ("ServiceAccount", pod["serviceAccountName"]) in built
    policy = built["NetworkPolicy", f"we-{NAME}-r001"]["spec"]
    selected = {"matchLabels": {"training.kubeflow.org/job-name": f"we-{NAME}-r001"}}
    assert policy["podSelector"] == policy["ingress"][0]["from"][0]["podSelector"] == selected
    assert policy["egress"][0]["to"][0]["podSelector"] == selected
    assert pod["containers"][0]["image"] == "registry.example/cpu:2.0.0"
    elastic = job["spec"]["elasticPolicy"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == 3
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3


def test_a_users_secret_config_map_and_claim_are_followed(checkout: Path, renderer: Renderer, objects: Parse) -> None:
    """Objects that a user generates above the leaf are found by every kind of reference in the pod."""
    patch = JOB_PATCH.split("          containers:")[0] + (
        "          imagePullSecrets: [{name: pull}]\n"
        "          containers:\n"
        "            - name: pytorch\n"
        "              envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: pull}}]\n"
        "              env: [{name: ONE, valueFrom: {configMapKeyRef: {name: settings, key: one}}},"
        " {name: TWO, valueFrom: {secretKeyRef: {name: pull, key: two}}}]\n"
        "          volumes: [{name: a, configMap: {name: settings}}, {name: b, secret: {secretName: pull}},"
        " {name: c, projected: {sources: [{secret: {name: pull}}]}}]\n"
    )
    mine = user(
        checkout,
        "resources: [../overlays/cpu/llama-tiny]\nnamePrefix: we-\npatches: [{path: job.yaml}]\n"
        "configMapGenerator: [{name: settings, literals: [one=1]}]\n"
        "secretGenerator: [{name: pull, literals: [two=2]}]\n",
        job=patch,
    )
    built = objects(renderer.build(mine))
    (settings,) = (name for kind, name in built if kind == "ConfigMap" and name.startswith("we-settings-"))
    (pull,) = (name for kind, name in built if kind == "Secret")
    pod = pod_of(built["PyTorchJob", f"we-{NAME}"])
    container, volumes = pod["containers"][0], {volume["name"]: volume for volume in pod["volumes"]}
    sources = {entry["name"]: entry["valueFrom"] for entry in container["env"] if "valueFrom" in entry}
    assert pod["imagePullSecrets"] == [{"name": pull}]
    assert container["envFrom"] == [{"configMapRef": {"name": settings}}, {"secretRef": {"name": pull}}]
    assert sources["ONE"]["configMapKeyRef"]["name"] == settings
    assert sources["TWO"]["secretKeyRef"]["name"] == pull
    assert volumes["a"]["configMap"]["name"] == settings
    assert volumes["b"]["secret"]["secretName"] == pull
    assert volumes["c"]["projected"]["sources"] == [{"secret": {"name": pull}}]


def test_without_the_name_references_the_config_dangles(checkout: Path, renderer: Renderer, objects: Parse) -> None:
    """Control: this is why kustomizeconfig.yaml exists. No renderer reports the dangling reference."""
    path = checkout / "base/pytorchjob/kustomizeconfig.yaml"
    replicas = path.read_text(encoding="utf-8").partition("\nreplicas:")[2]
    path.write_text(f"replicas:{replicas}", encoding="utf-8")
    built = objects(renderer.build(checkout / "overlays/cpu/llama-tiny"))
    sources = pod_of(built["PyTorchJob", NAME])["volumes"][0]["projected"]["sources"]
    assert [source["configMap"]["name"] for source in sources] == ["model", "hardware", "cell"]
    assert ("ConfigMap", "model") not in built


def test_a_cell_is_a_remote_base(
    checkout: Path, builder: Renderer, tmp_path: Path, objects: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who names a commit of this repository and patches it needs no checkout."""
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")  # stands for https
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *arguments], cwd=checkout, check=True)
    mine = user(
        tmp_path,
        f"resources: ['file://{checkout}//overlays/cpu/llama-tiny?ref=main']\npatches: [{{path: job.yaml}}]\n",
        job=JOB_PATCH,
    )
    (container,) = pod_of(objects(builder.build(mine))["PyTorchJob", NAME])["containers"]
    assert container["image"].startswith("localhost/trainyard/trainer-cpu:")
    assert "NCCL_DEBUG" in names(container["env"])


def names(entries: list[dict[str, Any]]) -> set[str]:
    """Return the entries' names. Each must be unique."""
    found = [entry["name"] for entry in entries]
    assert len(set(found)) == len(found)
    return set(found)


def body(flow: str) -> str:
    return flow.removeprefix("{").removesuffix("}") + "\n"


def drop_openapi(checkout: Path) -> None:
    path = checkout / "base/pytorchjob/kustomization.yaml"
    text = path.read_text(encoding="utf-8")
    assert "openapi:\n  path: merge-keys/openapi.json\n" in text
    path.write_text(text.replace("openapi:\n  path: merge-keys/openapi.json\n", ""), encoding="utf-8")
