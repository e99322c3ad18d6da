"""Copy files out of a job's run directory: checkpoints, the report, metrics, logs.

PATH is a file or directory relative to the run directory. The pod opens all files first, so that an active
run cannot delete them during the copy, and computes the SHA-256 of the data that it sends. The command
verifies the received files and writes their digests to SHA256SUMS (`sha256sum --check SHA256SUMS`). An intact
file of SHA256SUMS is not copied again. If no pod is running, a temporary pod mounts the volume and is
removed afterwards.

\b
Examples:
  yard job cp cpu-llama-tiny-train checkpoints/step-00000100 out/
  yard job cp cpu-llama-tiny-train report.json .

\b
Exit codes: 0 all files are here and verified, 1 a file did not arrive, 3 there is nothing to copy from.
"""

import errno
from pathlib import Path

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import copy, volume_reader
from tools.job.snapshot import collect
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="copy files out of the run directory")
@click.argument("job", metavar="JOB|CELL")
@click.argument("path")
@click.argument("target", type=click.Path(path_type=Path, file_okay=False), metavar="DIRECTORY")
@_options.cluster
@_options.as_json
def command(kubectl: Kubectl, job: str, path: str, target: Path, as_json: bool) -> None:
    here, seen = collect.find(kubectl, job, logs=False, run=False)
    try:
        with volume_reader.reading(here, seen, output.note) as pod:
            output.note(f"copying from {pod.name}")
            files = copy.fetch(here, pod, path, target, output.note)
    except OSError as problem:
        where = problem.filename2 or problem.filename or target  # a full disk has no file name
        code = 1 if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else 2
        raise UserError(f"{where}: {problem.strerror}", code=code) from None
    copied, total = sum(file.copied for file in files), sum(file.size for file in files)
    if as_json:
        facts = {"job": seen.name, "uid": seen.uid, "pod": pod.name, "pod_uid": pod.uid}
        output.data({**facts, "files": [vars(file) for file in files]})
        return
    output.line(f"{output.count(len(files), 'file')}, {total:,} bytes in {target}: all digests are right")
    output.line(f"  {copied} copied from {pod.name} ({pod.uid}), {len(files) - copied} already here")
