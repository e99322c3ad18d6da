"""Storage and plugins: they render, match their schemas, refer to what exists, run where their device is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.parts import upstream
from tools.cells.kustomize import Renderer
from tools.cluster import cluster_env, platform
from tools.core import go_build, repo
from tools.core.errors import UserError
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
    if "kind: Component" not in path.read_text(encoding="utf-8")
)
REMOTE = [f"base/plugins/{name}" for name in upstream.MODULES]
OPERATOR, FSX = REMOTE
# Kinds of Flux, Kueue, Volcano and External Secrets; test_foreign_kinds.py has their schemas.
FOREIGN = [
    "GitRepository",
    "Kustomization",
    "HelmRelease",
    "HelmRepository",
    "OCIRepository",
    "ClusterQueue",
    "LocalQueue",
    "ResourceFlavor",
    "Queue",
    "SecretStore",
    "ExternalSecret",
    "PodMonitor",
    "PrometheusRule",
]
ON_DEVICES = {
    "base/plugins/nvidia": lambda machine: machine.device_resource == NVIDIA,
    "base/plugins/neuron": lambda machine: machine.device_resource == NEURON,
    "base/plugins/efa": lambda machine: machine.efa > 0,
    "base/storage/local-nvme": lambda machine: machine.nvme_gb > 0,
}


@pytest.fixture(scope="module")
def built(renderer: Renderer, objects: Parse, request: pytest.FixtureRequest) -> Callable[[str], list[Object]]:
    """A function from a target to its objects with the example's facts."""
    cache: dict[str, list[Object]] = {}

    def build(name: str) -> list[Object]:
        if name not in cache:
            if name in REMOTE:  # Flux substitutes nothing in what it fetches for these
                cache[name] = quickly(request.getfixturevalue("fetcher").build(ROOT / name))
            else:
                cache[name] = objects(platform.substitute(renderer.build(ROOT / name), FACTS))
        return cache[name]

    return build


def quickly(text: str) -> list[Object]:
    """Parse with libyaml: a CRD has 9,000 lines."""
    return [one for one in YAML(typ="safe").load_all(text) if one]


def test_each_folder_of_the_list_exists() -> None:
    storage = {"default-class", "single-node", "fsx-static", "fsx-dynamic", "s3", "local-nvme"}
    plugins = {"training-operator", "nvidia", "efa", "neuron", "fsx-csi", "s3-csi", "kueue", "volcano"}
    plugins |= {"namespace", "external-secrets", "monitoring"}
    wanted = {f"base/storage/{name}" for name in storage} | {f"base/plugins/{name}" for name in plugins}
    types = {f"base/plugins/{name}" for name in ("kueue/queue", "volcano/queue", "external-secrets/token")}
    flux = {
        f"base/plugins/{name}" for name in ("training-operator/namespace", "training-operator/flux", "fsx-csi/flux")
    }
    assert set(TARGETS) == wanted | types | flux
    assert {name for name in TARGETS if "https://github.com/" in text_of(name)} == set(REMOTE)


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
def test_daemonsets_run_where_the_device_is_and_nowhere_else(name: str, built: Callable[[str], list[Object]]) -> None:
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


@pytest.mark.parametrize("name", TARGETS)
def test_references_resolve(name: str, built: Callable[[str], list[Object]]) -> None:
    """Claims refer to their class or volume, volumes to their claim, DaemonSets to account and ConfigMap."""
    made = {(one["kind"], one["metadata"]["name"]): one for one in built(name)}
    for (kind, _), one in made.items():
        for reference in references(kind, one):
            assert reference in made, reference


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
    elif kind == "Kustomization":
        wanted = [("GitRepository", spec["sourceRef"]["name"])]
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
    """Git is pinned by commit, images are by version, charts by their exact version."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "base").rglob("*.yaml")}
    remote = [one for text in texts.values() for one in re.findall(r"^ *- ((?:https?:|git@|github).*)", text, re.M)]
    assert len(remote) == len(REMOTE)
    assert all(re.search(r"^https://github\.com/.*\?ref=[0-9a-f]{40}$", one) for one in remote)
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
            if not path.is_file() or path.suffix in (".md", ".py", ".pyc"):
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


def test_no_file_is_a_copy_of_upstream() -> None:
    """Files of other projects are fetched at a commit, and never part of this repository."""
    sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "base").rglob("*.yaml")]
    assert max(sizes) < 200
    assert not [path for path in ROOT.glob("base/**/upstream") if path.is_dir()]


def test_example_cluster_renders(fetcher: Renderer) -> None:
    for part in platform.PARTS:
        made = quickly(platform.render(ROOT, platform.load(ROOT, f"example/{part}"), fetcher))
        assert made
        assert "${" not in repr(made)


def text_of(name: str) -> str:
    return (ROOT / name / "kustomization.yaml").read_text(encoding="utf-8")


def fetched_by_flux(name: str) -> tuple[Object, Object]:
    """Return the specs of the GitRepository and of the Kustomization in a plugin's flux/."""
    text = (ROOT / name / "flux/upstream.yaml").read_text(encoding="utf-8")
    source, kustomization = YAML(typ="safe", pure=True).load_all(text)
    return source["spec"], kustomization["spec"]


