"""Runs commands in a job's pods, and reads the run directory through one of them."""

import json
from pathlib import Path

from tools.core import UserError
from tools.job.snapshot import run_answer
from tools.job.snapshot.pod import RUN_VARIABLE, JobPod
from tools.kube import Kubectl, Object
from tools.kube.kubectl import SECONDS
from training.remote import run_probe


def in_pod(kubectl: Kubectl, pod: JobPod, *words: str, stdin: str | None = None, seconds: float = SECONDS) -> str:
    """Run a command in a pod's training container and return its output; UserError if it fails."""
    options = [f"--container={pod.container_name}", *(["--stdin"] if stdin is not None else [])]
    return kubectl.text("exec", *options, names=[pod.name], command=words, stdin=stdin, seconds=seconds)


def run_directory(
    kubectl: Kubectl, pods: list[JobPod], unseen: dict[str, str], seconds: float = SECONDS
) -> Object | None:
    """Return the content of the run directory, read through the first running pod; or note why not."""
    mounting = [pod for pod in pods if pod.has_run_directory]
    if not mounting:
        unseen["run directory"] = f"no pod sets {RUN_VARIABLE}: this is not trainyard's trainer"
        return None
    pod = next((pod for pod in mounting if pod.running), None)
    if pod is None:
        unseen["run directory"] = "no pod of the job is running, so it cannot be read"
        return None
    script = Path(run_probe.__file__).read_text(encoding="utf-8")
    try:
        text = in_pod(kubectl, pod, "sh", "-c", f'exec python3 - "${RUN_VARIABLE}"', stdin=script, seconds=seconds)
        return _with_pods(run_answer.checked(json.loads(text)), {pod.host: pod.name for pod in pods})
    except UserError as problem:
        unseen["run directory"] = problem.message
    except (ValueError, RecursionError):
        unseen["run directory"] = f"the answer of {pod.short} is not JSON"
    return None


def _with_pods(run: Object | None, names: dict[str, str]) -> Object | None:
    """Return the run directory's content with the names of pods in place of their host names."""
    for part in ("heartbeats", "failures"):
        for one in ((run or {}).get(part) or {}).values():
            if one is not None and "host" in one:
                one["host"] = names.get(one["host"], one["host"])
    return run
