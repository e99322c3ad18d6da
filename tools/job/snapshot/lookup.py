"""Finds the job that a user means: by a cell, by KIND/NAME, by a name, or by nothing if there is only one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.cells import locate
from tools.cells.kustomize_graph import is_kustomization
from tools.core import UserError, command_line, nearest
from tools.job.snapshot.kinds import NOT_READ
from tools.job.snapshot.live_job import EVERY, READ_KINDS, WRAPPERS, LiveJob, kind_of, kinds_called, title
from tools.job.snapshot.pod import JobPod
from tools.job.snapshot.queries import Queries
from tools.kube import Kubectl, Manifests, Object, name_of
from tools.kube.kubectl import CANNOT_SEE, failure, foreign
from tools.workload import Workload, kinds

LEVELS = 8  # of owners above a job
KEPT_OWNERS = ("CronJob",)  # an owner that does not create a stopped job again


@dataclass(frozen=True)
class Jobs:
    """The jobs of a namespace or cluster.

    `unread` are objects of kinds that are known and not read. `unseen` holds the reason for each kind of
    object that could not be listed.
    """

    found: list[LiveJob] = field(default_factory=list)
    unread: list[Object] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)

    @property
    def hidden(self) -> list[str]:
        """Why jobs may be missing: the kinds that are read and could not be listed."""
        return [f"not seen: {kind}: {why}" for kind, why in self.unseen.items() if kind not in NOT_READ]

    @property
    def topmost(self) -> list[LiveJob]:
        """The jobs that are not a part of another one, without batch Jobs that start no training."""
        return [one for one in self.found if not one.is_inner and _is_training(one.workload)]


def _is_training(workload: Workload) -> bool:
    indexed = workload.spec.get("completionMode") == "Indexed"
    return workload.resource != "jobs.batch" or indexed or workload.trains


def find(kubectl: Kubectl, text: str | None) -> LiveJob:
    """Return the job that `text` means; UserError if none or several match."""
    if text and is_cell(text):
        return LiveJob(get(kubectl, kinds.job_of(locate.rendered(text))))
    seen = jobs(kubectl)
    prefix, _, name = (text or "").rpartition("/")
    among = kinds_called(prefix) if prefix else None
    unread = [one for one in seen.unread if name_of(one) == name and (not among or kind_of(one) in among)]
    if among and among <= set(NOT_READ):
        kind = next(iter(among)).partition(".")[0]
        raise _not_read(f"{kind}/{name}", kind)
    found = seen.topmost if text is None else _called(seen, name, among)
    if len(found) == 1:
        return found[0]
    where = f"in namespace {kubectl.namespace}" if kubectl.namespace else "in this namespace"
    if found:
        names = ", ".join(_names(found))
        called = f" called {text}" if text is not None else ""
        raise UserError(f"{len(found)} jobs{called} {where}: name one of them", f"jobs: {names}")
    if unread:
        raise _not_read(title(unread[0]), str(unread[0]["kind"]))
    raise _missing(seen, text, name, where)


def _called(seen: Jobs, name: str, among: set[str] | None) -> list[LiveJob]:
    """Return the jobs of this name: those that a user made, or else parts of them."""
    found = [one for one in seen.found if one.is_called(name, among)]
    whole = [one for one in found if not one.is_inner]
    exact = [one for one in whole or found if name_of(one.workload.item) == name]
    return exact or whole or found


def _names(found: Sequence[LiveJob]) -> list[str]:
    """Return the names that tell jobs apart: with their kinds if two have the same."""
    names = [name_of(one.workload.item) for one in found]
    if len(set(names)) == len(names):
        return sorted(names)
    kinds_of = [kind_of(one.workload.item) for one in found]
    shown = [kind.partition(".")[0] for kind in kinds_of]
    clear = len(set(zip(shown, names, strict=True))) == len(names)
    heads = [kind.lower() for kind in shown] if clear else [EVERY[kind] for kind in kinds_of]
    return sorted(f"{head}/{name}" for head, name in zip(heads, names, strict=True))


def _not_read(what: str, kind: str) -> UserError:
    message = f"CANNOT TELL: {what}: jobs of the kind {kind} are not read"
    return UserError(message, f"kinds that are read: {READ_KINDS}", CANNOT_SEE)


def _missing(seen: Jobs, text: str | None, name: str, where: str) -> UserError:
    """Return the error for a job that does not exist, or that may be of a kind that could not be listed."""
    said = f"no such job {where}: {text}" if text is not None else f"no job {where}"
    if seen.hidden:
        return UserError(said, "; ".join(seen.hidden), CANNOT_SEE)
    if text is None:
        return UserError(said, "`yard job submit CELL` creates one; -n names another namespace")
    names = _names(seen.topmost)
    match = nearest(name, names)
    known = f"jobs: {', '.join(names)}" if names else "it has no job; -n names another namespace"
    return UserError(said, f"did you mean {match}?" if match else known)


def jobs(kubectl: Kubectl, everywhere: bool = False) -> Jobs:
    """Return the jobs of the namespace, or of all namespaces.

    A kind that the cluster does not serve is passed over. Raises UserError if no kind could be listed.
    """
    queries = Queries(kubectl)
    served = _served(kubectl, queries.unseen)
    wanted = {kind: resource for kind, resource in EVERY.items() if resource in served}
    queries.ask({}, [wanted], *(["--all-namespaces"] if everywhere else []))
    if wanted and not queries.objects:
        raise UserError(next(iter(queries.unseen.values())), code=CANNOT_SEE)
    items = [item for kind in wanted for item in queries.objects.get(kind, [])]
    unread = [item for item in items if kind_of(item) in NOT_READ]
    by_uid = {item["metadata"].get("uid"): item for item in items}
    read = [(workload, item) for item in items if (workload := kinds.of(item)) is not None]
    found = [LiveJob(workload, _top(item, by_uid)) for workload, item in read]
    known = {_identity(one) for one in found}
    for wrapper in (item for item in items if kind_of(item) in WRAPPERS):
        inside = [LiveJob(one, wrapper) for one in kinds.find(Manifests("", [wrapper])).workloads]
        found += [one for one in inside if _identity(one) not in known]
    return Jobs(found, unread, queries.unseen)


def _identity(job: LiveJob) -> tuple[str, str, str]:
    return job.namespace, job.workload.resource, job.workload.name


def _served(kubectl: Kubectl, unseen: dict[str, str]) -> set[str]:
    """Return the resources that the cluster serves; UserError if it does not answer.

    An API group of jobs whose server is down is noted in `unseen`. Any other group does not matter.
    """
    words = ("api-resources", "--verbs=list", "--namespaced=true", "--output=name")
    done = kubectl.run(*words)
    names = set(done.stdout.split())
    if done.returncode != 0 and not names:
        raise failure("api-resources", done.stderr)
    if "pods" not in names:  # every cluster serves them
        raise foreign("api-resources", done.stdout)
    groups = {kind.partition(".")[2] for kind in EVERY}
    for group in sorted(one for one in groups if f" {one}/" in done.stderr and done.returncode != 0):
        unseen[group] = failure("api-resources", done.stderr).message
    return names


def _top(item: Object, by_uid: dict[str, Object]) -> Object | None:
    """Return the topmost owner of an object: an object that was listed, or the reference to another one."""
    owner: Object | None = None
    for _ in range(LEVELS):
        references = item["metadata"].get("ownerReferences") or []
        reference = next((one for one in references if one.get("controller")), None)
        if reference is None or reference.get("kind") in KEPT_OWNERS:
            break
        names = {key: reference.get(key) for key in ("name", "uid")}
        stub = {"apiVersion": reference.get("apiVersion"), "kind": reference.get("kind"), "metadata": names}
        owner = item = by_uid.get(reference.get("uid"), stub)
    return owner


def in_namespace(kubectl: Kubectl) -> Kubectl:
    """Return `kubectl` with its namespace set: the option's, else the one of the kubeconfig's context."""
    if kubectl.namespace:
        return kubectl
    done = kubectl.run("config", "view", "--minify", "--output=jsonpath={..namespace}")
    if "current-context must exist" in done.stderr:
        hint = "`yard cluster kubeconfig CLUSTER --use` adds one; `kubectl config use-context NAME` chooses one"
        raise UserError("no kubeconfig with a current context", hint, CANNOT_SEE)
    if done.returncode != 0:
        raise failure("config", done.stderr)
    return Kubectl(kubectl.context, done.stdout.strip() or "default")


def get(kubectl: Kubectl, wanted: Workload) -> Workload:
    """Return the job of the cluster with this kind and name; UserError if there is none."""
    return _workload(kubectl.json("get", wanted.resource, names=[wanted.name]))


def again(kubectl: Kubectl, job: LiveJob) -> LiveJob:
    """Return the job as it is now; UserError if it is gone. The job of an AppWrapper may not exist."""
    here = Kubectl(kubectl.context, job.namespace or kubectl.namespace)
    wraps = kind_of(job.top) in WRAPPERS
    owner = job.owner
    if owner is not None and wraps:
        owner = here.json("get", WRAPPERS[kind_of(owner)], names=[name_of(owner)])
    now = existing(here, job.workload) if wraps else get(here, job.workload)
    return LiveJob(now or job.workload, owner)


def existing(kubectl: Kubectl, wanted: Workload) -> Workload | None:
    """Return the job of the cluster with this kind and name, None if there is none."""
    found = kubectl.items(wanted.resource, "--ignore-not-found", names=[wanted.name])
    return _workload(found[0]) if found else None


def pods(kubectl: Kubectl, job: Workload) -> list[JobPod]:
    """Return the pods of a job, also those that have ended or are being deleted."""
    return [JobPod(one, job) for one in kubectl.items("pods", command_line.selectors(job.selector))]


def _workload(item: Object) -> Workload:
    found = kinds.of(item)
    if found is None:
        raise _not_read(title(item), str(item.get("kind")))
    return found


def is_cell(text: str) -> bool:
    """Return whether `text` names a cell, not a job: it has a slash, or is a directory to render.

    KIND/NAME names a job, unless there is such a directory.
    """
    if is_kustomization(Path(text)):
        return True
    prefix, slash, name = text.partition("/")
    return bool(slash) and ("/" in name or not kinds_called(prefix))


def top_of(manifests: Manifests) -> Object:
    """Return the object that holds the only training of the manifests: the job, or its wrapper."""
    job = kinds.job_of(manifests)
    return next(item for item in manifests.objects if title(item) == (job.wrapper or job.title))
