"""Renders a run as Flux does: the cell at the run's commit, with the run's fields in its kustomization."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tools.cells.kustomize import Renderer
from tools.cells.kustomize_graph import is_kustomization
from tools.cells.matrix_file import text_of
from tools.core import UserError, git, repo
from tools.gitops.run_file import FOLDERS, RunFile
from tools.kube.manifests import Manifests, parse


def render(root: Path, run: RunFile, renderer: Renderer) -> Manifests:
    """Return a run's objects. Raises UserError where the commit lacks the cell or the cell does not build."""
    with unpacked(root, run.commit) as tree:
        return parse(built(tree, run, renderer), run.path)


@contextlib.contextmanager
def unpacked(root: Path, commit: str) -> Iterator[Path]:
    """Yield a directory with what runs of a commit are built from."""
    with tempfile.TemporaryDirectory(prefix="trainyard-run-") as directory:
        git.unpack(root, commit, FOLDERS, Path(directory))
        yield Path(directory)


def uncommitted(root: Path, run: RunFile, committed: str, renderer: Renderer) -> str:
    """Return the diff from a run, as `built` returns it, to the same run of the working tree; empty if they are equal.

    A cell that the working tree does not have counts as unchanged.
    """
    if not is_kustomization(root / run.cell):
        return ""
    with tempfile.TemporaryDirectory(prefix="trainyard-run-") as directory:
        for name in FOLDERS:
            shutil.copytree(root / name, Path(directory) / name, symlinks=True)
        here = built(Path(directory), run, renderer)
    return repo.diff(f"{run.cell} at {run.commit[:12]}", committed, here, f"{run.cell} here")


def built(tree: Path, run: RunFile, renderer: Renderer) -> str:
    """Return what the cell in a copy of FOLDERS renders to as this run. Raises UserError."""
    if not is_kustomization(tree / run.cell):
        raise UserError(f"{run.path}: commit {run.commit[:12]} has no cell {run.cell}")
    path = tree / run.cell / "kustomization.yaml"
    text = text_of(path, tree)
    path.write_text(yaml.safe_dump(_edited(yaml.safe_load(text), run)), encoding="utf-8")
    try:
        return renderer.build(path.parent)
    except UserError as problem:
        raise UserError(f"{run.path}: {problem.message}", problem.hint, problem.code) from None
    finally:
        path.write_text(text, encoding="utf-8")


def _edited(leaf: dict[str, Any], run: RunFile) -> dict[str, Any]:
    """Return a cell's kustomization with the fields that Flux adds.

    Source: kustomize/kustomize_generator.go of fluxcd/pkg, version 1.35.6.
    """
    spec = run.spec
    made = dict(leaf)
    for key, name in (("namespace", "targetNamespace"), ("nameSuffix", "nameSuffix"), ("namePrefix", "namePrefix")):
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
