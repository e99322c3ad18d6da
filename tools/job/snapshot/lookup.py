"""Finds the job that a user means by a cell, by a job's name, or by nothing if there is only one job."""

from __future__ import annotations

from pathlib import Path

from tools.cells import kustomize, locate
from tools.cells.kustomize_graph import is_kustomization
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.repo import nearest
from tools.kube.kubectl import CANNOT_SEE, Kubectl, failure
from tools.kube.manifests import Manifests, Object, name_of, parse


def job_name(kubectl: Kubectl, text: str | None) -> str:
    """Return the name of the job that `text` means; UserError if none or several match."""
    if text and is_cell(text):
        return name_of(rendered(text).job())
    names = sorted(name_of(job) for job in jobs(kubectl))
    where = f"in namespace {kubectl.namespace}" if kubectl.namespace else "in this namespace"
    if text is None:
        if len(names) == 1:
            return names[0]
        if not names:
            hint = "`yard job submit CELL` creates one; -n names another namespace"
            raise UserError(f"no job {where}", hint)
        raise UserError(f"{len(names)} PyTorchJobs {where}: name one of them", f"jobs: {', '.join(names)}")
    if text in names:
        return text
    match = nearest(text, names)
    known = f"jobs: {', '.join(names)}" if names else "it has no PyTorchJob; -n names another namespace"
    raise UserError(f"no such job {where}: {text}", f"did you mean {match}?" if match else known)


def in_namespace(kubectl: Kubectl) -> Kubectl:
    """Return `kubectl` with its namespace set: the option's, else the one of the kubeconfig's context."""
    if kubectl.namespace:
        return kubectl
    done = kubectl.run("config", "view", "--minify", "--output=jsonpath={..namespace}")
    if "current-context must exist" in done.stderr:
        hint = (
            "`yard cluster kubeconfig CLUSTER --use` adds one; `kubectl config use-context NAME` chooses one"
        )
        raise UserError("no kubeconfig with a current context", hint, CANNOT_SEE)
    if done.returncode != 0:
        raise failure("config", done.stderr)
    return Kubectl(kubectl.context, done.stdout.strip() or "default")


def job(kubectl: Kubectl, name: str) -> Object:
    """Return the job of this name; UserError if there is none."""
    found = existing(kubectl, name)
    if found is None:
        where = f"in namespace {kubectl.namespace}"
        raise UserError(f"no such job {where}: {name}", "`yard job list -A` lists all jobs")
    return found


def existing(kubectl: Kubectl, name: str) -> Object | None:
    """Return the job of this name, None if there is none."""
    found = kubectl.items("pytorchjob", "--ignore-not-found", names=[name])
    return found[0] if found else None


def jobs(kubectl: Kubectl, everywhere: bool = False) -> list[Object]:
    """Return the PyTorchJobs of the namespace, or of all namespaces."""
    return kubectl.items("pytorchjobs", *(["--all-namespaces"] if everywhere else []))


def is_cell(text: str) -> bool:
    """Return whether `text` names a cell, not a job: it has a slash, or is a directory to render."""
    return "/" in text or is_kustomization(Path(text))


def rendered(cell: str) -> Manifests:
    """Return a cell's objects."""
    return built(locate.cell_path(cell))


def built(path: Path) -> Manifests:
    """Return the objects of a directory that kustomize can build."""
    return parse(kustomize.ensure(repo.root(), output.note).build(path), repo.shown(path))
