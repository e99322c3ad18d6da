"""Applies a cell to a cluster, after checking what would fail there."""

import functools
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tools.cells.knobs import Knobs, applied
from tools.core import Say, State, UserError, wait
from tools.job.snapshot import LiveJob, lookup
from tools.job.snapshot.live_job import EVERY, kind_of
from tools.job.snapshot.pod import template_specs
from tools.kube import Kubectl, Manifests, Object, name_of, selectors
from tools.kube.images import is_local, lists
from tools.kube.kubectl import failure, foreign, is_named
from tools.preflight import live
from tools.preflight.evaluate import evaluate
from tools.prove import proofs
from tools.stage import look
from tools.workload import Workload, kinds
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import GROUP, TrainJob

MOST_NAMED = 5  # nodes
FEATURE = "trainjob"  # overlays/feature/trainjob
# The words of the webhooks of Trainer (v2.3.0, pkg/runtime/core/trainingruntime.go) and of Kueue (0.19.2,
# pkg/controller/jobs/trainjob/trainjob_controller.go), and how long their caches may take.
RUNTIME_UNSEEN = re.compile(r"must be created before the TrainJob is created|request: runtime '[^']+' not found")
RUNTIME_SECONDS = 20.0


@dataclass(frozen=True)
class Applied:
    """One object that the API server has accepted."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name} {self.uid}"


def check(kubectl: Kubectl, manifests: Manifests, say: Say, target: str = "", volume: bool = True) -> None:
    """Raise UserError if preflight fails, or if the namespace or something that the pods need is missing.

    Says whether the job's script has been proven.
    `target` are the words by which a command line names the manifests. With `volume`, a small pod looks for
    data and weights on the job's volume.
    """
    checked, right, hint = evaluate(manifests), "", f"yard preflight {target or manifests.source}"
    if checked.of(State.FAIL):  # an older release of the operator may admit the job
        operator, right = live.operator(kubectl, manifests)
        checked = evaluate(manifests, operator=operator, missing_right=right)
    failed = checked.of(State.FAIL)
    for verdict in failed:
        named = f" (this user may not {right})" if any(right and right in line for line in verdict.evidence) else ""
        say(f"FAIL {verdict.details['rule']}: {verdict.summary}{named}")
    warned = sorted({str(verdict.details["rule"]) for verdict in checked.of(State.WARN)} - {"local-image"})
    if warned:
        say(f"WARN {', '.join(warned)}: {hint}")
    say(f"script: {proofs.line(manifests)}")
    if failed:
        raise UserError(f"{manifests.source}: preflight fails, nothing was applied", hint, 1)
    _check_namespace(kubectl, say)
    for warning in unpulled(kubectl, manifests):
        say(f"WARN {warning}")
    _check_references(kubectl, manifests, say)
    if volume:
        look.check(kubectl, manifests, say)


def _check_namespace(kubectl: Kubectl, say: Say) -> None:
    assert kubectl.namespace
    done = kubectl.run("get", "namespace", "--ignore-not-found", "--output=name", names=[kubectl.namespace])
    if done.returncode != 0:
        problem = failure("get", done.stderr)
        if "orbidden" not in done.stderr:
            raise problem
        say(f"the namespace could not be checked: {problem.message}")
    elif not done.stdout.strip():
        hint = f"create it: kubectl create namespace {kubectl.namespace}"
        raise UserError(f"no such namespace: {kubectl.namespace}", hint)


def _check_references(kubectl: Kubectl, manifests: Manifests, say: Say) -> None:
    """Raise UserError if a Secret, ConfigMap, key, claim or account that a pod needs is missing in the cluster."""
    found = live.check(kubectl, manifests)
    for verdict in found:
        if verdict.state in (State.WARN, State.CANNOT_TELL):
            say(f"{verdict.state.value} {live.RULE}: {verdict.summary}")
    lacking = [verdict for verdict in found if verdict.state is State.FAIL]
    if lacking:
        message = f"{'; '.join(verdict.summary for verdict in lacking)}: nothing was applied"
        raise UserError(message, lacking[0].remedy, 1)


def lacks(kubectl: Kubectl, kind: str, name: str) -> bool:
    """Return whether the namespace has no such object; False if it may not be read."""
    done = kubectl.run("get", kind, "--ignore-not-found", "--output=name", names=[name])
    return done.returncode == 0 and not done.stdout.strip()


def unpulled(kubectl: Kubectl, manifests: Manifests) -> Iterator[str]:
    """Yield a sentence for each image that no node can pull and that not all nodes for its pods have."""
    images = {
        str(one.get("image")): spec
        for spec in template_specs(kinds.job_of(manifests))
        for one in [*(spec.get("initContainers") or []), *spec["containers"]]
        if is_local(str(one.get("image")))
    }
    if not images:
        return
    try:
        nodes, unseen = kubectl.items("nodes"), "no node fits the pods"
    except UserError as problem:
        nodes, unseen = [], problem.message
    for image, spec in images.items():
        fitting = [node for node in nodes if selectors.wants(spec, node)]
        without = [name_of(node) for node in fitting if not lists(node, image)]
        where = f"which nodes have it is unknown: {unseen}"
        if fitting:
            where = f"not listed by the kubelet of {', '.join(without[:MOST_NAMED])}"
            where += f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        if without or not fitting:
            yield f"no node can pull {image} ({image.partition('/')[0]} is the node itself); {where}"


def difference(kubectl: Kubectl, manifests: Manifests) -> str:
    """Return the API server's diff between the cluster and the manifests, empty if they are equal."""
    words = ("diff", "--server-side", "--force-conflicts", "--filename=-")
    done = kubectl.run(*words, stdin=manifests.as_list())
    if done.returncode not in (0, 1) or (done.returncode == 1 and not done.stdout.strip()):
        raise failure("diff", done.stderr)
    return done.stdout


