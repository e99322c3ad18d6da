"""Features on top of a cell, and services next to it, pass; and the benchmark counts what exists."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.cells import kustomize
from tools.core import repo
from tools.core.verdict import State
from tools.kube.manifests import parse
from tools.preflight.evaluate import evaluate

FEATURES = sorted(path.parent.name for path in (repo.root() / "overlays/feature").glob("*/kustomization.yaml"))
SERVICES = sorted(path.parent.name for path in (repo.root() / "base/services").glob("*/kustomization.yaml"))
LEAF = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../../{cell}]
components: [../../feature/{feature}]
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of base/ and overlays/, to which leaves are added."""
    root = tmp_path_factory.mktemp("features")
    for name in ("base", "overlays"):
        shutil.copytree(repo.root() / name, root / name)
    return root


@pytest.mark.parametrize("cell", ["cpu/llama-tiny", "p5/llama-3-1-8b"])
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_on_a_cell_passes(feature: str, cell: str, tree: Path, renderer: kustomize.Renderer) -> None:
    leaf = tree / "overlays" / "mine" / f"{feature}-{cell.replace('/', '-')}"
    leaf.mkdir(parents=True)
    (leaf / "kustomization.yaml").write_text(LEAF.format(cell=cell, feature=feature), encoding="utf-8")
    checked = evaluate(parse(renderer.build(leaf), feature))
    assert [(one.details["rule"], one.summary) for one in checked.of(State.FAIL)] == []
    assert checked.of(State.CANNOT_TELL) == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_passes(service: str, renderer: kustomize.Renderer) -> None:
    manifests = parse(renderer.build(repo.root() / "base/services" / service), service)
    checked = evaluate(manifests)
    assert [(one.details["rule"], one.summary) for one in checked.of(State.FAIL)] == []
    assert bool(checked.verdicts) == bool(manifests.objects)  # a Component renders to nothing by itself


def test_there_are_features_and_services() -> None:
    """Control: the tests above have cases."""
    assert len(FEATURES) >= 7
    assert len(SERVICES) >= 3
