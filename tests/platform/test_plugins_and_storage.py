"""Storage and plugins: they render, match their schemas, refer to what exists, run where their device is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.cells.kustomize import Renderer
from tools.cluster import cluster_env, platform
from tools.core import go_build, repo
from tools.facts.instances import EFA, HYPERPOD_PREFIX, INSTANCES, NEURON, NVIDIA
from tools.kube.selectors import REQUIRED

Object = dict[str, Any]
Parse = Callable[[str], list[Object]]

ROOT = repo.root()
FACTS = cluster_env.read(ROOT / "clusters/example/cluster.env")
TARGETS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for top in ("base/storage", "base/plugins")
    for path in (ROOT / top).rglob("kustomization.yaml")
    if "kind: Component" not in path.read_text(encoding="utf-8") and "upstream" not in path.parts
)
# Kinds of Flux, Kueue, Volcano and External Secrets; test_foreign_kinds.py has their schemas.
FOREIGN = [
    "HelmRelease",
    "HelmRepository",
    "OCIRepository",
    "ClusterQueue",
    "LocalQueue",
    "ResourceFlavor",
    "Queue",
    "SecretStore",
    "ExternalSecret",
]
ON_DEVICES = {
    "base/plugins/nvidia": lambda machine: machine.device_resource == NVIDIA,
    "base/plugins/neuron": lambda machine: machine.device_resource == NEURON,
    "base/plugins/efa": lambda machine: machine.efa > 0,
    "base/storage/local-nvme": lambda machine: machine.nvme_gb > 0,
}


@pytest.fixture(scope="module")
def built(renderer: Renderer, objects: Parse) -> Callable[[str], list[Object]]:
    """A function from a target to its objects with the example's facts."""
    cache: dict[str, list[Object]] = {}

    def build(name: str) -> list[Object]:
        if name not in cache:
            cache[name] = objects(platform.substitute(renderer.build(ROOT / name), FACTS))
        return cache[name]

    return build


def test_each_folder_of_the_list_exists() -> None:
    storage = {"default-class", "single-node", "fsx-static", "fsx-dynamic", "s3", "local-nvme"}
    plugins = {"training-operator", "nvidia", "efa", "neuron", "fsx-csi", "s3-csi", "kueue", "volcano"}
    plugins |= {"namespace", "external-secrets"}
    wanted = {f"base/storage/{name}" for name in storage} | {f"base/plugins/{name}" for name in plugins}
    types = {f"base/plugins/{name}" for name in ("kueue/queue", "volcano/queue", "external-secrets/token")}
    assert set(TARGETS) == wanted | types


@pytest.mark.parametrize("name", TARGETS)
def test_objects_fit_their_schemas(
    name: str, built: Callable[[str], list[Object]], faults: Callable[[Object], list[str]]
) -> None:
    made = built(name)
    assert made
    known = [one for one in made if one["kind"] not in FOREIGN]
    assert {f"{one['kind']} {one['metadata']['name']}": faults(one) for one in known if faults(one)} == {}
    assert "${" not in repr(made)


def test_a_misspelt_field_is_reported(
    built: Callable[[str], list[Object]], faults: Callable[[Object], list[str]]
) -> None:
    """Control: the same objects with one letter wrong."""
    (claim,) = built("base/storage/single-node")
    assert faults({**claim, "spec": {**claim["spec"], "accesModes": []}}) != []