def dry_run(kubectl: Kubectl, manifests: Manifests, replaced: bool) -> list[str]:
    """Apply in a dry run on the server and return its warnings; UserError with the reason of a refusal.

    A job that will be `replaced` is deleted first, so other owners of its fields are ignored.
    """
    job = lookup.top_of(manifests)
    others = Manifests(manifests.source, [item for item in manifests.objects if item is not job])
    force = ("--force-conflicts",) if replaced else ()
    _, warnings = apply(kubectl, others, "--dry-run=server") if others.objects else ([], [])
    if awaits_runtime(kubectl, manifests):
        return [*warnings, f"not tried before its runtime exists: {job['kind']}/{name_of(job)}"]
    _, more = apply(kubectl, Manifests(manifests.source, [job]), "--dry-run=server", *force)
    return [*warnings, *more]


def awaits_runtime(kubectl: Kubectl, manifests: Manifests) -> Workload | None:
    """Return the job that Trainer would refuse in a dry run, because its runtime comes with it."""
    for job in kinds.find(manifests).workloads:
        runtime = job.runtime if isinstance(job, TrainJob) else None
        if runtime is not None and lacks(kubectl, f"{runtime['kind']}.{GROUP}".lower(), name_of(runtime)):
            return job
    return None


def with_served_kind(kubectl: Kubectl, manifests: Manifests, knobs: Knobs, say: Say) -> Knobs:
    """Return the knobs, with the feature that makes a PyTorchJob a TrainJob where only that is served.

    Raises UserError for a PyTorchJob that is not a cell's.
    """
    if kinds.job_of(manifests).kind != PyTorchJob.kind or FEATURE in knobs.features:
        return knobs
    done = kubectl.run("api-resources", "--verbs=create", "--output=name")
    served = {PyTorchJob.resource, TrainJob.resource} & set(done.stdout.split())
    if TrainJob.resource not in served:
        return knobs
    if PyTorchJob.resource in served:
        say(f"kind: PyTorchJob; the cluster serves TrainJob too: --feature {FEATURE}")
        return knobs
    try:
        applied(manifests, Knobs(features=(FEATURE,)))
    except UserError:
        message = f"{manifests.source}: the cluster serves TrainJob and not PyTorchJob"
        raise UserError(message, f"yard migrate -f {shlex.quote(manifests.source)} > trainjob.yaml", 1) from None
    say(f"kind: TrainJob (--feature {FEATURE}), because the cluster does not serve PyTorchJob")
    return replace(knobs, features=(*knobs.features, FEATURE))


def apply(kubectl: Kubectl, manifests: Manifests, *options: str) -> tuple[list[Applied], list[str]]:
    """Apply the objects server-side; return the accepted objects and the server's warnings.

    The webhooks of Trainer and Kueue read runtimes from caches, and may refuse a TrainJob whose runtime was created a
    moment before. Then the objects are applied again. Raises UserError with the reason of a refusal.
    """
    words = ("apply", "--server-side", *options, "--filename=-", "--output=json")
    attempt = functools.partial(kubectl.run, *words, stdin=manifests.as_list())
    done = wait.settled(attempt, lambda one: not RUNTIME_UNSEEN.search(one.stderr), RUNTIME_SECONDS, every=1.0)
    if done.returncode != 0:
        problem = failure("apply", done.stderr)
        raise UserError(problem.message, problem.hint, 1 if problem.code == 2 else problem.code)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning:")]
    return [
        Applied(str(item["kind"]), name_of(item), str(item["metadata"].get("uid", "")))
        for item in _documents(done.stdout)
    ], warnings


def _documents(text: str) -> Iterator[Object]:
    """Yield the objects in kubectl's output: a List, or several JSON texts. Raises UserError for others."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise foreign("apply", text) from None
        found = value.get("items", [value]) if isinstance(value, dict) else None
        if not isinstance(found, list) or not all(map(is_named, found)):
            raise foreign("apply")
        yield from found
        at = end + len(text[end:]) - len(text[end:].lstrip())


def existing(kubectl: Kubectl, manifests: Manifests) -> LiveJob | None:
    """Return the job of the cluster with the kind and name of the manifests' job, None if there is none."""
    wanted, top = kinds.job_of(manifests), lookup.top_of(manifests)
    found = lookup.existing(kubectl, wanted)
    resource = EVERY.get(kind_of(top)) if wanted.wrapper else None
    wrappers = kubectl.items(resource, "--ignore-not-found", names=[name_of(top)]) if resource else []
    if wrappers:
        return LiveJob(found or wanted, wrappers[0])
    return LiveJob(found) if found else None


def resumes(job: LiveJob | None, change: str, resume: bool, replace: bool) -> bool:
    """Return whether the existing job continues as it is; UserError if an option is missing or wrong."""
    if job is None or replace:
        return False
    name, state = name_of(job.top), job.state
    if not resume:
        hint = "--resume continues it, --replace ends it first, --name NAME submits another job beside it"
        raise UserError(f"a job {name} exists already ({state}); nothing was changed", hint, 1)
    if state in ("Succeeded", "Failed"):
        return False
    if not job.workload.suspended and state != "Suspended":
        raise UserError(f"{name} is {state} and not suspended: there is nothing to resume", code=1)
    if change:
        hint = "--replace starts the cell as it is now"
        raise UserError(f"the cell differs from the suspended job {name}", hint, 1)
    return True


def uid_of(objects: list[Applied], item: Object) -> str:
    """Return the UID of an object that was applied."""
    return next(one.uid for one in objects if (one.kind, one.name) == (item["kind"], name_of(item)))
