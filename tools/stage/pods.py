"""The pod that sees claims: a Job from base/services/stage, followed by its state and the end of its log."""

import copy
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

from tools.cells import kustomize
from tools.core import Say, UserError, command_line, output, repo
from tools.facts.instances import INSTANCE_LABEL, INSTANCES
from tools.kube import Kubectl, Object, name_of
from tools.stage.request import Request

CONTAINER, OWNER = "stage", "batch.kubernetes.io/job-name"
NOTE = "trainyard/stage"  # annotation: the request, so that the same one follows a running Job
TARGET, ORIGIN = "/stage/to", "/stage/from"
POLL = 1.0
TAIL, LONGEST = 5, 1 << 20  # lines of the log, and their bytes
NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


def objects(name: str, image: str | None) -> tuple[Object, Object]:
    """Return Job and NetworkPolicy of base/services/stage under this name, for nodes without devices."""
    rendered = kustomize.rendered(repo.root() / "base/services/stage")
    (job,), (policy,) = (copy.deepcopy(rendered.of_kind(kind)) for kind in ("Job", "NetworkPolicy"))
    job["metadata"]["name"] = policy["metadata"]["name"] = name
    policy["spec"]["podSelector"] = {"matchLabels": {OWNER: name}}
    spec = job["spec"]["template"]["spec"]
    if image:
        spec["containers"][0]["image"] = image
    costly = [name for one in INSTANCES.values() if one.device_resource for name in one.node_names]
    term = {"matchExpressions": [{"key": INSTANCE_LABEL, "operator": "NotIn", "values": costly}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec["affinity"] = {"nodeAffinity": required}
    return job, policy


def mount(job: Object, claim: str, path: str, name: str, read_only: bool = False, inside: str = "") -> None:
    """Mount a claim, or the directory `inside` of it, into the Job's container."""
    spec = job["spec"]["template"]["spec"]
    mounted = {"name": name, "mountPath": path, "readOnly": read_only}
    spec["containers"][0]["volumeMounts"].append(mounted | ({"subPath": inside} if inside else {}))
    if name not in [volume["name"] for volume in spec["volumes"]]:
        spec["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": claim}})


def staging(asked: Request, image: str | None, account: str | None, variables: dict[str, str]) -> list[Object]:
    """Return the Job for a request, and its policy. Its name is that of the place, so no two write there."""
    name = f"stage-{hashlib.sha256(asked.place.encode()).hexdigest()[:10]}"
    job, policy = objects(name, image)
    job["metadata"]["annotations"] = {NOTE: json.dumps(vars(asked), sort_keys=True)}
    spec = job["spec"]["template"]["spec"]
    container = spec["containers"][0]
    container["env"] += [{"name": key, "value": value} for key, value in variables.items()]
    if account:
        spec["serviceAccountName"] = account
    mount(job, asked.claim, TARGET, "to")
    if asked.is_here:  # this machine sends the bytes; the pod waits for it
        container["command"] = ["sleep", "86400"]
        job["spec"]["backoffLimit"] = 0
        spec["terminationGracePeriodSeconds"] = 1
        return [job, policy]
    source = asked.source
    if asked.from_claim:
        mount(job, asked.from_claim, ORIGIN, "from", read_only=True)
        source = f"{ORIGIN}/{asked.source}"
    container["args"] = ["fetch", *asked.options(), f"--to={TARGET}/{asked.path}", "--", source]
    return [job, policy]


def start(kubectl: Kubectl, wanted: list[Object], say: Say) -> str:
    """Create the Job, or find the one that does the same already, and return its name. Raises UserError."""
    job, policy = wanted
    name = name_of(job)
    found = kubectl.items("jobs", "--ignore-not-found", names=[name])
    if found:
        note = (found[0]["metadata"].get("annotations") or {}).get(NOTE)
        same = note == job["metadata"].get("annotations", {}).get(NOTE)
        if not finished(found[0]) and same:
            say(f"{name} is at work already; following it")
            return name
        if not finished(found[0]):
            source = output.short(json.loads(note or "{}").get("source", "another source"))
            raise UserError(f"{name} is bringing {source} to the same place", f"kubectl delete job {name}", 1)
        remove(kubectl, name, wait=True)
    made = kubectl.json("create", "--filename=-", stdin=json.dumps(job))
    keys = ("apiVersion", "kind", "name", "uid")
    owner = dict(zip(keys, (made["apiVersion"], made["kind"], name, made["metadata"]["uid"]), strict=True))
    policy["metadata"]["ownerReferences"] = [owner]
    kubectl.text("create", "--filename=-", stdin=json.dumps(policy))
    say(f"{kubectl.namespace}/Job/{name} {made['metadata']['uid']} is created")
    return name


