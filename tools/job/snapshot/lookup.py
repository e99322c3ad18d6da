"""Which job a user means: a cell, a job's name, or the only one there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.cells import kustomize, locate
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.repo import nearest
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, name_of, parse


def job_name(kubectl: Kubectl, text: str | None) -> str:
    """Return the name of the job that `text` means; UserError where none or several could be meant."""
    if text and is_cell(text):
        return name_of(rendered(text).job())
    names = [str(job["metadata"]["name"]) for job in jobs(kubectl)]
    where = f"in namespace {kubectl.namespace}" if kubectl.namespace else "in this namespace"
    if text is None:
        if len(names) == 1:
            return names[0]
        hint = f"jobs: {', '.join(sorted(names))}" if names else "yard job submit CELL makes one"
        raise UserError(
            f"{len(names) or 'no'} PyTorchJobs {where}: name one" if names else f"no job {where}", hint
        )
    if text in names:
        return text
    match = nearest(text, names)
    known = (
        f"jobs: {', '.join(sorted(names))}" if names else "there is no PyTorchJob; -n names another namespace"
    )
    raise UserError(f"no such job {where}: {text}", f"did you mean {match}?" if match else known)


def jobs(kubectl: Kubectl, everywhere: bool = False) -> list[dict[str, Any]]:
    """Return the PyTorchJobs of the namespace, or of all."""
    return kubectl.items("pytorchjobs", *(["--all-namespaces"] if everywhere else []))


def is_cell(text: str) -> bool:
    """Say whether `text` is a cell and not a job's name: it has a slash, or is a directory to build."""
    return "/" in text or locate.is_kustomization(Path(text))


def rendered(cell: str) -> Manifests:
    """Return a cell's objects; UserError as kustomize's where it cannot be built."""
    path = locate.cell_path(cell)
    return parse(kustomize.ensure(repo.root(), output.note).build(path), repo.shown(path))
