"""Another try of a failed job: whether it can help, by the cause of the failure, and what it changes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.core import repo
from tools.core.errors import UserError
from tools.job import submit
from tools.job.diagnosis.explain import Answer, Explanation
from tools.job.diagnosis.resources import accelerators
from tools.job.snapshot.references import needed
from tools.job.snapshot.snapshot import Snapshot
from tools.job.status import state_of
from tools.job.submit import Applied
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Manifests, Object
from tools.local.job import config_texts

LEDGER = "trainyard/attempts"  # annotation of the job: its attempts so far, as JSON
MICRO = "parallel.micro_batch_size"
OWNERS = ("kustomize.toolkit.fluxcd.io/name", "argocd.argoproj.io/instance")
UNKNOWN = "unknown"
# How often in a row the same cause is tried again. What is not here would fail in the same way again.
MOST = {
    **dict.fromkeys(
        (
            "drained",
            "preempted",
            "evicted",
            "node-lost",
            "node-refused",
            "killed",
            "device",
            "deadline",
            "node-unhealthy",
        ),
        3,
    ),
    **dict.fromkeys(
        ("lost-peer", "communication", "collective-timeout", "rendezvous", "rendezvous-dns", "hang"), 3
    ),
    **dict.fromkeys(("hub-unreachable", "hub-rate-limit", "object-store", "upload", "storage"), 3),
    **dict.fromkeys(("crash", "memory-fault", "backoff", UNKNOWN), 1),
    "oom-device": 4,
    "oom-host": 4,
}
_DROPPED = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "finalizers")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class Attempt:
    """One try that has ended: the job's UID, why it failed, and what the next one changed."""

    uid: str
    ended: str
    cause: str
    evidence: str
    changed: str


@dataclass(frozen=True)
class Plan:
    """The next try: its objects, the ledger with the last try at its end, and the change in words."""

    objects: Manifests
    ledger: list[Attempt]

    @property
    def last(self) -> Attempt:
        """Return the try that has just failed."""
        return self.ledger[-1]


def ledger(job: Object) -> list[Attempt]:
    """Return a job's earlier tries; UserError where somebody else has written the annotation."""
    text = (job["metadata"].get("annotations") or {}).get(LEDGER, "[]")
    try:
        return [Attempt(**one) for one in json.loads(text)]
    except (ValueError, TypeError):
        name = job["metadata"]["name"]
        raise UserError(f"{name}: the annotation {LEDGER} is no ledger: {text[:80]}") from None


def plan(kubectl: Kubectl, seen: Snapshot, found: Explanation, most: int) -> Plan:
    """Return the next try; UserError, with the reason, where another one cannot help or is one too many."""
    _check_state(seen, found)
    cause = found.causes[0] if found.state is Answer.CAUSE else None
    kind = cause.kind if cause else UNKNOWN
    evidence = cause.evidence[0] if cause and cause.evidence else found.summary
    before = ledger(seen.job)
    _check_bounds(kind, found, before, most)
    objects = Manifests(seen.name, [_clean(seen.job), *_configuration(kubectl, seen)])
    changed = "nothing"
    if kind in ("oom-device", "oom-host"):
        changed = _halve(objects, seen, cause.remedy if cause else "", len(before) + 1)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    attempts = [*before, Attempt(seen.uid, ended, kind, evidence, changed)]
    job = objects.job()
    annotations = job["metadata"].setdefault("annotations", {})
    annotations[LEDGER] = json.dumps([asdict(one) for one in attempts])
    (job["spec"].get("runPolicy") or {}).pop("suspend", None)
    if changed == "nothing":  # the configuration stands as it is
        objects = Manifests(seen.name, [job])
    return Plan(objects, attempts)


def _check_state(seen: Snapshot, found: Explanation) -> None:
    state = state_of(seen.job)
    if state == "Suspended":
        raise UserError(f"{seen.name} is suspended", "yard job submit CELL --resume lets it go on", 1)
    if found.state is Answer.CANNOT_TELL and not seen.condition("Failed"):
        raise UserError(f"it cannot be told whether {seen.name} fails: {found.summary}", "yard job why -v", 3)
    failing = seen.condition("Failed") or any(pod.restarts or pod.end for pod in seen.pods)
    if found.state is Answer.HEALTHY or not failing:
        raise UserError(f"{seen.name} has not failed: {found.summary}", "yard job why -v", 1)
    owner = next((label for label in OWNERS if label in (seen.job["metadata"].get("labels") or {})), None)
    if owner:
        message = f"{seen.name} is reconciled from git ({owner}): another try would be undone"
        raise UserError(message, "change its run file in git instead", 1)