def remove(kubectl: Kubectl, name: str, wait: bool = False) -> None:
    """Delete a Job with its pods and its policy."""
    kubectl.run("delete", "job", "--ignore-not-found", f"--wait={str(wait).lower()}", names=[name])


def finished(job: Object) -> str:
    """Return Complete or Failed, empty while the Job runs."""
    found = (job.get("status") or {}).get("conditions") or []
    true = [str(one["type"]) for one in found if one["status"] == "True"]
    return next((kind for kind in ("Complete", "Failed") if kind in true), "")


def _newest(kubectl: Kubectl, name: str) -> Object:
    """Return the Job's newest pod, empty before there is one."""
    found = kubectl.items("pods", command_line.selector(OWNER, name))
    return max(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default={})


def _waits_for(pod: Object) -> tuple[str, str]:
    """Return why a pod does not run yet: its container's reason, or the scheduler's, and a message."""
    status = pod.get("status") or {}
    states = [own.get("state") or {} for own in status.get("containerStatuses") or []]
    waiting = [state["waiting"] for state in states if state.get("waiting")]
    waiting += [
        one for one in status.get("conditions") or [] if one["type"] == "PodScheduled" and one["status"] != "True"
    ]
    return next(((str(one.get("reason", "")), str(one.get("message", ""))) for one in waiting), ("", ""))


def _states(kubectl: Kubectl, name: str, seconds: float, say: Say) -> Iterator[tuple[str, Object]]:
    """Yield the Job's end, empty before it, and its newest pod, and report what the pod waits for.

    Raises UserError (3) for an image that cannot be pulled, and after `seconds`.
    """
    deadline, said = time.monotonic() + seconds, ""
    while True:
        state, pod = finished(kubectl.json("get", "job", names=[name])), _newest(kubectl, name)
        reason, message = _waits_for(pod)
        waits = f"the pod of {name} waits: {reason} {output.short(message)}".strip()
        if reason in NO_IMAGE:
            raise UserError(waits, "yard image push toolbox, or name another image with --image", 3)
        yield state, pod
        if time.monotonic() > deadline:
            why = waits if reason else f"{name} is not done"
            raise UserError(f"{why}, after {seconds:.0f} s", "the same command follows it", 3)
        if reason and waits != said:
            say(said := waits)
        time.sleep(POLL)


def running(kubectl: Kubectl, name: str, seconds: float, say: Say) -> str:
    """Return the name of the Job's pod when it runs. Raises UserError."""
    for state, pod in _states(kubectl, name, seconds, say):
        if (pod.get("status") or {}).get("phase") == "Running":
            return name_of(pod)
        if state:
            break
    raise UserError(f"{name} ended before its pod ran", f"kubectl describe job {name}", 1)


def follow(kubectl: Kubectl, name: str, seconds: float, say: Say) -> dict[str, Any]:
    """Report the Job's progress until its end, and return its program's answer. Raises UserError."""
    said = ""
    for state, pod in _states(kubectl, name, seconds, say):
        lines = _tail(kubectl, pod)
        line = next((line for line in reversed(lines) if not line.startswith("{")), "")
        if state == "Complete":
            return _answer(lines, name)
        if state:
            why = line.removeprefix("error: ") or "its pods left no log"
            raise UserError(f"{name} failed: {why}", code=1)
        if line not in ("", said):
            say(said := line)
    raise AssertionError("the states of a Job do not end")


def _tail(kubectl: Kubectl, pod: Object) -> list[str]:
    """Return the last lines of the pod's log, nothing while it has none."""
    if not pod or (pod.get("status") or {}).get("phase") == "Pending":
        return []
    words = ("logs", f"--container={CONTAINER}", f"--tail={TAIL}", f"--limit-bytes={LONGEST}")
    done = kubectl.run(*words, names=[name_of(pod)])
    return done.stdout.splitlines() if done.returncode == 0 else []


def _answer(lines: list[str], name: str) -> dict[str, Any]:
    """Return the last line of JSON in a log. Raises UserError (3)."""
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    raise UserError(f"{name} ended without an answer in its log", "kubectl logs shows it", 3)
