"""Show what was submitted as a job: its source, the command, and with --manifest the objects themselves."""

from dataclasses import asdict

from tools.cells import kustomize
from tools.cli.job import _options
from tools.core import UserError, git, output, repo
from tools.gitops import check, flux_objects, render
from tools.job import submitted
from tools.job.snapshot import LiveJob, lookup
from tools.job.submitted import Submitted
from tools.kube import Kubectl, name_of

FLUX = "kustomize.toolkit.fluxcd.io/name"


@_options.cluster
def command(kubectl: Kubectl, job: str | None, manifest: bool, as_json: bool) -> None:
    found = _found(lookup.in_namespace(kubectl), job)
    facts = found.facts
    if as_json:
        known = asdict(facts) if facts else {}
        output.data({"found": found.where, **known, "objects": found.manifests.objects})
        return
    if manifest:
        output.note(found.where)
        output.block(found.text(), raw=True)  # masked; line by line, it would not be YAML
        return
    output.line(found.where)
    rows = [("source", facts.source), ("command", facts.command), ("time", facts.time)] if facts else []
    output.table([*rows, *(("object", f"{one['kind']}/{name_of(one)}") for one in found.manifests.objects)])


def _found(kubectl: Kubectl, text: str | None) -> Submitted:
    try:
        job = lookup.find(kubectl, text)
    except UserError as problem:
        here = submitted.kept_here(str(kubectl.namespace), text) if text and problem.code == 2 else None
        if here is None:
            raise
        return here
    namespace = Kubectl(kubectl.context, job.namespace or kubectl.namespace)
    return submitted.kept(namespace, job) or from_git(job) or submitted.live(namespace, job)


def from_git(job: LiveJob) -> Submitted | None:
    """Return what Flux created the job from, None if it did not or if this clone does not have the run."""
    name = (job.top["metadata"].get("labels") or {}).get(FLUX)
    root = repo.project()
    if name is None or not repo.is_checkout():
        return None
    for cluster in flux_objects.names(root):
        for run in check.run_files(root, flux_objects.find(root, cluster)):
            if (run.name, run.job, run.namespace) == (name, name_of(job.top), job.namespace):
                if not git.has(root, run.commit):
                    return None
                where = f"{run.path} at commit {run.commit[:12]}, rendered as Flux renders it"
                return Submitted(where, render.render(root, run, kustomize.ensure(repo.root(), output.note)))
    return None