@pytest.mark.parametrize("name", sorted(ON_DEVICES))
def test_daemonsets_run_where_the_device_is_and_nowhere_else(
    name: str, built: Callable[[str], list[Object]]
) -> None:
    (daemon,) = (one for one in built(name) if one["kind"] == "DaemonSet")
    pod = daemon["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    rules = {rule["key"]: (rule["operator"], rule["values"]) for rule in term["matchExpressions"]}
    operator, types = rules["node.kubernetes.io/instance-type"]
    expected = {machine.name for machine in INSTANCES.values() if ON_DEVICES[name](machine)}
    assert operator == "In"
    assert set(types) == expected | {HYPERPOD_PREFIX + machine for machine in expected}
    assert len(types) == len(set(types))
    assert rules["eks.amazonaws.com/compute-type"] == ("NotIn", ["auto"])
    assert {one["key"] for one in pod["tolerations"]} == {NVIDIA, NEURON, EFA}
    assert {(one["operator"], one.get("effect")) for one in pod["tolerations"]} == {("Exists", None)}
    assert daemon["metadata"]["namespace"] == "kube-system"
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_references_resolve(built: Callable[[str], list[Object]]) -> None:
    """Claims refer to their class or volume, volumes to their claim, DaemonSets to account and ConfigMap."""
    for name in TARGETS:
        made = {(one["kind"], one["metadata"]["name"]): one for one in built(name)}
        for (kind, _), one in made.items():
            for reference in references(kind, one):
                assert reference in made, (name, reference)


def references(kind: str, one: Object) -> list[tuple[str, str]]:
    """Return kind and name of the objects that `one` needs."""
    spec = one.get("spec", {})
    if kind == "PersistentVolumeClaim":
        wanted = [
            ("PersistentVolume", spec.get("volumeName")),
            ("StorageClass", spec.get("storageClassName")),
        ]
    elif kind == "PersistentVolume":
        assert spec["claimRef"]["namespace"] == FACTS["TEAM_NAMESPACE"].value
        wanted = [("PersistentVolumeClaim", spec["claimRef"]["name"])]
    elif kind == "DaemonSet":
        pod = spec["template"]["spec"]
        wanted = [("ServiceAccount", pod.get("serviceAccountName"))]
        wanted += [("ConfigMap", volume.get("configMap", {}).get("name")) for volume in pod["volumes"]]
        mounts = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
    elif kind == "HelmRelease":
        source = spec.get("chartRef") or spec["chart"]["spec"]["sourceRef"]
        wanted = [(source["kind"], source["name"])]
    elif kind == "LocalQueue":
        wanted = [("ClusterQueue", spec["clusterQueue"])]
    elif kind == "ClusterRoleBinding":
        wanted = [("ClusterRole", one["roleRef"]["name"]), ("ServiceAccount", one["subjects"][0]["name"])]
    else:
        wanted = []
    return [(kind_, name) for kind_, name in wanted if name]


def test_one_claim_for_a_team(built: Callable[[str], list[Object]]) -> None:
    """Every kind of shared volume has the claim that jobs mount, and no cell has a claim."""
    for name in ("default-class", "single-node", "fsx-static", "fsx-dynamic"):
        (claim,) = (one for one in built(f"base/storage/{name}") if one["kind"] == "PersistentVolumeClaim")
        assert claim["metadata"]["name"] == "trainyard"
    base = (ROOT / "base/pytorchjob/kustomization.yaml").read_text(encoding="utf-8")
    assert "claim" not in base.lower()
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "overlays").rglob("*.yaml")]
    assert not [text for text in texts if re.search(r"^kind: PersistentVolumeClaim", text, re.M)]


# kubernetes-sigs/aws-fsx-csi-driver v1.9.0, pkg/driver/controller.go. The API server takes any name.
LUSTRE = """
subnetId securityGroupIds autoImportPolicy s3ImportPath s3ExportPath deploymentType kmsKeyId efaEnabled
perUnitStorageThroughput storageType driveCacheType automaticBackupRetentionDays dataCompressionType
dailyAutomaticBackupStartTime copyTagsToBackups weeklyMaintenanceStartTime fileSystemTypeVersion extraTags
metadataConfigurationMode metadataIops
"""


