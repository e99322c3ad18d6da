"""Renders a run as Flux does: the cell at the run's commit, with the run's fields in its kustomization."""

from __future__ import annotations

import difflib
import tempfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import is_kustomization
from tools.cells.matrix_file import text_of
from tools.core.errors import UserError
from tools.gitops import git
from tools.gitops.run_file import FOLDERS, RunFile
from tools.kube.manifests import Manifests, parse


def render(root: Path, run: RunFile, renderer: Renderer) -> Manifests:
    """Return a run's objects. Raises UserError where the commit lacks the cell or the cell does not build."""
    with tempfile.TemporaryDirectory(prefix="trainyard-run-") as directory:
        git.unpack(root, run.commit, FOLDERS, Path(directory))
        cell = Path(directory) / run.cell
        if not is_kustomization(cell):
            raise UserError(f"{run.path}: commit {run.commit[:12]} has no cell {run.cell}")
        path = cell / "kustomization.yaml"
        leaf = yaml.safe_load(text_of(path, Path(directory)))
        path.write_text(yaml.safe_dump(_edited(leaf, run)), encoding="utf-8")
        try:
            return parse(renderer.build(cell), run.path)
        except UserError as problem:
            raise UserError(f"{run.path}: {problem.message}", problem.hint, problem.code) from None


def uncommitted(root: Path, cell: str, commit: str, renderer: Renderer) -> str:
    """Return the diff from a cell as `commit` renders it to the working tree's; empty when they are equal."""
    if not is_kustomization(root / cell):
        return ""
    with tempfile.TemporaryDirectory(prefix="trainyard-run-") as directory:
        git.unpack(root, commit, FOLDERS, Path(directory))
        committed = renderer.build(Path(directory) / cell).splitlines(keepends=True)
    here = renderer.build(root / cell).splitlines(keepends=True)
    return "".join(difflib.unified_diff(committed, here, f"{cell} at {commit[:12]}", f"{cell} here"))


def _edited(leaf: dict[str, Any], run: RunFile) -> dict[str, Any]:
    """Return a cell's kustomization with the fields that Flux adds.

    Source: kustomize/kustomize_generator.go of fluxcd/pkg, version 1.35.6.
    """
    spec = run.spec
    made = dict(leaf)
    for key, name in (
        ("namespace", "targetNamespace"),
        ("nameSuffix", "nameSuffix"),
        ("namePrefix", "namePrefix"),
    ):
        made |= {key: spec[name]} if spec.get(name) else {}
    for key in ("patches", "components"):
        made[key] = [*(leaf.get(key) or []), *(spec.get(key) or [])]
    images = {image["name"]: image for image in leaf.get("images") or []}
    for image in spec.get("images") or []:
        known = images.get(image["name"], {})
        if {"newTag", "digest"} & set(image):
            known = {key: value for key, value in known.items() if key not in ("newTag", "digest")}
        images[image["name"]] = known | image
    return made | {"images": list(images.values())}
