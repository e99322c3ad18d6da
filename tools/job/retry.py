"""The next attempt of a failed job: whether it can help, by the cause of the failure, and what it changes."""

import itertools
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cells.trainer_config import config_texts
from tools.core import Say, State, UserError, foreign_files, output, repo, tables
from tools.job import stop, submit, submitted
from tools.job.diagnosis import exit_codes
from tools.job.diagnosis.explain import Explanation
from tools.job.diagnosis.resources import accelerators
from tools.job.metrics import progress
from tools.job.snapshot import Snapshot, lookup
from tools.job.snapshot.live_job import LEDGER
from tools.job.snapshot.pod import template_specs
from tools.job.submit import Applied
from tools.kube import Kubectl, Manifests, Object, name_of
from tools.workload import kinds

if TYPE_CHECKING:
    from training.config import Retry

MICRO = "parallel.micro_batch_size"
OWNERS = ("kustomize.toolkit.fluxcd.io/name", "argocd.argoproj.io/instance")
UNKNOWN = "unknown"
_RETRIES: dict[int, list[str]] = tables.load("job/tables.yaml")["retries"]
MOST = {cause: number for number, causes in _RETRIES.items() for cause in causes}


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that has ended: the job's UID, why it failed, and what the next attempt changed."""

    uid: str
    ended: str
    cause: str
    evidence: str
    changed: str
    step: int | None = None  # the newest one that was seen


@dataclass(frozen=True)
class NextAttempt:
    """The objects of the next attempt, and the ledger, which ends with the attempt that has just failed."""

    objects: Manifests
    ledger: list[FailedAttempt]

    @property
    def last(self) -> FailedAttempt:
        return self.ledger[-1]