def test_lustre_is_what_was_asked_for(built: Callable[[str], list[Object]]) -> None:
    kinds = {one["kind"]: one for one in built("base/storage/fsx-dynamic")}
    parameters = kinds["StorageClass"]["parameters"]
    assert parameters["deploymentType"] == "PERSISTENT_2"
    assert parameters["dataCompressionType"] == "LZ4"
    assert set(parameters) <= set(LUSTRE.split())
    assert all(isinstance(value, str) for value in parameters.values())
    gib = int(kinds["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert gib == 1200 or gib % 2400 == 0  # other sizes are rounded up by the driver, and paid for


def test_upstream_is_fixed() -> None:
    """Nothing is fetched by a build. Images are pinned by version, charts by their exact version."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "base").rglob("*.yaml")}
    texts = {path: text for path, text in texts.items() if "upstream" not in path.parts}
    assert not [path for path, text in texts.items() if re.search(r"^ *- (https?:|git@|github)", text, re.M)]
    images = [image for text in texts.values() for image in re.findall(r"^ +image: (\S+/\S+)$", text, re.M)]
    assert len(images) >= 4
    for image in images:
        assert re.search(r":v?\d+(\.\d+)+(@sha256:[0-9a-f]{64})?$", image), image
    charts = [text for path, text in texts.items() if path.name == "release.yaml"]
    assert len(charts) == 4
    for text in charts:
        assert re.search(r"^ +(version|tag): \d+\.\d+\.\d+$", text, re.M)


def test_facts_are_used_in_two_folders_only() -> None:
    """`${` is only for cluster facts, and the example has all of them."""
    used: set[str] = set()
    for top in ("base", "overlays", "clusters"):
        for path in (ROOT / top).rglob("*"):
            if not path.is_file() or path.suffix in (".md", ".py"):
                continue
            found = set(re.findall(r"\$\{(\w+)\}", path.read_text(encoding="utf-8")))
            place = path.relative_to(ROOT).as_posix()
            assert not found or place.startswith(("base/plugins/", "base/storage/")), place
            used |= found
    assert used == set(FACTS)


def test_the_readme_has_every_plugin() -> None:
    text = (ROOT / "base/plugins/README.md").read_text(encoding="utf-8")
    for path in (ROOT / "base/plugins").iterdir():
        assert path.suffix == ".md" or f"`{path.name}/`" in text, path.name
    storage = (ROOT / "base/storage/README.md").read_text(encoding="utf-8")
    for path in (ROOT / "base/storage").iterdir():
        assert path.suffix == ".md" or f"`{path.name}/`" in storage, path.name


def test_example_cluster_renders_offline(renderer: Renderer, objects: Parse) -> None:
    for part in platform.PARTS:
        made = objects(platform.render(ROOT, platform.load(ROOT, f"example/{part}"), renderer))
        assert made
        assert "${" not in repr(made)


# The files of upstream/ are those of a folder of a Go module, whose digest Go checks.
OPERATOR, FSX = "base/plugins/training-operator", "base/plugins/fsx-csi"
MODULES = {
    OPERATOR: ("github.com/kubeflow/trainer", "1.9.4", "manifests/base"),
    FSX: ("sigs.k8s.io/aws-fsx-csi-driver", "1.9.0", "deploy/kubernetes/base"),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.timeout(300)
def test_upstream_s_files_are_upstream_s(name: str) -> None:
    """The commit that the operator's kustomization names is its tag's."""
    module, version, folder = MODULES[name]
    try:
        with go_build.workshop(repo.root()) as environment:
            upstream = go_build.module(module, version, environment, print) / folder
            ours = [path for path in (ROOT / name / "upstream").rglob("*") if path.is_file()]
            for path in ours:
                assert (
                    path.read_bytes() == (upstream / path.relative_to(ROOT / name / "upstream")).read_bytes()
                )
            info = Path(environment["GOMODCACHE"]) / "cache/download" / module / f"@v/v{version}.info"
            tagged = json.loads(info.read_text(encoding="utf-8")).get("Origin", {}).get("Hash")
    except go_build.Unusable as reason:
        pytest.skip(f"{module} v{version} cannot be had here ({reason}): install Go, reach a Go module proxy")
    assert len(ours) >= 7
    if name == OPERATOR:
        assert tagged in (ROOT / name / "kustomization.yaml").read_text(encoding="utf-8")


def test_patches_find_their_objects(checkout: Path, renderer: Renderer) -> None:
    mine = checkout / "mine"
    mine.mkdir()
    text = "resources: [../base/plugins/training-operator]\ncomponents: [../base/plugins/volcano/gang]\n"
    (mine / "kustomization.yaml").write_text(text, encoding="utf-8")
    made = renderer.build(mine)
    assert made.count("- --gang-scheduler-name=volcano") == made.count("- --enable-scheme=pytorchjob") == 1
    assert "fsGroupPolicy: File" in renderer.build(checkout / FSX)
