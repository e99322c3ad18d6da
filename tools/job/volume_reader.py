"""A temporary pod that reads a job's volume when none of the job's own pods is running."""

import contextlib
import json
import uuid
from collections.abc import Iterator

from tools.cells import kustomize
from tools.core import Say, UserError, repo, wait
from tools.job.snapshot import JobPod, Snapshot
from tools.job.snapshot.pod import RUN_VARIABLE, first_template
from tools.kube import Kubectl, Object, name_of
from tools.workload import Workload

SECONDS = 180.0  # until it runs: an image may have to be pulled
LIVES = 3600  # seconds after which it ends by itself if it was not removed


def manifest(job: Workload, writes: bool = False) -> Object:
    """Return the pod of base/services/debug with the job's image, claims (read-only unless `writes`) and run directory.

    Raises UserError for a job whose trainer has no run directory on a claim.
    """
    name, template = job.name, first_template(job)
    trainer = template.container_spec
    volumes = [volume for volume in template.spec.get("volumes") or [] if "persistentVolumeClaim" in volume]
    run = next((entry for entry in trainer.get("env") or [] if entry["name"] == RUN_VARIABLE), None)
    if not volumes or run is None:
        raise UserError(f"{name} has no run directory on a claim: its files are gone with its pods", code=3)
    (pod,) = kustomize.rendered(repo.root() / "base/services/debug").of_kind("Pod")
    pod["metadata"]["name"] = f"{name}-reader-{uuid.uuid4().hex[:5]}"  # an earlier one may still be ending
    pod["spec"]["activeDeadlineSeconds"] = LIVES
    kept = [volume for volume in pod["spec"]["volumes"] if "configMap" not in volume]
    pod["spec"]["volumes"] = [*kept, *volumes]
    (container,) = pod["spec"]["containers"]
    container |= {"image": trainer["image"], "command": ["sleep", str(LIVES)]}
    # JOB_NAME comes first: $(JOB_NAME) in a value refers only to variables above it.
    container["env"] += [{"name": "JOB_NAME", "value": name}, {"name": RUN_VARIABLE, "value": run["value"]}]
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] in map(_name, kept)]
    container["volumeMounts"] = mounts + [
        mount | {"readOnly": not writes}
        for mount in trainer.get("volumeMounts") or []
        if mount["name"] in map(_name, volumes)
    ]
    return pod


def _name(volume: Object) -> str:
    return str(volume["name"])


@contextlib.contextmanager
def reading(kubectl: Kubectl, seen: Snapshot, say: Say, writes: bool = False) -> Iterator[JobPod]:
    """Yield a pod that sees the run directory: a running pod of the job, else a temporary one.

    With `writes` the temporary one may change it.
    """
    running = next((pod for pod in seen.pods if pod.running and pod.has_run_directory), None)
    if running is not None:
        yield running
        return
    wanted = manifest(seen.workload, writes)
    name = name_of(wanted)
    say(f"no pod of the job is running; starting {name} to see its volume")
    kubectl.text("apply", "--server-side", "--filename=-", stdin=json.dumps(wanted))
    try:
        yield _started(kubectl, name)
    finally:
        kubectl.run("delete", "pod", "--ignore-not-found", "--wait=false", names=[name])


def _started(kubectl: Kubectl, name: str) -> JobPod:
    pod = wait.settled(lambda: JobPod(kubectl.json("get", "pod", names=[name])), lambda one: one.running, SECONDS, 1.0)
    if not pod.running:
        raise UserError(f"{name} is not running after {SECONDS:.0f} s: {pod.waits_for}", code=3)
    return pod
