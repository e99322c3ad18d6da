"""Run a command in the pod of a rank, as `kubectl exec` does, without looking up the pod."""

import os
import sys

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job.ranks import pod_of
from tools.job.snapshot import JobPod, Snapshot, collect
from tools.kube import Kubectl
from tools.kube.kubectl import missing


@_options.cluster
def command(
    kubectl: Kubectl, job: str, words: tuple[str, ...], rank: int | None, wanted: str | None, as_json: bool
) -> int:
    if rank is not None and wanted is not None:
        raise UserError("--rank and --pod both name a pod: give one of them")
    here, seen = collect.find(kubectl, job, logs=wanted is None, run=wanted is None)
    pod = pod_of(seen, rank or 0) if wanted is None else _pod(seen, wanted)
    container = f"--container={pod.container_name}"
    if as_json:
        done = here.run("exec", container, names=[pod.name], command=words, seconds=None)
        answer = {"pod": pod.name, "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        output.data(answer)
        return done.returncode
    terminal = ["--stdin", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    program = here.words("exec", container, *terminal, names=[pod.name], command=words)
    output.release()
    try:
        os.execvp(program[0], program)
    except FileNotFoundError:
        raise missing() from None


def _pod(seen: Snapshot, wanted: str) -> JobPod:
    """Return the pod of this name or number: a Worker's, unless the job has other roles."""
    found = [pod for pod in seen.pods if wanted in (pod.name, pod.short, pod.host, str(pod.index))]
    found = [pod for pod in found if pod.role == "worker"] or found
    if len(found) != 1:
        names = ", ".join(pod.short for pod in seen.pods) or "none"
        which = f"several pods {wanted}" if found else f"no pod {wanted}"
        raise UserError(f"{seen.name} has {which}", f"pods: {names}")
    return found[0]
