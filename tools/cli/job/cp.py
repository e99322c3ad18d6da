"""Copy files out of a job's run directory: checkpoints, the report, metrics, logs.

PATH is relative to the run directory, a file or a directory. The pod opens all files first, so that a run
at work cannot prune them, and computes the SHA-256 of what it sends; what arrives is held against it. A file
that is here already and right is not copied again. The digests are in SHA256SUMS beside the files
(`sha256sum --check SHA256SUMS`). Where no pod of the job runs, one is made to read its claim, and goes again.

\b
Examples:
  yard job cp cpu-llama-tiny-train checkpoints/step-00000100 out/
  yard job cp cpu-llama-tiny-train report.json .

\b
Exit codes: 0 all is here and right, 1 a file did not arrive whole, 3 there is nothing to copy from.
"""

from __future__ import annotations

import errno
from pathlib import Path

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.errors import UserError
from tools.job import copy, volume_reader
from tools.job.snapshot import collect, lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="copy files out of the run directory")
@click.argument("job", metavar="JOB|CELL")
@click.argument("path")
@click.argument("target", type=click.Path(path_type=Path, file_okay=False), metavar="DIRECTORY")
@_options.cluster
@_options.as_json
def command(kubectl: Kubectl, job: str, path: str, target: Path, as_json: bool) -> None:
    seen = collect.collect(kubectl, lookup.job_name(kubectl, job), logs=False, run=False)
    here = Kubectl(kubectl.context, seen.namespace)
    try:
        with volume_reader.reading(here, seen, output.note) as pod:
            output.note(f"copying from {pod.name}")
            files = copy.fetch(here, pod, path, target, output.note)
        copy.note_digests(target / "SHA256SUMS", files)
    except OSError as problem:
        where = problem.filename2 or problem.filename or target  # a full disk names no file
        code = 1 if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else 2
        raise UserError(f"{where}: {problem.strerror}", code=code) from None
    copied, total = sum(file.copied for file in files), sum(file.size for file in files)
    if as_json:
        facts = {"job": seen.name, "uid": seen.uid, "pod": pod.name, "pod_uid": pod.uid}
        output.data({**facts, "files": [vars(file) for file in files]})
        return
    output.line(f"{output.count(len(files), 'file')}, {total:,} bytes in {target}: all digests are right")
    output.line(f"  {copied} copied from {pod.name} ({pod.uid}), {len(files) - copied} were there")
