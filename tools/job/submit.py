"""Brings a cell to a cluster: what has to be true beforehand, the application, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.core.errors import UserError
from tools.job.diagnosis.admission import is_over
from tools.job.diagnosis.explain import Answer, Explanation, explain
from tools.job.metrics import progress
from tools.job.metrics.series import Record
from tools.job.snapshot.collect import collect
from tools.job.snapshot.pod import JobPod, claim_names
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import Snapshot
from tools.job.status import Status
from tools.kube.kubectl import Kubectl, failure
from tools.kube.manifests import Manifests, Object, name_of
from tools.simulator.operator_admission import DEFAULT_CONTAINER

EVERY = 2.0  # seconds between two looks
STANDS = 6.0  # seconds that a cause must stand before it is one: kubelets and controllers need a moment
GONE_SECONDS = 60.0  # beyond the pods' own grace period


@dataclass(frozen=True)
class Applied:
    """One object as the API server has it now."""

    kind: str
    name: str
    uid: str


def namespace_of(kubectl: Kubectl) -> str:
    """Return the namespace that the options or the kubeconfig's context mean."""
    if kubectl.namespace:
        return kubectl.namespace
    chosen = Kubectl(kubectl.context).text("config", "view", "--minify", "--output=jsonpath={..namespace}")
    return chosen.strip() or "default"


def check_namespace(kubectl: Kubectl) -> str | None:
    """Raise UserError where the namespace does not exist; return why it could not be looked at, or None."""
    assert kubectl.namespace
    done = kubectl.run("get", "namespace", kubectl.namespace, "--ignore-not-found", "--output=name")
    if done.returncode != 0:
        problem = failure("get", done.stderr)
        if "orbidden" in done.stderr:
            return problem.message
        raise problem
    if not done.stdout.strip():
        hint = f"make it: kubectl create namespace {kubectl.namespace}"
        raise UserError(f"no such namespace: {kubectl.namespace}", hint)
    return None


def missing(kubectl: Kubectl, manifests: Manifests) -> Iterator[str]:
    """Yield what the job's pods need, the cell does not bring and the namespace does not have."""
    template = _templates(manifests.job())
    wanted = {(kind.lower(), name) for spec in template for kind, name, _key, _where in needed(spec)}
    for spec in template:
        wanted |= {("persistentvolumeclaim", name) for name in claim_names(JobPod({"spec": spec}))}
        wanted |= (
            {("serviceaccount", spec["serviceAccountName"])} if spec.get("serviceAccountName") else set()
        )
    brought = {(str(item["kind"]).lower(), name_of(item)) for item in manifests.objects}
    for kind, name in sorted(wanted - brought):
        done = kubectl.run("get", kind, name, "--ignore-not-found", "--output=name")
        if done.returncode == 0 and not done.stdout.strip():
            yield f"{kind} {name}"


def _templates(job: Object) -> list[Object]:
    replicas = job["spec"]["pytorchReplicaSpecs"].values()
    return [replica["template"]["spec"] for replica in replicas]


def use_image(manifests: Manifests, image: str) -> None:
    """Make the job's trainers run `image` instead of what the cell names."""
    for spec in _templates(manifests.job()):
        for container in spec["containers"]:
            if container["name"] == DEFAULT_CONTAINER:
                container["image"] = image


def existing(kubectl: Kubectl, name: str) -> Object | None:
    """Return the job of this name that the cluster has, None where it has none."""
    found = kubectl.items("pytorchjob", name, "--ignore-not-found")
    return found[0] if found else None


def text_of(manifests: Manifests) -> str:
    """Return the objects as kubectl reads them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests.objects})


def difference(kubectl: Kubectl, manifests: Manifests) -> str:
    """Return what applying would change as the API server sees it, whoever owns it; empty for nothing."""
    words = ("diff", "--server-side", "--force-conflicts", "--filename=-")
    done = kubectl.run(*words, stdin=text_of(manifests))
    if done.returncode not in (0, 1) or (done.returncode == 1 and not done.stdout.strip()):
        raise failure("diff", done.stderr)
    return done.stdout


def try_out(kubectl: Kubectl, manifests: Manifests, replaced: bool) -> list[str]:
    """Apply in a dry run on the server and return its warnings; UserError with what it refuses.

    A job that is to be `replaced` is judged as if nobody else owned its fields: it will be deleted.
    """
    job = manifests.job()
    others = Manifests(manifests.source, [item for item in manifests.objects if item is not job])
    force = ("--force-conflicts",) if replaced else ()
    _, warnings = apply(kubectl, others, "--dry-run=server") if others.objects else ([], [])
    _, more = apply(kubectl, Manifests(manifests.source, [job]), "--dry-run=server", *force)
    return [*warnings, *more]


def apply(kubectl: Kubectl, manifests: Manifests, *options: str) -> tuple[list[Applied], list[str]]:
    """Apply the objects server-side; return what the cluster has now, and its warnings.

    Raises UserError with what the API server refuses.
    """
    words = ("apply", "--server-side", *options, "--filename=-", "--output=json")
    done = kubectl.run(*words, stdin=text_of(manifests))
    if done.returncode != 0:
        problem = failure("apply", done.stderr)
        raise UserError(problem.message, problem.hint, 1 if problem.code == 2 else problem.code)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning:")]
    return [_applied(item) for item in _documents(done.stdout)], warnings


def _documents(text: str) -> Iterator[Object]:
    """Yield the objects that kubectl prints: a List, or one JSON text after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        value, end = decoder.raw_decode(text, at)
        yield from value["items"] if value.get("kind") == "List" else [value]
        at = end + len(text[end:]) - len(text[end:].lstrip())