def named(one: Object) -> str:
    return f"{one['kind']} {one['metadata'].get('namespace')} {one['metadata']['name']}"


def without_comments(patches: list[Object]) -> list[Object]:
    return [{**one, "patch": YAML(typ="safe", pure=True).load(one["patch"])} for one in patches]


@pytest.mark.parametrize("name", REMOTE)
def test_flux_is_given_the_same_as_kubectl(name: str) -> None:
    """Address, directory, commit, namespace, images and patches."""
    source, flux = fetched_by_flux(name)
    direct = YAML(typ="safe", pure=True).load(text_of(name))
    address, directory, commit = upstream.remote_base(name.rpartition("/")[2])
    assert (source["url"], source["ref"]["commit"], flux["path"]) == (address, commit, f"./{directory}")
    assert directory.startswith(source["sparseCheckout"][0] + "/")
    assert flux["targetNamespace"] == direct["namespace"]
    assert flux.get("images") == direct.get("images")
    assert without_comments(flux["patches"]) == without_comments(direct["patches"])
    assert (flux["serviceAccountName"], flux["prune"], flux["wait"]) == ("flux-platform", True, True)


def test_a_cluster_without_flux_gets_what_flux_would_build(
    built: Callable[[str], list[Object]], fetcher: Renderer
) -> None:
    made = quickly(platform.render(ROOT, platform.load(ROOT, "example/plugins"), fetcher))
    wanted = {named(one): one for name in REMOTE for one in built(name)}
    assert len({named(one) for one in made}) == len(made)
    assert {named(one): one for one in made if named(one) in wanted} == wanted
    assert not [one for one in made if one["kind"] in ("GitRepository", "Kustomization")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("commit: 4445c12aa62e4345b0c2c6ac9b215a70eca46ed7", "tag: v1.9.4"),
        ("commit: 4445c12aa62e4345b0c2c6ac9b215a70eca46ed7", "commit: --upload-pack=/tmp/program"),
        ("url: https://github.com/kubeflow/trainer", "url: ssh://-oProxyCommand=program/x"),
        ("path: ./manifests/base", "path: ./manifests/base?ref=main&x="),
    ],
)
def test_a_source_that_could_change_or_run_something_is_refused(
    old: str, new: str, checkout: Path, renderer: Renderer
) -> None:
    path = checkout / OPERATOR / "flux/upstream.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    plugins = checkout / "clusters/cpu-demo/plugins/kustomization.yaml"
    plugins.write_text(f"resources: [../../../{OPERATOR}/flux]\n", encoding="utf-8")
    with pytest.raises(UserError, match="must name a directory and a commit"):
        platform.render(checkout, platform.load(checkout, "cpu-demo/plugins"), renderer)


def test_the_operators_commit_is_its_tags() -> None:
    """The tag of the CSI driver was moved, as its kustomization says."""
    module, version, _ = upstream.MODULES["training-operator"]
    try:
        with go_build.workshop(ROOT) as environment:
            go_build.module(module, version, environment, print)
            info = Path(environment["GOMODCACHE"]) / "cache/download" / module / f"@v/v{version}.info"
            tagged = json.loads(info.read_text(encoding="utf-8")).get("Origin", {}).get("Hash")
    except go_build.Unusable as reason:
        pytest.skip(f"{module} v{version} cannot be had here ({reason}): install Go, reach a Go module proxy")
    assert tagged == upstream.remote_base("training-operator")[2]


def test_patches_find_their_objects(checkout: Path, fetcher: Renderer) -> None:
    """Volcano's argument and right reach the operator, applied directly and in the clusters' form."""
    assert "fsGroupPolicy: File" in fetcher.build(checkout / FSX)
    gang = "../../../base/plugins/volcano/gang"
    (checkout / "mine").mkdir()
    text = f"resources: [../{OPERATOR}]\ncomponents: [../base/plugins/volcano/gang]\n"
    (checkout / "mine/kustomization.yaml").write_text(text, encoding="utf-8")
    with (checkout / "clusters/cpu-demo/plugins/kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write(f"components: [{gang}]\n")
    cluster = platform.load(checkout, "cpu-demo/plugins")
    for made in (fetcher.build(checkout / "mine"), platform.render(checkout, cluster, fetcher)):
        assert made.count("- --gang-scheduler-name=volcano") == made.count("- --enable-scheme=pytorchjob") == 1
        assert len(re.findall(r"  - podgroups\n  verbs:\n  - create\n", made)) == 1
