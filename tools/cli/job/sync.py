"""Copy changed Python files into the running pods of a job, and start its command again with them."""

import time

from tools.cli.job import _options
from tools.core import output
from tools.job import sync
from tools.job.snapshot import lookup
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str, paths: tuple[str, ...], timeout: int, as_json: bool) -> int:
    began = time.time()
    files = sync.files_of(paths or (".",))
    live = lookup.find(kubectl, job)
    here = Kubectl(kubectl.context, live.workload.namespace)
    with sync.talking(here, sync.pods_of(here, live)) as talks:
        done = sync.Sync(talks, output.note).run(files, timeout)
    if as_json:
        output.data({"job": live.workload.name, "namespace": here.namespace, **vars(done)})
    else:
        _print(live.workload.name, done, time.time() - began)
    return 1 if done.failed else 3 if done.changed and done.step is None else 0


def _print(job: str, done: sync.Synced, seconds: float) -> None:
    pods = output.count(len(done.pods), "pod")
    if not done.changed:
        output.line(f"{pods} of {job} already have these files; nothing was restarted")
        return
    output.line(f"changed in {pods}: {', '.join(done.changed)}")
    if done.step is not None:
        since = f"{done.seconds:.1f} s after the last file was saved"
        parts = ", ".join(f"{name} {value:.1f}" for name, value in done.parts.items())
        output.line(f"step {done.step} with the new code, {since} (this command: {seconds:.1f} s: {parts})")
    elif done.failed:
        output.line(f"the new code failed: {done.failed}")
        output.line(f"next: correct it and sync again; the log: yard job logs {job}")
    else:
        output.line(f"restarted, and no step was seen; the log: yard job logs {job}")
