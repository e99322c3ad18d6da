"""Objects of Flux, Kueue, Volcano and External Secrets, checked with the definitions of their kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from tools.cells.kustomize import Renderer
from tools.cluster import cluster_env, platform
from tools.core import go_build, repo

Object = dict[str, Any]
Parse = Callable[[str], list[Object]]
Types = dict[tuple[str, str], Object]

ROOT = repo.root()
TARGETS = [
    "kueue",
    "kueue/queue",
    "kueue/topology",
    "volcano",
    "volcano/queue",
    "s3-csi",
    "external-secrets",
    "external-secrets/token",
    "monitoring",
]
# Go module, its version, and where it has the definitions; the versions of base/plugins and of Flux 2.9.4.
MODULES = {
    ("sigs.k8s.io/kueue", "0.19.2"): (
        "config/components/crd/bases/kueue.x-k8s.io_clusterqueues.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_localqueues.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_resourceflavors.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_topologies.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_workloadpriorityclasses.yaml",
    ),
    ("volcano.sh/volcano", "1.15.1"): ("config/crd/volcano/bases/scheduling.volcano.sh_queues.yaml",),
    ("github.com/external-secrets/external-secrets", "1.3.2"): (
        "config/crds/bases/external-secrets.io_externalsecrets.yaml",
        "config/crds/bases/external-secrets.io_secretstores.yaml",
    ),
    ("github.com/fluxcd/source-controller", "1.9.1"): (
        "config/crd/bases/source.toolkit.fluxcd.io_helmrepositories.yaml",
        "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml",
    ),
    ("github.com/prometheus-operator/prometheus-operator", "0.91.0"): (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    ("github.com/fluxcd/helm-controller", "1.6.3"): ("config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml",),
}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def types() -> Types:
    """Strict schemas by apiVersion and kind."""
    found: Types = {}
    try:
        with go_build.workshop(ROOT) as environment:
            for (module, version), files in MODULES.items():
                directory = go_build.module(module, version, environment, print)
                for file in files:
                    found |= schemas(YAML(typ="safe", pure=True).load(directory / file))
    except go_build.Unusable as reason:
        pytest.skip(f"no definitions of these kinds ({reason}): install Go, reach a Go module proxy")
    return found


def schemas(definition: Object) -> Types:
    spec = definition["spec"]
    found = {}
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as `kubectl apply` does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    is_open = made.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in made
    is_closed = isinstance(made.get("properties"), dict) and not is_open
    return {**made, "additionalProperties": False} if is_closed else made


def misfits(one: Object, types: Types) -> list[str]:
    schema = types[one["apiVersion"], one["kind"]]
    return [f"{list(error.path)}: {error.message}" for error in Draft202012Validator(schema).iter_errors(one)]


@pytest.fixture(scope="module")
def made(renderer: Renderer, objects: Parse) -> list[Object]:
    facts = cluster_env.read(ROOT / "clusters/example/cluster.env")
    texts = [renderer.build(ROOT / "base/plugins" / name) for name in TARGETS]
    found = [one for text in texts for one in objects(platform.substitute(text, facts))]
    return [one for one in found if one["apiVersion"] != "v1"]


def test_every_object_fits_its_type(made: list[Object], types: Types) -> None:
    assert [fault for one in made for fault in misfits(one, types)] == []
    assert len(made) == 19


def test_a_wrong_field_or_type_is_reported(made: list[Object], types: Types) -> None:
    """Control: one letter more in each kind's spec, and a version that is a number."""
    for one in made:
        if "spec" in one:
            assert len(misfits({**one, "spec": {**one["spec"], "intervall": "1h"}}, types)) == 1
    (volcano,) = (one for one in made if one["kind"] == "HelmRelease" and one["metadata"]["name"] == "volcano")
    chart = {**volcano["spec"]["chart"]["spec"], "version": 1.15}
    assert misfits({**volcano, "spec": {**volcano["spec"], "chart": {"spec": chart}}}, types) != []


def test_kueue_runs_the_operators_jobs_only(made: list[Object]) -> None:
    """Kueue's configuration is a string in the release, which no schema checks."""
    (release,) = (one for one in made if one["kind"] == "HelmRelease" and one["metadata"]["name"] == "kueue")
    text = release["spec"]["values"]["managerConfig"]["controllerManagerConfigYaml"]
    configuration = YAML(typ="safe", pure=True).load(text)
    assert configuration["apiVersion"] == "config.kueue.x-k8s.io/v1beta2"
    assert {"kubeflow.org/pytorchjob", "trainer.kubeflow.org/trainjob"} <= {
        *configuration["integrations"]["frameworks"]
    }
    waits = configuration["waitForPodsReady"]
    assert set(waits) == {"timeout", "recoveryTimeout", "blockAdmission", "requeuingStrategy"}
    assert waits["timeout"] != waits["recoveryTimeout"] != "0s"
    (queue,) = (one for one in made if one["kind"] == "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    excluded = tuple(configuration["resources"]["excludeResourcePrefixes"])
    asked = {"cpu", "memory", "nvidia.com/gpu", "aws.amazon.com/neuron", "vpc.amazonaws.com/efa"}
    asked |= {"hugepages-2Mi"}
    assert {name for name in asked if not name.startswith(excluded)} == set(group["coveredResources"])
