"""Brings a source to its place: by a pod on a cluster, or by a process on this machine."""

import hashlib
import json
import time
from typing import Any

from tools.core import Say, UserError, own_module, repo
from tools.kube import Kubectl, Object
from tools.stage import pods
from tools.stage.request import Request
from tools.stage.send import send

LISTING = "trainyard-staged"  # the ConfigMap with what was staged, one key for each place
STARTS = 600.0  # seconds until the pod runs: a node may have to start


def here(asked: Request) -> dict[str, Any]:
    """Bring the source below local/, which takes the place of the claim `trainyard` on this machine."""
    target = repo.local() / asked.path
    words = ["training.stage", "fetch", *asked.options(), f"--to={target}", "--", asked.source]
    return own_module.answer(words)


def on_cluster(
    kubectl: Kubectl,
    asked: Request,
    image: str | None,
    account: str | None,
    variables: dict[str, str],
    seconds: float,
    say: Say,
) -> dict[str, Any]:
    """Bring the source to its claim by a Job, which is removed at the end, and note it in LISTING.

    Raises UserError. When the user interrupts this, a Job that fetches by itself continues.
    """
    for claim in {asked.claim, asked.from_claim} - {None}:
        if not kubectl.items("persistentvolumeclaims", "--ignore-not-found", names=[str(claim)]):
            hint = "base/storage has claims; kubectl get pvc lists those of the namespace"
            raise UserError(f"namespace {kubectl.namespace} has no claim {claim}", hint)
    name = pods.start(kubectl, pods.staging(asked, image, account, variables), say)
    try:
        if asked.is_here:
            found = send(kubectl, pods.running(kubectl, name, STARTS, say), asked, say)
        else:
            found = pods.follow(kubectl, name, seconds, say)
    except KeyboardInterrupt:
        if asked.is_here:
            pods.remove(kubectl, name)
        else:
            say(f"Job {name} continues; the same command follows it, kubectl delete job {name} ends it")
        raise
    except UserError as problem:
        if problem.code != 3 or asked.is_here:
            pods.remove(kubectl, name)
        raise
    pods.remove(kubectl, name)
    arrived = _checked(found, name)
    if not _note(kubectl, asked, arrived):
        say(f"not noted in ConfigMap {LISTING}: yard job submit will look at the volume itself")
    return arrived


def _checked(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a pod says has arrived. Raises UserError (3) for an answer of another shape."""
    kinds = {"source": str, "files": int, "bytes": int, "digest": str, "fetched": int}
    if not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise UserError(f"{name} ended with an answer of another shape", "was the image the toolbox?", 3)
    return {key: found[key] for key in kinds}


def _note(kubectl: Kubectl, asked: Request, found: dict[str, Any]) -> bool:
    """Write what is at the place into LISTING, if that is allowed. Each place has its own manager."""
    key = hashlib.sha256(asked.place.encode()).hexdigest()[:16]
    told = {"place": asked.place, "include": asked.include, "time": time.time(), **found}
    item: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": LISTING}}
    item["data"] = {key: json.dumps(told)}
    words = ("apply", "--server-side", "--force-conflicts", f"--field-manager=stage-{key}", "--filename=-")
    return kubectl.run(*words, stdin=json.dumps(item)).returncode == 0


def noted(kubectl: Kubectl) -> list[dict[str, Any]]:
    """Return what LISTING says was staged in the namespace, empty if it cannot be read."""
    done = kubectl.run("get", "configmap", "--ignore-not-found", "--output=json", names=[LISTING])
    try:
        data = json.loads(done.stdout).get("data") or {}
        return [found for text in data.values() if isinstance(found := json.loads(text), dict)]
    except (ValueError, AttributeError, RecursionError):
        return []
