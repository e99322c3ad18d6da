"""Whether a cluster has what a manifest's pods name: Secrets and ConfigMaps with their keys, claims, accounts.

Only names and keys are asked for: kubectl prints no value.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from tools.core.command_line import is_subdomain
from tools.core.repo import nearest
from tools.core.verdict import Verdict, bad, doubtful, good, unclear
from tools.kube import Kubectl, Manifests, name_of
from tools.kube.kubectl import failure
from tools.preflight.rule import Place
from tools.preflight.rules.references import Wanted, classes, wanted
from tools.preflight.subject import Template, subject
from tools.workload import kinds, operator_pods
from tools.workload.pytorchjob import PyTorchJob
from tools.workload.trainjob import GROUP, TrainJob

RULE = "references-live"
REASON = "a pod starts only when each object and key that it names exists"
_PARTS = "".join(
    f"{{{{range $key, $value := .{part}}}}}{{{{println $key}}}}{{{{end}}}}" for part in ("data", "binaryData")
)
_NAMES = "--output=go-template={{println .metadata.name}}" + _PARTS
_RIGHT = "list deployments.apps in all namespaces"
_SEE = "kubectl get clustertrainingruntimes,trainingruntimes"
RUNTIMES = {kind: f"{kind.lower()}s.{GROUP}" for kind in ("ClusterTrainingRuntime", "TrainingRuntime")}
_PULL_KEYS = (".dockerconfigjson", ".dockercfg")


@dataclass(frozen=True)
class _Seen:
    """An object of the cluster: its keys, None if it is not there, or the right that is missing to tell."""

    keys: list[str] | None = None
    right: str = ""


def operator(kubectl: Kubectl, manifests: Manifests) -> tuple[str, str]:
    """Return the release of the training operator, and the right that is missing to tell.

    Both are empty for jobs of other kinds. The release is empty where it is unknown.
    """
    if not any(job.kind == PyTorchJob.kind for job in kinds.find(manifests).workloads):
        return "", ""
    done = kubectl.run("get", "deployments", "--all-namespaces", "--output=jsonpath={..image}")
    return operator_pods.release(done.stdout.split()), _RIGHT if "orbidden" in done.stderr else ""


def with_runtimes(kubectl: Kubectl, manifests: Manifests) -> tuple[Manifests, list[Verdict]]:
    """Return the manifests with the runtimes of TrainJobs that only the cluster has, and a verdict on each lost one.

    What this user may not read stays unknown.
    """
    objects, lost = [*manifests.objects], []
    for job in (one for one in kinds.find(manifests).workloads if isinstance(one, TrainJob)):
        reference = job.section("runtimeRef")
        kind, name = reference.get("kind") or "ClusterTrainingRuntime", str(reference.get("name"))
        if job.runtime is not None or kind not in RUNTIMES or not is_subdomain(name):
            continue
        here = Kubectl(kubectl.context, job.item["metadata"].get("namespace") or kubectl.namespace)
        done = here.run("get", RUNTIMES[kind], "--ignore-not-found", "--output=json", names=[name])
        hidden = "orbidden" in done.stderr
        if done.returncode != 0 and not hidden and "resource type" not in done.stderr:
            raise failure("get", done.stderr)
        if done.stdout.strip():
            found = json.loads(done.stdout)
            objects.append({**{key: found[key] for key in ("apiVersion", "kind", "spec")}, "metadata": {"name": name}})
        elif not hidden:
            verdict = bad(Place(job.title, "spec.runtimeRef", name), f"{kind} {name} is not in the cluster", _SEE)
            lost.append(replace(verdict, details={**verdict.details, "rule": RULE}))
    return Manifests(manifests.source, objects), lost


def check(kubectl: Kubectl, manifests: Manifests) -> list[Verdict]:
    """Return a verdict for each object that a pod names and the manifest does not bring.

    `kubectl` has the namespace of the objects without one. Raises UserError if the API server does not answer.
    """
    brought = {(str(item["kind"]), name_of(item)) for item in manifests.objects}
    look = cache(_look)
    found: dict[tuple[object, ...], Verdict] = {}
    named = [(one, row) for one in subject(manifests).templates for row in [*wanted(one), *classes(one), *_more(one)]]
    required_first = sorted(named, key=lambda pair: pair[1][-1])
    for template, (kind, name, path, key, optional) in required_first:
        here = Kubectl(kubectl.context, template.namespace or kubectl.namespace)
        if name and (kind, name) not in brought and is_subdomain(name):
            place = Place(template.object, path, name)
            verdict = _verdict(place, look(here, kind, name), f"{kind} {name}", here, key, optional)
            found.setdefault((kind, name, key, here.namespace), verdict)
    return [replace(one, details={**one.details, "rule": RULE}) for one in found.values()]


def _more(template: Template) -> Iterator[Wanted]:
    """Yield what the kubelet itself uses for a pod: it goes without a pull secret that is missing."""
    if account := template.spec.get("serviceAccountName"):
        yield "ServiceAccount", str(account), f"{template.spec_path}.serviceAccountName", None, False
    for name, volume in template.volumes().items():
        if given := (volume.get("csi") or {}).get("nodePublishSecretRef"):
            yield "Secret", str(given.get("name") or ""), f"{template.spec_path}.volumes[{name}].csi", None, False
    for one in template.spec.get("imagePullSecrets") or []:
        yield "Secret", str(one.get("name") or ""), f"{template.spec_path}.imagePullSecrets", _PULL_KEYS[0], True


def _look(kubectl: Kubectl, kind: str, name: str) -> _Seen:
    done = kubectl.run("get", kind.lower(), "--ignore-not-found", _NAMES, names=[name])
    if done.returncode == 0 or "resource type" in done.stderr:  # also of Kueue where it is not installed
        lines = done.stdout.split()
        return _Seen(lines[1:] if lines else None)
    if "orbidden" not in done.stderr:
        raise failure("get", done.stderr)
    wide = kind in ("PriorityClass", "RuntimeClass")
    return _Seen(right=f"get {kind.lower()}{'es' if wide else f's in namespace {kubectl.namespace}'}")


def _verdict(place: Place, seen: _Seen, title: str, kubectl: Kubectl, key: str | None, optional: bool) -> Verdict:
    pull = place.path.endswith(".imagePullSecrets")
    if seen.right:
        summary = (
            f"whether {title} exists{f' with the key {key}' if key else ''} is unknown: this user may not {seen.right}"
        )
        return unclear(place, summary, f"grant the right: {seen.right}, or ask who has it")
    if seen.keys is None:
        where = "the cluster" if "Class " in title else f"namespace {kubectl.namespace}"
        summary = f"{title} is not in {where}"
        if pull:
            return doubtful(place, f"{summary}: images are pulled without it", "create it, or remove the reference")
        remedy = "base/storage has the claims" if title.startswith("PersistentVolumeClaim") else f"create {title}"
        return good(place, f"{summary}, and it is optional") if optional else bad(place, summary, remedy)
    if key is None or key in seen.keys or (pull and set(_PULL_KEYS) & {*seen.keys}):
        return good(place, f"{title} is there{f' and has the key {key}' if key else ''}")
    match = nearest(key, seen.keys)
    summary = f"{title} has no key {key}"
    remedy = f"did you mean {match}?" if match else f"add the key; it has {', '.join(sorted(seen.keys)[:5]) or 'none'}"
    if pull:
        return doubtful(place, f"{summary}: it is not a pull secret", remedy)
    return good(place, f"{summary}, which is optional") if optional else bad(place, summary, remedy)