def ledger(job: Object) -> list[FailedAttempt]:
    """Return a job's earlier attempts; UserError if the annotation has another format."""
    text = (job["metadata"].get("annotations") or {}).get(LEDGER, "[]")
    try:
        return [FailedAttempt(**one) for one in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        message = f"{name_of(job)}: the annotation {LEDGER} is not a ledger: {output.short(text)}"
        raise UserError(message) from None


def plan(
    kubectl: Kubectl, seen: Snapshot, found: Explanation, most: int, rule: "Retry | None" = None, reached: int = 0
) -> NextAttempt:
    """Return the next attempt; UserError with the reason if it cannot help or exceeds a limit.

    The next attempt of a job that another object made is that object's. With the cell's key `retry` as the `rule`, the
    cause must be of its classes, and the run must have made a step that the attempt before did not make. `reached` is
    the newest step that was seen earlier.
    """
    _check_state(seen, found)
    stop.resource_of(seen.live)
    cause = found.causes[0] if found.causes else None
    kind = cause.kind if cause else UNKNOWN
    evidence = cause.evidence[0] if cause and cause.evidence else found.summary
    before = ledger(seen.live.top)
    step = max(reached, progress.of(seen).step or 0)
    if rule is not None:
        _check_rule(rule, kind, before, step)
    _check_bounds(kind, found, before, most)
    job = submitted.clean(seen.live.top)
    objects = Manifests(seen.name, [job, *submitted.configuration(kubectl, seen.workload)])
    changed = "nothing"
    if kind in ("oom-device", "oom-host"):
        changed = _halve(objects, seen, kind, cause.remedy if cause else "", len(before) + 1)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    attempts = [*before, FailedAttempt(seen.uid, ended, kind, evidence, changed, step)]
    annotations = job["metadata"].setdefault("annotations", {})
    annotations[LEDGER] = json.dumps([asdict(one) for one in attempts])
    if changed == "nothing":
        objects = Manifests(seen.name, [job])
    return NextAttempt(objects, attempts)


def _check_state(seen: Snapshot, found: Explanation) -> None:
    if seen.state == "Suspended":
        raise UserError(f"{seen.name} is suspended", "`yard job submit CELL --resume` continues it", 1)
    if found.state is State.CANNOT_TELL and not seen.condition("Failed"):
        raise UserError(f"unknown whether {seen.name} fails: {found.summary}", "yard job why -v", 3)
    failing = seen.condition("Failed") or any(pod.restarts or pod.end for pod in seen.pods)
    if found.state is State.PASS or not failing:
        raise UserError(f"{seen.name} has not failed: {found.summary}", "yard job why -v", 1)
    labels = seen.live.top["metadata"].get("labels") or {}
    owner = next((label for label in OWNERS if label in labels), None)
    if owner:
        message = f"{seen.name} is reconciled from git ({owner}): another attempt would be undone"
        raise UserError(message, "change its run file in git instead", 1)


def _check_bounds(kind: str, found: Explanation, before: list[FailedAttempt], most: int) -> None:
    if kind not in MOST:
        remedy = found.causes[0].remedy
        raise UserError(f"another attempt would fail in the same way: {kind}: {found.summary}", remedy, 1)
    if len(before) >= most:
        raise UserError(f"retried {output.count(len(before), 'time')} already, {most} are allowed", "--most N", 1)
    same = len(list(itertools.takewhile(lambda attempt: attempt.cause == kind, reversed(before))))
    if same >= MOST[kind]:
        times = output.count(same, "retry", "retries")
        raise UserError(f"{kind} has occurred again after {times}", "`yard job why` prints a fix", 1)


def _check_rule(rule: "Retry", kind: str, before: list[FailedAttempt], step: int) -> None:
    """Raise UserError where the key `retry` of the cell ends the job."""
    if rule.classes != "transient" and kind not in {name for one in rule.classes for name in exit_codes.kinds(one)}:
        raise UserError(f"retry.classes does not have {kind}", "`yard job retry` asks you instead", 1)
    if before and step <= (before[-1].step or 0):
        then = f"step {step} now, step {before[-1].step or 0} then"
        message = f"there was no new step since the attempt before: {then}"
        raise UserError(message, "`yard job why` prints a fix", 1)


def _halve(objects: Manifests, seen: Snapshot, kind: str, remedy: str, number: int) -> str:
    """Halve the micro batch in a ConfigMap with a new name, and return the change in words.

    The global batch stays: the trainer derives how many micro batches it accumulates.
    """
    from training.config import apply_override, load_texts
    from training.config.base import divisor_near

    killed = any(pod.end is not None and pod.end.reason == "OOMKilled" for pod in seen.pods)
    if (killed or kind == "oom-host") and accelerators(template_specs(seen.workload)[0]):
        raise UserError("the host is out of memory, not the accelerators", remedy, 1)
    texts = config_texts(objects, repo.root())
    if not texts:
        raise UserError(f"{seen.name}: no ConfigMap of the trainer's configuration to change", remedy, 1)
    size = load_texts(texts).parallel.micro_batch_size
    if size == 1:
        raise UserError(f"out of memory with {MICRO} 1: it cannot be halved", remedy, 1)
    half = divisor_near(size, size // 2)
    changed = apply_override(texts, f"{MICRO}={half}")
    load_texts(changed)
    for item in objects.of_kind("ConfigMap"):
        for layer, (_, text) in changed.items():
            if item.get("data", {}).get(f"{layer}.yaml") not in (None, text):
                item["data"][f"{layer}.yaml"] = text
                _rename(objects, item, f"-retry{number}")
    return f"{MICRO} {size} -> {half}; the global batch stays"


def _rename(objects: Manifests, item: Object, suffix: str) -> None:
    old = item["metadata"]["name"]
    new = re.sub(r"-retry\d+$", "", old) + suffix
    item["metadata"]["name"] = new
    job = lookup.top_of(objects)
    job["spec"] = json.loads(json.dumps(job["spec"]).replace(json.dumps(old), json.dumps(new)))


def carry_out(kubectl: Kubectl, seen: Snapshot, objects: Manifests, say: Say) -> list[Applied]:
    """Delete the failed job and apply the next attempt; UserError if a dry run shows that it is refused.

    If the API server refuses it after the deletion, the manifest is written to a file.
    """
    for warning in submit.dry_run(kubectl, objects, replaced=True):
        say(warning)
    say(f"ending {seen.name} ({seen.uid})")
    stop.delete(kubectl, seen.live, say)
    try:
        applied = submit.apply(kubectl, objects)[0]
    except UserError as problem:
        path = Path(f"{seen.name}.json")
        with foreign_files.writing(Path(), path.name) as file:
            file.write(objects.as_list().encode())
        hint = f"the manifest is in {path}: kubectl apply --server-side -f {path}"
        raise UserError(problem.message, hint, 1) from None
    top = lookup.top_of(objects)
    whole = Manifests(seen.name, [top, *submitted.configuration(kubectl, kinds.job_of(objects))])
    command = f"yard job retry {seen.name}"
    for reason in submitted.keep(kubectl, whole, top, submit.uid_of(applied, top), command):
        say(reason)
    return applied