def _check_bounds(kind: str, found: Explanation, before: list[Attempt], most: int) -> None:
    if kind not in MOST:
        remedy = found.causes[0].remedy
        raise UserError(f"another try would fail in the same way: {kind}: {found.summary}", remedy, 1)
    if len(before) >= most:
        raise UserError(f"it was tried again {len(before)} times already, {most} are allowed", "--most N", 1)
    same = 0
    for one in reversed(before):
        if one.cause != kind:
            break
        same += 1
    if same >= MOST[kind]:
        again = f"{kind} has come again after {same} more tries: it is no accident"
        raise UserError(again, "yard job why says what to do about it", 1)


def _clean(item: Object) -> Object:
    """Return an object as it may be applied anew."""
    found = copy.deepcopy(item)
    found.pop("status", None)
    for key in _DROPPED:
        found["metadata"].pop(key, None)
    (found["metadata"].get("annotations") or {}).pop(_APPLIED, None)
    return found


def _configuration(kubectl: Kubectl, seen: Snapshot) -> list[Object]:
    """Return the ConfigMaps that the job's pods name, with their content."""
    specs = [one["template"]["spec"] for one in seen.job["spec"]["pytorchReplicaSpecs"].values()]
    names = sorted({name for spec in specs for kind, name, *_ in needed(spec) if kind == "ConfigMap"})
    return [_clean(one) for one in (kubectl.items("configmap", *names) if names else [])]


def _halve(objects: Manifests, seen: Snapshot, remedy: str, number: int) -> str:
    """Halve the micro batch in a ConfigMap of a new name; the global batch stays, for more are accumulated.

    The trainer derives how many micro batches make a global one, so nothing else changes.
    """
    from training.config import apply_override, load_texts

    spec = next(iter(seen.job["spec"]["pytorchReplicaSpecs"].values()))["template"]["spec"]
    if seen_host_memory(seen) and accelerators(spec):
        raise UserError("the host's memory is used up, and not the accelerators'", remedy, 1)
    texts = config_texts(objects, repo.root())
    if not texts:
        raise UserError(f"{seen.name}: no ConfigMap of the trainer's configuration to change", remedy, 1)
    size = load_texts(texts).parallel.micro_batch_size
    if size == 1:
        raise UserError(f"memory is used up with {MICRO} 1: it cannot be halved", remedy, 1)
    half = max(one for one in range(1, size // 2 + 1) if size % one == 0)
    changed = apply_override(texts, f"{MICRO}={half}")
    load_texts(changed)
    for item in objects.of_kind("ConfigMap"):
        for layer, (_, text) in changed.items():
            if item.get("data", {}).get(f"{layer}.yaml") not in (None, text):
                item["data"][f"{layer}.yaml"] = text
                _rename(objects, item, f"-retry{number}")
    return f"{MICRO} {size} -> {half}; the global batch stays"


def seen_host_memory(seen: Snapshot) -> bool:
    """Say whether a pod was killed for the container's memory."""
    return any(pod.end is not None and pod.end.reason == "OOMKilled" for pod in seen.pods)


def _rename(objects: Manifests, item: Object, suffix: str) -> None:
    old = item["metadata"]["name"]
    new = re.sub(r"-retry\d+$", "", old) + suffix
    item["metadata"]["name"] = new
    job = objects.job()
    job["spec"] = _replaced(job["spec"], old, new)


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, old, new) for one in value]
    return new if value == old else value


def carry_out(kubectl: Kubectl, seen: Snapshot, next_try: Plan, say: Callable[[str], None]) -> list[Applied]:
    """Take the failed job away and apply the next try; UserError where the server refuses it, beforehand.

    Should it refuse after all once the job is gone, the manifest is left as a file here.
    """
    for warning in submit.try_out(kubectl, next_try.objects, replaced=True):
        say(warning)
    say(f"ending {seen.name} ({seen.uid})")
    submit.delete(kubectl, seen.job, say)
    try:
        return submit.apply(kubectl, next_try.objects)[0]
    except UserError as problem:
        path = Path(f"{seen.name}.json")
        path.write_text(submit.text_of(next_try.objects), encoding="utf-8")
        hint = f"the manifest is kept: kubectl apply --server-side -f {path}"
        raise UserError(problem.message, hint, 1) from None