def _applied(item: Object) -> Applied:
    metadata = item["metadata"]
    return Applied(str(item["kind"]), str(metadata["name"]), str(metadata.get("uid", "")))


def suspend(kubectl: Kubectl, name: str, value: bool) -> Object:
    """Set spec.runPolicy.suspend and return the job as it is then."""
    patch = json.dumps({"spec": {"runPolicy": {"suspend": value}}})
    found: Object = kubectl.json("patch", "pytorchjob", name, "--type=merge", f"--patch={patch}")
    return found


def delete(kubectl: Kubectl, job: Object, say: Callable[[str], None]) -> None:
    """Delete a job and wait until it and its pods are gone: their grace period is for a last checkpoint."""
    name = job["metadata"]["name"]
    kubectl.text("delete", "pytorchjob", name, "--wait=false")
    wait_gone(kubectl, job, say)
    if existing(kubectl, name) is not None:
        raise UserError(f"{name} is still there", "kubectl get pytorchjob: a finalizer may hold it", 1)


def wait_gone(kubectl: Kubectl, job: Object, say: Callable[[str], None]) -> None:
    """Wait until no pod of the job runs or is on its way out; UserError when their grace is long over."""
    name = job["metadata"]["name"]
    grace = max(int(spec.get("terminationGracePeriodSeconds") or 30) for spec in _templates(job))
    began = told = time.monotonic()
    while True:
        pods = kubectl.items("pods", f"--selector=training.kubeflow.org/job-name={name}")
        left = [one for one in pods if _goes_on(one)]
        if not left:
            return
        waited = time.monotonic() - began
        if waited > grace + GONE_SECONDS:
            names = ", ".join(one["metadata"]["name"] for one in left[:4])
            raise UserError(f"pods are still there after {waited:.0f} s: {names}", code=1)
        if time.monotonic() - told > EVERY:
            told = time.monotonic()
            say(f"{len(left)} pods still end, {waited:.0f} s of at most {grace} s")
        time.sleep(min(EVERY, 0.5))


def _goes_on(pod: Object) -> bool:
    """Say whether a pod runs, or has ended and is being taken away; what a finished job keeps does not."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not ended or "deletionTimestamp" in pod["metadata"]


@dataclass(frozen=True)
class Followed:
    """What came of a job: its first step, an explanation of why there is none, or neither in time."""

    snapshot: Snapshot
    step: Record | None
    explanation: Explanation


def follow(kubectl: Kubectl, name: str, uid: str, seconds: float, say: Callable[[str], None]) -> Followed:
    """Watch the job `uid` until its first step, its end, a cause that stands, or for `seconds`.

    A step counts when one of the job's present pods can have taken it: the run may have older ones, of a job
    before it or of this one before it was suspended.
    """
    began, shown = time.monotonic(), ""
    cause: tuple[str, float] | None = None
    while True:
        seen = collect(kubectl, name)
        if seen.uid != uid:
            raise UserError(f"{name} was replaced by another job while it was watched: {seen.uid}", code=1)
        step = first_step(seen)
        found = explain(seen)
        if step is not None or is_over(seen):
            return Followed(seen, step, found)
        kind = found.causes[0].kind if found.state is Answer.CAUSE else None
        if kind is None:
            cause = None
        elif cause is None or cause[0] != kind:
            cause = (kind, time.monotonic())
        elif time.monotonic() - cause[1] > STANDS:
            return Followed(seen, None, found)
        line = f"{Status(seen).state}: {found.summary}"
        if line != shown:
            say(line)
            shown = line
        if time.monotonic() - began > seconds:
            return Followed(seen, None, found)
        time.sleep(EVERY)


def first_step(seen: Snapshot) -> Record | None:
    """Return the newest step that was taken since the job's pods were started, None where there is none."""
    last = progress.of(seen).last
    started = [pod.started for pod in seen.pods if pod.started]
    if last is None or last.time is None or not started or last.time < min(started).timestamp():
        return None
    return last
