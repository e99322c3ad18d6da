"""A pod that reads a job's volume when none of the job's own runs: made for it, and gone with it."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator

from tools.cells import kustomize
from tools.core import output, repo
from tools.core.errors import UserError
from tools.job.snapshot.pod import RUN_VARIABLE, JobPod
from tools.job.snapshot.snapshot import Snapshot
from tools.kube.kubectl import Kubectl
from tools.kube.manifests import Object, parse

SECONDS = 180.0  # until it runs: an image may have to be pulled
LIVES = 3600  # seconds after which it ends by itself, should nobody take it away
EVERY = 1.0


def manifest(job: Object) -> Object:
    """Return the pod of base/services/debug with the job's image, claims (read-only) and run directory.

    UserError for a job whose trainer has no run directory on a claim.
    """
    name = job["metadata"]["name"]
    spec = next(iter(job["spec"]["pytorchReplicaSpecs"].values()))["template"]["spec"]
    own = JobPod({"spec": spec}).container_spec
    volumes = [one for one in spec.get("volumes") or [] if "persistentVolumeClaim" in one]
    run = next((one for one in own.get("env") or [] if one["name"] == RUN_VARIABLE), None)
    if not volumes or run is None:
        raise UserError(f"{name} has no run directory on a claim: its files are gone with its pods", code=3)
    path = repo.root() / "base/services/debug"
    rendered = parse(kustomize.ensure(repo.root(), output.note).build(path), repo.shown(path))
    (pod,) = rendered.of_kind("Pod")
    pod["metadata"]["name"] = f"{name}-reader-{uuid.uuid4().hex[:5]}"  # the last one may still be going
    pod["spec"]["activeDeadlineSeconds"] = LIVES
    kept = [one for one in pod["spec"]["volumes"] if "configMap" not in one]
    pod["spec"]["volumes"] = [*kept, *volumes]
    (container,) = pod["spec"]["containers"]
    container |= {"image": own["image"], "command": ["sleep", str(LIVES)]}
    container["env"] += [{"name": "JOB_NAME", "value": name}, {"name": RUN_VARIABLE, "value": run["value"]}]
    names = {one["name"] for one in kept}
    claims = {one["name"] for one in volumes}
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] in names] + [
        one | {"readOnly": True} for one in own.get("volumeMounts") or [] if one["name"] in claims
    ]
    found: Object = pod
    return found


@contextlib.contextmanager
def reading(kubectl: Kubectl, seen: Snapshot, say: Callable[[str], None]) -> Iterator[JobPod]:
    """Give a pod that sees the run directory: one of the job's that runs, else one made for the purpose."""
    running = next((pod for pod in seen.pods if pod.running and pod.has_run_directory), None)
    if running is not None:
        yield running
        return
    wanted = manifest(seen.job)
    name = wanted["metadata"]["name"]
    say(f"no pod of the job runs: starting {name} to read its volume")
    kubectl.text("apply", "--server-side", "--filename=-", stdin=json.dumps(wanted))
    try:
        yield _started(kubectl, name)
    finally:
        kubectl.run("delete", "pod", name, "--ignore-not-found", "--wait=false")


def _started(kubectl: Kubectl, name: str) -> JobPod:
    began = time.monotonic()
    while True:
        pod = JobPod(kubectl.json("get", "pod", name))
        if pod.running:
            return pod
        if time.monotonic() - began > SECONDS:
            placed = (pod.condition("PodScheduled") or {}).get("message")
            why = ": ".join(filter(None, pod.waiting)) or placed or pod.phase
            raise UserError(f"{name} does not run after {SECONDS:.0f} s: {why}", code=3)
        time.sleep(EVERY)
