"""Copy changed Python files into the running pods of a job, and start its command again with them.

The job must have been submitted with --dev (make job DEV=1). Run this in the directory that is the image's
working directory: PATH is a file or a directory in it, all of it by default. Files are compared by digest,
and their syntax is checked first. When all pods have the files, the ranks are killed and start again from the
last checkpoint, without a new image or pod. A command that fails waits half an hour for its next version.

\b
Examples:
  yard job sync mine
  yard job sync cpu/mine train.py models/
  yard job sync mine --timeout 300

\b
Exit codes: 0 the new code has made a step (or nothing has changed), 1 a pod was not reached or the code
failed, 2 bad input, 3 restarted and no step was seen.
"""

import time

import click

from tools.cli.job import _options
from tools.core import output
from tools.job import sync
from tools.job.snapshot import lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="copy changed code into running pods and restart")
@click.argument("job", metavar="JOB|CELL")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@_options.cluster
@click.option(
    "--timeout", type=click.IntRange(min=1), default=180, show_default=True, metavar="SECONDS",
    help="How long to wait for a step.",
)  # fmt: skip
@_options.as_json
def command(kubectl: Kubectl, job: str, paths: tuple[str, ...], timeout: int, as_json: bool) -> None:
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
    if done.changed and done.step is None:
        raise click.exceptions.Exit(1 if done.failed else 3)


def _print(job: str, done: sync.Synced, seconds: float) -> None:
    pods = output.count(len(done.pods), "pod")
    if not done.changed:
        output.line(f"{pods} of {job} already have these files; nothing was restarted")
        return
    output.line(f"changed in {pods}: {', '.join(done.changed)}")
    if done.step is not None:
        since = f"{done.seconds:.1f} s after the last file was saved"
        output.line(f"step {done.step} with the new code, {since} (this command: {seconds:.1f} s)")
    elif done.failed:
        output.line(f"the new code failed: {done.failed}")
        output.line(f"next: correct it and sync again; the log: yard job logs {job}")
    else:
        output.line(f"restarted, and no step was seen; the log: yard job logs {job}")
