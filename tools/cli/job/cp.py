"""Copy files out of a job's run directory: checkpoints, the report, metrics, logs."""

import errno
from pathlib import Path

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import copy, volume_reader
from tools.job.snapshot import collect
from tools.kube import Kubectl


@_options.cluster
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
    facts = {"job": seen.name, "uid": seen.uid, "pod": pod.name, "pod_uid": pod.uid}
    lines = [f"{output.count(len(files), 'file')}, {total:,} bytes in {target}: all digests are right"]
    lines.append(f"  {copied} copied from {pod.name} ({pod.uid}), {len(files) - copied} already here")
    output.answer({**facts, "files": [vars(file) for file in files]}, lines, as_json)
