"""The Flux objects of each cluster: they build, match Flux's types, and refer to what exists."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tools.cells import kustomize
from tools.cells.kustomize import Renderer
from tools.cluster import cluster_env, platform
from tools.core import go_build, repo
from tools.gitops import flux_objects
from tools.gitops.flux_objects import SYNC
from tools.kube.manifests import Object, parse

ROOT = repo.root()
NAMES = ("cpu-demo", "gpu", "gpu-hyperpod", "trn1")
KUSTOMIZATION = "kustomize.toolkit.fluxcd.io/v1"
CRDS = {
    ("github.com/fluxcd/kustomize-controller", "1.9.5"): "kustomize.toolkit.fluxcd.io_kustomizations.yaml",
    ("github.com/fluxcd/source-controller", "1.9.5"): "source.toolkit.fluxcd.io_gitrepositories.yaml",
}


def _renderer() -> Renderer:
    renderer = kustomize.find(ROOT)
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    return renderer


@pytest.fixture(scope="module")
def built() -> dict[str, list[Object]]:
    """The objects of `kubectl apply -k clusters/<name>` and of the runs, by cluster."""
    renderer = _renderer()
    found = {}
    for name in NAMES:
        objects = parse(renderer.build(ROOT / "clusters" / name), name).objects
        for path in sorted((ROOT / "clusters" / name / "runs").glob("*.yaml")):
            objects += parse(path.read_text(encoding="utf-8"), path.name).objects
        found[name] = objects
    return found


def test_the_clusters_are_these() -> None:
    assert flux_objects.names(ROOT) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_references_resolve(name: str, built: dict[str, list[Object]]) -> None:
    """Paths, sources, dependencies without a cycle, and the ConfigMap of the facts."""
    objects = built[name]
    there = {(item["kind"], item["metadata"]["name"]) for item in objects}
    team = cluster_env.read(ROOT / "clusters" / name / "cluster.env")["TEAM_NAMESPACE"].value
    assert {item["metadata"].get("namespace") for item in objects} == {"flux-system", team, None}
    after: dict[str, list[str]] = {}
    for item in objects:
        if item["apiVersion"] != KUSTOMIZATION:
            continue
        spec = item["spec"]
        assert (ROOT / spec["path"]).is_dir(), spec["path"]
        title = item["metadata"]["name"]
        if title == SYNC or (ROOT / "clusters" / name / title).is_dir():
            assert spec["path"] == f"./clusters/{name}" + ("" if title == SYNC else f"/{title}")
        assert (spec["sourceRef"]["kind"], spec["sourceRef"]["name"]) in there
        for one in (spec.get("postBuild") or {}).get("substituteFrom") or []:
            assert not one.get("optional")
            assert (one["kind"], one["name"]) in there
        after[item["metadata"]["name"]] = [one["name"] for one in spec.get("dependsOn") or []]
    order: list[str] = []
    while len(order) < len(after):
        ready = [one for one in after if one not in order and set(after[one]) <= set(order)]
        assert ready, f"of {after}, nothing can follow {order}"
        order += ready
    parts = [part for part in platform.PARTS if (ROOT / "clusters" / name / part).is_dir()]
    assert set(parts) < set(after)
    assert set(after["runs"]) == set(parts), "no run starts before the whole platform"


def test_the_paths_follow_the_sync_that_flux_bootstrap_writes(tmp_path: Path) -> None:
    """`flux bootstrap` writes gotk-sync.yaml into flux-system/, which then replaces base/flux/sync."""
    for name in ("base/flux", "clusters/gpu"):
        shutil.copytree(ROOT / name, tmp_path / name)
    sync = tmp_path / "clusters/gpu/flux-system"
    text = (ROOT / "base/flux/sync/sync.yaml").read_text(encoding="utf-8")
    (sync / "gotk-sync.yaml").write_text(text.replace("/NAME ", "/other "), encoding="utf-8")
    (sync / "kustomization.yaml").write_text("resources: [gotk-sync.yaml]\n", encoding="utf-8")
    objects = parse(_renderer().build(tmp_path / "clusters/gpu"), "gpu").objects
    paths = {item["metadata"]["name"]: item["spec"]["path"] for item in objects if "path" in item.get("spec", {})}
    parts = {name: f"./clusters/other/{name}" for name in (*platform.PARTS, "runs")}
    assert paths == {SYNC: "./clusters/other", **parts}


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_those_of_the_file(name: str, built: dict[str, list[Object]]) -> None:
    maps = {item["metadata"]["name"]: item for item in built[name] if item["kind"] == "ConfigMap"}
    facts = maps["cluster-facts"]
    known = cluster_env.read(ROOT / "clusters" / name / "cluster.env")
    assert set(maps) == {"cluster-facts", "run-source"}
    assert facts["metadata"]["labels"] == {"reconcile.fluxcd.io/watch": "Enabled"}
    assert facts["data"] == {key: fact.value for key, fact in known.items()}


@pytest.mark.timeout(300)
def test_objects_fit_flux_s_types(built: dict[str, list[Object]]) -> None:
    """Checked with the CRDs of the controllers' modules; the control is a misspelt field."""
    schemas: dict[str, Any] = {}
    try:
        with go_build.workshop(ROOT) as environment:
            for (module, version), file in CRDS.items():
                path = go_build.module(module, version, environment, print) / "config/crd/bases" / file
                definition = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
                (schema,) = (one["schema"] for one in definition["versions"] if one["name"] == "v1")
                spec = schema["openAPIV3Schema"]["properties"]["spec"]
                schemas[definition["names"]["kind"]] = {**spec, "additionalProperties": False}
    except go_build.Unusable as reason:
        pytest.skip(f"no definitions of Flux's kinds ({reason}): install Go, reach a Go module proxy")
    checked = 0
    for objects in built.values():
        for item in objects:
            if item["kind"] in schemas:
                faults = list(Draft202012Validator(schemas[item["kind"]]).iter_errors(item["spec"]))
                assert faults == [], item["metadata"]["name"]
                assert list(Draft202012Validator(schemas[item["kind"]]).iter_errors({**item["spec"], "waitt": True}))
                checked += 1
    assert checked >= 4 * len(NAMES)
